//! Threads that take none of the program's signals: those are for the program's own threads.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::{io, ptr, thread};

/// What a thread does to itself. Blocked, it ends the program past the program's own handler.
const ITS_OWN: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];

/// Start a thread that signals to the process pass by. It inherits that, so there is no moment in
/// which it takes one.
pub fn spawn_deaf(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills the set that the others change and read; the last fills the one
    // that is given back below.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for signal in ITS_OWN {
            libc::sigdelset(blocked.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
    }
    let started = thread::Builder::new().name(name.into()).spawn(work);
    // SAFETY: the set that was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that the calling thread blocks, as bits.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn the_thread_takes_no_signal_of_the_program_and_who_starts_it_all_as_before() {
        let before = blocked();
        let bit = |signal: i32| 1 << (signal - 1);
        let thread = spawn_deaf("deaf", move || {
            let found = blocked();
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGCHLD] {
                assert_ne!(found & bit(signal), 0, "{signal}");
            }
            assert_eq!(found & bit(libc::SIGSEGV), before & bit(libc::SIGSEGV));
        });
        thread.unwrap().join().unwrap();
        assert_eq!(blocked(), before);
    }
}
