//! Arguments that no correct program passes: refused by name, with nothing written.

use super::*;

/// What is no stream: NULL, a stream that is gone, garbage, an address, a communicator.
fn no_streams(gone: ringStream_t, comm: ringComm_t) -> [ringStream_t; 6] {
    let garbage = |bits: usize| std::ptr::without_provenance_mut(bits);
    let local = 0u64;
    let address = (&raw const local).addr();
    [null_mut(), gone, garbage(1), garbage(usize::MAX), garbage(address), comm.cast()]
}

#[track_caller]
fn is_refused(result: ringResult_t, word: &str) {
    assert_eq!(result, ringInvalidArgument);
    assert!(last_error().contains(word), "{word} is not in: {}", last_error());
}

/// Every function that takes a stream refuses it, and writes nothing.
fn refused_everywhere(stream: ringStream_t, comm: ringComm_t) {
    let (mut mark, mine, mut sum) = (77, 3f32, -1f32);
    let (send, recv) = ((&raw const mine).cast(), (&raw mut sum).cast());
    // SAFETY: the places are locals, and safe for any stream.
    unsafe {
        is_refused(ringStreamSynchronize(stream), "stream");
        is_refused(ringStreamQuery(stream), "stream");
        is_refused(ringStreamMark(stream, &mut mark), "stream");
        is_refused(ringStreamReached(stream, 0, 0), "stream");
        is_refused(ringStreamDestroy(stream), "stream");
        // No stream is what NULL means to a call.
        if !stream.is_null() {
            is_refused(ringAllReduce(send, recv, 1, FLOAT, SUM, comm, stream), "stream");
            is_refused(ringSend(send, 1, FLOAT, 0, comm, stream), "stream");
            is_refused(ringRecv(recv, 1, FLOAT, 0, comm, stream), "stream");
        }
    }
    assert_eq!((mark, sum), (77, -1.0));
}

#[test]
fn what_is_no_stream_is_refused_and_other_streams_go_on() {
    let comm = init_all(1)[0].comm();
    let (mut gone, mut stream, mut count) = (null_mut(), null_mut(), -7);
    let (mine, mut sum) = (3f32, -1f32);
    // SAFETY: the places are locals; the buffers live until the stream is synchronized.
    unsafe {
        succeeds(ringStreamCreate(&mut gone));
        succeeds(ringStreamDestroy(gone));
        // It takes the place of the one that is gone, which the old handle must not lead to.
        succeeds(ringStreamCreate(&mut stream));
        assert_ne!(gone, stream);
        for bad in no_streams(gone, comm) {
            refused_everywhere(bad, comm);
        }
        is_refused(ringStreamCreate(null_mut()), "stream");
        is_refused(ringStreamMark(stream, null_mut()), "mark");
        is_refused(ringCommCount(stream.cast(), &mut count), "communicator");
        assert_eq!(count, -7);
        let (send, recv) = ((&raw const mine).cast(), (&raw mut sum).cast());
        succeeds(ringAllReduce(send, recv, 1, FLOAT, SUM, comm, stream));
        succeeds(ringStreamSynchronize(stream));
        assert_eq!(sum, 3.0);
        succeeds(ringStreamDestroy(stream));
    }
    refused_everywhere(stream, comm);
    destroy(comm);
}

/// An AllToAllv of one rank, `counts` to and from each, from one buffer to itself or to another.
fn all_to_all_v(
    comm: ringComm_t,
    counts: &[usize; 2],
    send: *const f32,
    recv: *mut f32,
) -> ringResult_t {
    let starts = [0, counts[0]];
    let (counts, starts) = (counts.as_ptr(), starts.as_ptr());
    // SAFETY: both buffers hold the elements of both ranks, the arrays a number for each.
    unsafe {
        ringAllToAllv(
            send.cast(),
            counts,
            starts,
            recv.cast(),
            counts,
            starts,
            FLOAT,
            comm,
            null_mut(),
        )
    }
}

#[test]
fn an_all_to_all_v_in_place_is_refused() {
    let all = init_all(2);
    std::thread::scope(|scope| {
        join_all(all.iter().enumerate().map(|(rank, comm)| {
            scope.spawn(move || {
                let counts = [[2, 3], [3, 2]][rank];
                let mut buffer = [rank as f32; 6];
                let place = buffer.as_mut_ptr();
                for recv in [place, place.wrapping_add(1)] {
                    is_refused(all_to_all_v(comm.comm(), &counts, place, recv), "AllToAll");
                    assert!(last_error().contains("overlap"), "{}", last_error());
                }
                assert_eq!(buffer, [rank as f32; 6]);
                // The communicator goes on.
                let mut received = [-1f32; 5];
                let (send, recv) = (buffer.as_ptr(), received.as_mut_ptr());
                succeeds(all_to_all_v(comm.comm(), &counts, send, recv));
                let wanted: Vec<f32> =
                    (0..5).map(|index| f32::from(u8::from(index >= counts[0]))).collect();
                assert_eq!(received[..], wanted);
            })
        }));
    });
    end_all(&all);
}

#[test]
fn a_refusal_names_the_call_the_argument_and_what_would_do() {
    let comm = init_all(1)[0].comm();
    let mut word = 0f32;
    let buffer = (&raw mut word).cast::<c_void>();
    let of = |result, text: &str| {
        assert_eq!(result, ringInvalidArgument);
        assert_eq!(last_error(), format!("invalid argument: {text}"));
    };
    // SAFETY: the buffer is a local; everything else is refused.
    unsafe {
        of(ringCommCount(comm, null_mut()), "ringCommCount: count is NULL; pass an address");
        of(ringCommCount(null_mut(), null_mut()), "ringCommCount: the communicator is NULL");
        let not_a_rank = "is not a rank of this communicator; ranks are 0 to 0";
        let broadcast = ringBroadcast(buffer, buffer, 1, FLOAT, 3, comm, null_mut());
        of(broadcast, &format!("Broadcast: root 3 {not_a_rank}"));
        let sent = ringSend(buffer, 1, FLOAT, -1, comm, null_mut());
        of(sent, &format!("ringSend: peer -1 {not_a_rank}"));
        let unknown = RawDataType(12_345);
        let reduced = ringAllReduce(buffer, buffer, 1, unknown, SUM, comm, null_mut());
        of(reduced, "AllReduce: 12345 is no data type; ringcomm.h lists them");
        let mut all = [null_mut(); 1];
        let made = ringCommInitAll(all.as_mut_ptr(), -1, null());
        of(made, "ringCommInitAll: a communicator of -1 ranks; it needs one at least");
    }
    destroy(comm);
}
