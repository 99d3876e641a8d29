//! Calls at moments when the language's own conveniences panic.

use super::*;
use ringcomm::sync::locks_taken;

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
