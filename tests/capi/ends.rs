//! The ends of communicators: finalized, destroyed with work to do, aborted meanwhile.

use super::*;

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
