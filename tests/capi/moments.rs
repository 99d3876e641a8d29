//! Calls at moments when the language's own conveniences panic.

use super::*;
use ringcomm::ffi::comm::explain::*;
use ringcomm::sync::locks_taken;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Makes a call that is refused when its thread ends, after the library's own storage is gone.
struct AtTheEnd;

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        // SAFETY: refused before anything is touched.
        let result =
            unsafe { ringAllReduce(null(), null_mut(), 1, FLOAT, SUM, null_mut(), null_mut()) };
        assert_eq!(result, ringInvalidArgument);
    }
}

thread_local! {
    static AT_THE_END: AtTheEnd = const { AtTheEnd };
}

#[test]
fn a_refused_call_from_a_threads_last_destructor_is_an_error_and_no_abort() {
    in_processes(1, |_, _| {
        let thread = std::thread::spawn(|| {
            // What is touched first is destroyed last.
            AT_THE_END.with(|_| {});
            succeeds(ringGroupStart());
            succeeds(ringGroupEnd());
        });
        thread.join().unwrap();
        String::new()
    });
}

#[test]
fn a_closed_standard_error_fails_no_call() {
    in_processes(1, |seat, _| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        // SAFETY: both descriptors are open; this process has one thread that prints.
        assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&writer), 2) }, 2);
        // SAFETY: no other thread of this process reads the environment.
        unsafe { std::env::set_var("RINGCOMM_DEBUG", "2") };
        let comm = join(seat, 2);
        assert_eq!(gather(comm, 7), [7]);
        // SAFETY: refused or safe for any argument.
        unsafe {
            assert_eq!(
                ringAllReduce(null(), null_mut(), 1, FLOAT, SUM, comm, null_mut()),
                ringInvalidArgument
            );
            assert_eq!(ringCommFinalize(null_mut()), ringInvalidArgument);
        }
        destroy(comm);
        String::new()
    });
}

#[test]
fn a_call_that_was_made_before_takes_no_lock() {
    let all = init_all(2);
    std::thread::scope(|scope| {
        join_all(all.iter().enumerate().map(|(rank, comm)| {
            scope.spawn(move || {
                assert_eq!(gather(comm.comm(), rank as i32), [0, 1]);
                let before = locks_taken();
                for _ in 0..5 {
                    assert_eq!(gather(comm.comm(), rank as i32), [0, 1]);
                }
                assert_eq!(locks_taken(), before);
            })
        }));
    });
    end_all(&all);
}

/// The flight record of a communicator.
fn dump(comm: ringComm_t) -> String {
    let (mut text, mut needed) = (vec![0u8; 1 << 20], 0);
    // SAFETY: the buffer has so many bytes.
    succeeds(unsafe { ringCommDump(comm, text.as_mut_ptr().cast(), text.len(), &mut needed) });
    String::from_utf8_lossy(&text[..needed - 1]).into_owned()
}

#[test]
fn how_a_call_would_run_is_said_while_another_hangs() {
    let all = init_all(2);
    let (hanging, over) = (all[0], AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 1f32;
            let buffer = (&raw mut value).cast::<c_void>();
            // SAFETY: one element. Rank 1 never calls.
            let result =
                unsafe { ringAllReduce(buffer, buffer, 1, FLOAT, SUM, hanging.comm(), null_mut()) };
            over.store(true, SeqCst);
            assert_eq!(result, ringAborted);
        });
        while !dump(hanging.comm()).contains("AllReduce") {
            std::thread::yield_now();
        }
        let collective = RawCollective(ringCollective_t::ringCollBroadcast as i32);
        // SAFETY: all of its fields are numbers; the call reads and writes this one only.
        let (result, answer) = unsafe {
            let mut answer: ringExplain_t = std::mem::zeroed();
            (answer.size, answer.magic) = (size_of::<ringExplain_t>(), RING_MAGIC);
            let comm = hanging.comm();
            (ringCommExplain(comm, collective, 5, FLOAT, SUM, 1, &mut answer), answer)
        };
        succeeds(result);
        assert!(!over.load(SeqCst), "it waited for the call that hangs");
        assert!(answer.algorithm[0] != 0 && answer.predictedUs > 0.0);
        // SAFETY: safe for any argument.
        succeeds(unsafe { ringCommAbort(hanging.comm()) });
    });
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringCommAbort(all[1].comm()) });
}
