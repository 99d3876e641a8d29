//! Communicators that do not block: begun, asked about, given up.

use crate::ranks::*;
use ringcomm_nccl::collectives::*;
use ringcomm_nccl::group::*;
use ringcomm_nccl::init::*;
use ringcomm_nccl::lifecycle::*;
use ringcomm_nccl::types::*;
use std::ptr::null_mut;
use std::time::Instant;

fn begin(nranks: i32, id: ncclUniqueId, rank: i32) -> ncclComm_t {
    let (mut comm, mut config) = (null_mut(), config(0));
    // SAFETY: the places are locals.
    let begun = unsafe { pncclCommInitRankConfig(&mut comm, nranks, id, rank, &mut config) };
    assert_eq!(begun, ncclInProgress);
    assert!(!comm.is_null());
    comm
}

#[test]
fn one_thread_begins_all_ranks_and_asks_until_they_are_there() {
    let id = new_id();
    let comms = [0, 1, 2].map(|rank| begin(3, id, rank));
    for comm in comms {
        assert_eq!(poll(comm), ncclSuccess);
    }
    let (one, mut sums) = (1i32, [0i32; 3]);
    // Without a group: a call that does not block waits for nobody.
    for (comm, sum) in comms.iter().zip(&mut sums) {
        let (send, recv) = ((&raw const one).cast(), (&raw mut *sum).cast());
        // SAFETY: the buffers stay until the calls are done.
        let begun = unsafe { pncclAllReduce(send, recv, 1, ncclInt, ncclSum, *comm, null_mut()) };
        assert!([ncclSuccess, ncclInProgress].contains(&begun), "{}", last_error(null_mut()));
    }
    for comm in comms {
        assert_eq!(poll(comm), ncclSuccess);
    }
    assert_eq!(sums, [3; 3]);
    let mut parts = [null_mut(); 3];
    for (comm, part) in comms.iter().zip(&mut parts) {
        // SAFETY: the places stay.
        let begun = unsafe { pncclCommSplit(*comm, 0, 0, part, null_mut()) };
        assert_eq!(begun, ncclInProgress);
    }
    for comm in parts.iter().chain(&comms) {
        assert_eq!(poll(*comm), ncclSuccess);
    }
    assert_eq!(parts.map(rank_of), [(0, 3), (1, 3), (2, 3)]);
    for comm in comms.iter().chain(&parts) {
        // SAFETY: safe for any argument.
        assert_eq!(unsafe { pncclCommFinalize(*comm) }, ncclInProgress);
    }
    for comm in comms.iter().chain(&parts) {
        assert_eq!(poll(*comm), ncclSuccess);
        // SAFETY: safe for any argument.
        ok(unsafe { pncclCommDestroy(*comm) });
    }
}

#[test]
fn a_group_of_such_calls_returns_before_they_are_done() {
    let (id, mut comms, mut settings) = (new_id(), [null_mut(); 2], config(0));
    ok(pncclGroupStart());
    for (rank, comm) in comms.iter_mut().enumerate() {
        // SAFETY: the places stay until the group's end.
        ok(unsafe { pncclCommInitRankConfig(comm, 2, id, rank as i32, &mut settings) });
    }
    assert_eq!(pncclGroupEnd(), ncclInProgress);
    assert!(comms.iter().all(|comm| poll(*comm) == ncclSuccess));
    let (one, mut sums) = (1i32, [0i32; 2]);
    ok(pncclGroupStart());
    for (comm, sum) in comms.iter().zip(&mut sums) {
        let (send, recv) = ((&raw const one).cast(), (&raw mut *sum).cast());
        // SAFETY: the buffers stay until the calls are done.
        ok(unsafe { pncclAllReduce(send, recv, 1, ncclInt, ncclSum, *comm, null_mut()) });
    }
    assert_eq!(pncclGroupEnd(), ncclInProgress);
    assert!(comms.iter().all(|comm| poll(*comm) == ncclSuccess));
    assert_eq!(sums, [2; 2]);
    for comm in comms {
        // SAFETY: safe for any argument.
        ok(unsafe { pncclCommDestroy(comm) });
    }
}

#[test]
fn who_waits_for_ranks_that_never_come_gives_up_at_once() {
    let comm = begin(2, new_id(), 0);
    let (one, mut sum, mut state) = (1i32, 0i32, ncclSuccess);
    // SAFETY: the places are locals.
    unsafe {
        ok(pncclCommGetAsyncError(comm, &mut state));
        assert_eq!(state, ncclInProgress);
        let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
        let early = pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut());
        refused(early, ncclInvalidArgument, "ncclCommGetAsyncError");
        let begun = Instant::now();
        ok(pncclCommAbort(comm));
        assert!(begun.elapsed().as_secs() < 10);
        refused(pncclCommAbort(comm), ncclInvalidArgument, "already gone");
    }
}

#[test]
fn one_that_cannot_be_made_says_why() {
    let mut id = new_id();
    // A number that no id has.
    id.internal.fill(7);
    let (mut comm, mut settings) = (null_mut(), config(0));
    // SAFETY: the places are locals.
    unsafe {
        let begun = pncclCommInitRankConfig(&mut comm, 2, id, 0, &mut settings);
        refused(begun, ncclInvalidArgument, "");
        assert!(comm.is_null());
    }
}

/// Two ranks of this thread that do not block.
fn two() -> [ncclComm_t; 2] {
    let id = new_id();
    let comms = [0, 1].map(|rank| begin(2, id, rank));
    assert!(comms.iter().all(|comm| poll(*comm) == ncclSuccess));
    comms
}

#[test]
fn who_has_no_color_gets_null_at_once() {
    let (comms, mut parts) = (two(), [Handle(null_mut()).0, std::ptr::dangling_mut()]);
    for (rank, color) in [(0, 0), (1, NCCL_SPLIT_NOCOLOR)] {
        // SAFETY: the places stay.
        let begun = unsafe { pncclCommSplit(comms[rank], color, 0, &mut parts[rank], null_mut()) };
        assert_eq!(begun, ncclInProgress);
    }
    assert!(parts[1].is_null());
    assert!([comms[0], comms[1], parts[0]].iter().all(|comm| poll(*comm) == ncclSuccess));
    assert_eq!(rank_of(parts[0]), (0, 1));
    for comm in [parts[0], comms[0], comms[1]] {
        // SAFETY: safe for any argument.
        ok(unsafe { pncclCommDestroy(comm) });
    }
}

#[test]
fn a_group_divides_one_parent_twice() {
    let (comms, mut parts) = (two(), [[null_mut(); 2]; 2]);
    ok(pncclGroupStart());
    for (comm, own) in comms.iter().zip(&mut parts) {
        for part in own {
            // SAFETY: the places stay until the group's end.
            ok(unsafe { pncclCommSplit(*comm, 0, 0, part, null_mut()) });
        }
    }
    assert_eq!(pncclGroupEnd(), ncclInProgress);
    assert!(parts.iter().flatten().all(|comm| poll(*comm) == ncclSuccess));
    assert!(comms.iter().all(|comm| poll(*comm) == ncclSuccess));
    for comm in parts.iter().flatten().chain(&comms) {
        // SAFETY: safe for any argument.
        ok(unsafe { pncclCommDestroy(*comm) });
    }
}

#[test]
fn a_revocation_ends_a_call_and_is_a_success() {
    let (comms, one, mut sum, mut smaller) = (two(), 1i32, 0i32, [null_mut(); 2]);
    let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
    // SAFETY: the buffers stay until the call is done, which the revocation sees to.
    unsafe {
        let begun = pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comms[0], null_mut());
        assert_eq!(begun, ncclInProgress);
        for comm in comms {
            ok(pncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
            assert_eq!(poll(comm), ncclSuccess);
        }
        for (comm, own) in comms.iter().zip(&mut smaller) {
            let shrunk = pncclCommShrink(*comm, null_mut(), 0, own, null_mut(), 0);
            assert_eq!(shrunk, ncclInProgress, "{}", last_error(*comm));
        }
        assert!(smaller.iter().all(|comm| poll(*comm) == ncclSuccess));
        for comm in smaller.iter().chain(&comms) {
            ok(pncclCommDestroy(*comm));
        }
    }
}

#[test]
fn a_thread_that_asks_learns_why_and_no_more_calls_begin() {
    let (comms, one, mut sum) = (two(), 1i32, 0i32);
    let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
    // SAFETY: the places are locals.
    unsafe {
        let wrong = pncclAllReduce(send, recv, 1, 99, ncclSum, comms[0], null_mut());
        refused(wrong, ncclInvalidArgument, "99 is no data type");
        ok(pncclCommAbort(comms[1]));
        let watched = Handle(comms[0]);
        let watchdog = std::thread::spawn(move || {
            let comm = { watched }.0;
            let (mut state, begun) = (ncclSuccess, Instant::now());
            while state == ncclSuccess && begun.elapsed().as_secs() < 20 {
                ok(pncclCommGetAsyncError(comm, &mut state));
            }
            (state, last_error(null_mut()), last_error(comm))
        });
        let (state, of_thread, of_comm) = watchdog.join().unwrap();
        assert_eq!(state, ncclRemoteError);
        assert!(
            of_thread.contains("rank 1") && of_comm.contains("rank 1"),
            "{of_thread} {of_comm}"
        );
        let late = pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comms[0], null_mut());
        refused(late, ncclRemoteError, "rank 1");
        ok(pncclCommAbort(comms[0]));
    }
}
