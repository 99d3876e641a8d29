//! The ends of communicators: finalized, destroyed with work to do, aborted meanwhile.

use super::*;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn abort_reaches_a_destroy_that_waits_for_a_stream() {
    let all = init_all(2);
    let (mut stream, mine, mut sum) = (null_mut(), 1f32, 0f32);
    // SAFETY: the buffers live until the stream is gone. Rank 1 never makes this call.
    unsafe {
        succeeds(ringStreamCreate(&mut stream));
        let (send, recv) = ((&raw const mine).cast(), (&raw mut sum).cast());
        succeeds(ringAllReduce(send, recv, 1, FLOAT, SUM, all[0].comm(), stream));
    }
    let waiting = all[0];
    // SAFETY: safe for any argument.
    let destroyer = std::thread::spawn(move || unsafe { ringCommDestroy(waiting.comm()) });
    let mut count = 0;
    // SAFETY: a local. Until the destroyer has barred the handle, the answer is a success.
    while unsafe { ringCommCount(waiting.comm(), &mut count) } == ringSuccess {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(!destroyer.is_finished());
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringCommAbort(waiting.comm()) });
    assert_eq!(destroyer.join().unwrap(), ringAborted);
    // SAFETY: safe for any argument.
    unsafe {
        assert_eq!(ringCommAbort(waiting.comm()), ringInvalidArgument);
        assert_eq!(ringStreamDestroy(stream), ringAborted);
    }
    destroy(all[1].comm());
}

/// Calls that [`abort_behind`]'s thread has put behind the first.
static QUEUED: AtomicUsize = AtomicUsize::new(0);

/// Let a stream's first call wait for ever, and put calls of another communicator behind it; gives
/// the first communicator, and what `abort` of the second made of `end` called meanwhile.
fn abort_behind(end: impl FnOnce(ringComm_t, ringStream_t) -> ringResult_t + Send) {
    let (stuck, behind) = (init_all(2), init_all(2));
    let (mut stream, mine, mut sum) = (null_mut(), 1f32, 0f32);
    // SAFETY: the buffers live until the stream is gone. Rank 1 never makes this call.
    unsafe {
        succeeds(ringStreamCreate(&mut stream));
        let (send, recv) = ((&raw const mine).cast(), (&raw mut sum).cast());
        succeeds(ringAllReduce(send, recv, 1, FLOAT, SUM, stuck[0].comm(), stream));
    }
    let (waiting, queue) = (behind[0], Handle(stream.cast()));
    std::thread::scope(|scope| {
        let ended = scope.spawn(move || end(waiting.comm(), queue.comm().cast()));
        // Until it queues no more calls and waits.
        let (mut queued, mut unchanged) = (0, 0);
        while unchanged < 5 {
            std::thread::sleep(Duration::from_millis(100));
            let now = QUEUED.load(SeqCst);
            unchanged = if now > 0 && now == queued { unchanged + 1 } else { 0 };
            queued = now;
        }
        assert!(!ended.is_finished());
        // SAFETY: safe for any argument.
        succeeds(unsafe { ringCommAbort(waiting.comm()) });
        QUEUED.store(0, SeqCst);
        assert_eq!(ended.join().unwrap(), ringAborted);
    });
    // SAFETY: safe for any argument.
    unsafe {
        // Only then the first call is ended.
        assert_eq!(ringStreamQuery(stream), ringInProgress);
        succeeds(ringCommAbort(stuck[0].comm()));
        assert_eq!(ringStreamDestroy(stream), ringAborted);
    }
    assert_eq!(sum, 0.0);
    destroy(stuck[1].comm());
    destroy(behind[1].comm());
}

#[test]
fn abort_ends_what_waits_behind_another_communicator() {
    let queue = |comm: ringComm_t, stream: ringStream_t| {
        let buffer = Box::leak(Box::new([1f32])).as_mut_ptr();
        let buffer = buffer.cast();
        // SAFETY: the buffer lives for ever.
        let result = unsafe { ringAllReduce(buffer, buffer, 1, FLOAT, SUM, comm, stream) };
        QUEUED.fetch_add(usize::from(result == ringSuccess), SeqCst);
        result
    };
    abort_behind(|comm, stream| {
        succeeds(queue(comm, stream));
        // SAFETY: safe for any argument.
        unsafe { ringCommDestroy(comm) }
    });
    abort_behind(|comm, stream| {
        succeeds(queue(comm, stream));
        // SAFETY: safe for any argument.
        unsafe { ringCommFinalize(comm) }
    });
    // As many calls as the stream takes, and one that waits for a place.
    abort_behind(|comm, stream| {
        loop {
            let result = queue(comm, stream);
            if result != ringSuccess {
                return result;
            }
        }
    });
}

#[test]
fn a_finalized_communicator_answers_questions_and_takes_no_calls() {
    let all = init_all(2);
    let (mine, mut sum) = (1f32, 0f32);
    let (send, recv) = ((&raw const mine).cast(), (&raw mut sum).cast());
    // SAFETY: the buffers hold one element, the places are locals.
    unsafe {
        succeeds(ringCommFinalize(all[0].comm()));
        for _ in 0..2 {
            let refused = ringAllReduce(send, recv, 1, FLOAT, SUM, all[0].comm(), null_mut());
            assert_eq!(refused, ringInvalidUsage);
            assert!(last_error().contains("finalized"), "{}", last_error());
        }
        let mut child = null_mut();
        let refused = ringCommSplit(all[0].comm(), 0, 0, &mut child, null_mut());
        assert_eq!((refused, child), (ringInvalidUsage, null_mut()));
        let (mut count, mut error) = (0, ringInternalError);
        succeeds(ringCommCount(all[0].comm(), &mut count));
        succeeds(ringCommGetAsyncError(all[0].comm(), &mut error));
        assert_eq!((count, error, sum), (2, ringSuccess, 0.0));
        succeeds(ringCommFinalize(all[0].comm()));
    }
    end_all(&all);
}

/// Queue calls on a stream, then destroy the communicator: the calls are done by then.
fn queue_and_destroy(rank: usize, comm: ringComm_t) {
    const CALLS: usize = 100;
    const COUNT: usize = 1000;
    let send: Vec<f32> = (0..CALLS * COUNT).map(|i| (i % 1013) as f32 + rank as f32).collect();
    let mut recv = vec![0f32; CALLS * COUNT];
    let mut stream = null_mut();
    // One rank is late, so that the other one's calls are still queued when it destroys.
    std::thread::sleep(Duration::from_millis(if rank == 0 { 0 } else { 100 }));
    // SAFETY: the buffers outlive the stream.
    unsafe {
        succeeds(ringStreamCreate(&mut stream));
        for (send, recv) in send.chunks(COUNT).zip(recv.chunks_mut(COUNT)) {
            let (send, recv) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
            succeeds(ringAllReduce(send, recv, COUNT, FLOAT, SUM, comm, stream));
        }
        destroy(comm);
    }
    for (i, sum) in recv.iter().enumerate() {
        assert_eq!(*sum, 2.0 * (i % 1013) as f32 + 1.0, "element {i}");
    }
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringStreamDestroy(stream) });
}

#[test]
fn destroy_completes_what_is_queued_on_threads() {
    let all = init_all(2);
    std::thread::scope(|scope| {
        join_all(
            all.iter()
                .enumerate()
                .map(|(rank, comm)| scope.spawn(move || queue_and_destroy(rank, comm.comm()))),
        );
    });
}

#[test]
fn destroy_completes_what_is_queued_in_processes() {
    in_processes(2, |seat, _| {
        queue_and_destroy(seat.rank, join(seat, 0));
        String::new()
    });
}

#[test]
fn destroying_what_the_open_group_still_needs_is_refused() {
    let comm = init_all(1)[0].comm();
    let (mine, mut sum) = (3f32, 0f32);
    let (send, recv) = ((&raw const mine).cast(), (&raw mut sum).cast());
    succeeds(ringGroupStart());
    // SAFETY: the buffers live until the group's end.
    unsafe {
        succeeds(ringAllReduce(send, recv, 1, FLOAT, SUM, comm, null_mut()));
        assert_eq!(ringCommFinalize(comm), ringInvalidUsage);
        assert_eq!(ringCommDestroy(comm), ringInvalidUsage);
    }
    assert!(last_error().contains("ringGroupEnd"), "{}", last_error());
    succeeds(ringGroupEnd());
    assert_eq!(sum, 3.0);
    destroy(comm);
}

/// Bytes that take a copy some milliseconds, far longer than a handle takes to be destroyed.
const LONG: usize = 64 << 20;

/// Let rank 0 copy `LONG` bytes to itself, on a stream or in a group of another thread, end its
/// communicator in the middle of that, and see that the copy was over when that returned.
fn end_in_the_middle(on_stream: bool, end: impl FnOnce(ringComm_t)) {
    let all = init_all(2);
    let sent = vec![7u8; LONG];
    let mut received = vec![0u8; LONG];
    let place = received.as_mut_ptr();
    // SAFETY: both lie in the buffer, which outlives all uses; another thread writes there.
    let byte_at = |index: usize| unsafe { place.add(index).read_volatile() };
    let (mine, send, recv) = (all[0], sent.as_ptr().addr(), place.expose_provenance());
    let copy = move |stream: ringStream_t| {
        let (send, recv) =
            (std::ptr::with_exposed_provenance(send), std::ptr::with_exposed_provenance_mut(recv));
        succeeds(ringGroupStart());
        // SAFETY: the buffers outlive the copy.
        unsafe {
            succeeds(ringSend(send, LONG, BYTE, 0, mine.comm(), stream));
            succeeds(ringRecv(recv, LONG, BYTE, 0, mine.comm(), stream));
        }
        ringGroupEnd()
    };
    sent.as_ptr().expose_provenance();
    // A peer that has failed.
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringCommAbort(all[1].comm()) });
    std::thread::scope(|scope| {
        let mut stream = null_mut();
        if on_stream {
            // SAFETY: a local.
            succeeds(unsafe { ringStreamCreate(&mut stream) });
            succeeds(copy(stream));
        } else {
            scope.spawn(move || copy(null_mut()));
        }
        while byte_at(0) == 0 {
            std::hint::spin_loop();
        }
        end(mine.comm());
        assert_eq!(byte_at(LONG - 1), 7, "the copy still runs");
        if on_stream {
            // SAFETY: safe for any argument.
            unsafe { ringStreamDestroy(stream) };
        }
    });
}

#[test]
fn what_runs_is_over_when_a_broken_communicator_is_gone() {
    for on_stream in [true, false] {
        end_in_the_middle(on_stream, destroy);
        // SAFETY: safe for any argument.
        end_in_the_middle(on_stream, |comm| succeeds(unsafe { ringCommAbort(comm) }));
    }
}

#[test]
fn what_waits_behind_a_broken_communicator_s_end_touches_no_buffer() {
    let (stuck, broken) = (init_all(2), init_all(2));
    let (mut stream, mine, mut sum, mut untouched) = (null_mut(), 1f32, 0f32, 0f32);
    let send = (&raw const mine).cast();
    // SAFETY: the buffers live until the stream is gone. Rank 1 of `stuck` never makes this call.
    unsafe {
        let place = (&raw mut sum).cast();
        succeeds(ringStreamCreate(&mut stream));
        succeeds(ringAllReduce(send, place, 1, FLOAT, SUM, stuck[0].comm(), stream));
        let place = (&raw mut untouched).cast();
        succeeds(ringGroupStart());
        succeeds(ringSend(send, 1, FLOAT, 0, broken[0].comm(), stream));
        succeeds(ringRecv(place, 1, FLOAT, 0, broken[0].comm(), stream));
        succeeds(ringGroupEnd());
        succeeds(ringCommAbort(broken[1].comm()));
        destroy(broken[0].comm());
        succeeds(ringCommAbort(stuck[0].comm()));
        assert_eq!(ringStreamDestroy(stream), ringAborted);
    }
    assert_eq!((sum, untouched), (0.0, 0.0));
    destroy(stuck[1].comm());
}
