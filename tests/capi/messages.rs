//! Messages that wait for nobody: probes, and sends that leave at once or not at all.

use super::*;

fn try_send(value: u32, peer: i32, comm: ringComm_t) -> ringResult_t {
    // SAFETY: the value outlives the call, which keeps no pointer to it.
    unsafe { ringTrySend((&raw const value).cast(), 4, BYTE, peer, comm) }
}

fn receive(peer: i32, comm: ringComm_t) -> u32 {
    let mut value = 0u32;
    // SAFETY: the value outlives the call.
    succeeds(unsafe { ringRecv((&raw mut value).cast(), 4, BYTE, peer, comm, null_mut()) });
    value
}

fn probe(peer: i32, timeout_ms: i64, comm: ringComm_t) -> ringResult_t {
    // SAFETY: safe for any arguments.
    unsafe { ringProbe(peer, timeout_ms, comm) }
}

#[test]
fn sends_leave_until_the_slots_are_full_and_arrive_in_order() {
    let all = init_all(2);
    let (left, right) = (all[0].comm(), all[1].comm());
    assert_eq!(probe(0, 0, right), ringInProgress);
    assert_eq!(probe(0, 20, right), ringInProgress);
    let mut sent = 0;
    while try_send(sent, 1, left) == ringSuccess {
        sent += 1;
        assert!(sent < 100_000, "slots are bounded");
    }
    assert!(sent > 1, "{sent} messages left");
    assert_eq!(try_send(sent, 1, left), ringInProgress);
    for value in 0..sent {
        assert_eq!(probe(0, 0, right), ringSuccess);
        assert_eq!(receive(0, right), value);
    }
    assert_eq!(probe(0, 0, right), ringInProgress);
    assert_eq!(try_send(7, 1, left), ringSuccess);
    assert_eq!(receive(0, right), 7);
    end_all(&all);
}

#[test]
fn a_message_longer_than_a_slot_is_left_to_a_send_that_waits() {
    let all = init_all(2);
    let long = vec![1u8; 64 << 20];
    // SAFETY: the buffer outlives the call.
    let result = unsafe { ringTrySend(long.as_ptr().cast(), long.len(), BYTE, 1, all[0].comm()) };
    assert_eq!(result, ringInProgress);
    assert_eq!(probe(0, 0, all[1].comm()), ringInProgress);
    end_all(&all);
}

#[test]
fn a_probe_ends_with_the_message_that_it_waits_for() {
    let all = init_all(2);
    let (left, right) = (all[0], all[1]);
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let result = probe(0, -1, right.comm());
            (result, receive(0, right.comm()))
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        assert_eq!(try_send(5, 1, left.comm()), ringSuccess);
        assert_eq!(waits.join().unwrap(), (ringSuccess, 5));
    });
    end_all(&all);
}

#[test]
fn a_try_waits_for_no_other_call_on_the_communicator() {
    let all = init_all(2);
    let (left, right) = (all[0], all[1]);
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || receive(1, left.comm()));
        // Until the receive has its turn.
        while try_send(1, 1, left.comm()) == ringSuccess {
            assert_eq!(receive(0, right.comm()), 1);
        }
        assert_eq!(try_send(9, 0, right.comm()), ringSuccess);
        assert_eq!(waits.join().unwrap(), 9);
    });
    end_all(&all);
}

#[test]
fn what_a_rank_sent_before_it_left_is_found_and_then_nothing() {
    let all = init_all(2);
    let (left, right) = (all[0].comm(), all[1].comm());
    assert_eq!(try_send(3, 1, left), ringSuccess);
    destroy(left);
    assert_eq!(probe(0, 0, right), ringSuccess);
    assert_eq!(receive(0, right), 3);
    assert_eq!(probe(0, 0, right), ringRemoteError);
    assert!(last_error_of(right).contains("rank 0"), "{}", last_error_of(right));
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringCommAbort(right) });
}

#[test]
fn an_abort_ends_a_probe() {
    let all = init_all(2);
    let right = all[1];
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || probe(0, -1, right.comm()));
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: safe for any argument.
        succeeds(unsafe { ringCommAbort(right.comm()) });
        assert_eq!(waits.join().unwrap(), ringAborted);
    });
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringCommAbort(all[0].comm()) });
}

#[test]
fn a_probe_and_a_try_refuse_what_a_receive_and_a_send_refuse() {
    let all = init_all(2);
    let comm = all[0].comm();
    for (refuse, parts) in [
        (&(|| probe(2, 0, comm)) as &dyn Fn() -> ringResult_t, ["ringProbe: ", "peer 2"]),
        (&|| try_send(1, -1, comm), ["ringTrySend: ", "peer -1"]),
        (&|| probe(0, 0, comm), ["ringProbe: ", "itself"]),
        (&|| try_send(1, 0, comm), ["ringTrySend: ", "itself"]),
    ] {
        assert_eq!(refuse(), ringInvalidArgument, "{parts:?}");
        let text = last_error_of(comm);
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    // SAFETY: refused before a buffer is touched.
    let refused = unsafe { ringTrySend(null(), 1, FLOAT, 1, comm) };
    assert_eq!(refused, ringInvalidArgument);
    assert!(last_error_of(comm).contains("NULL"), "{}", last_error_of(comm));
    end_all(&all);
}
