//! Threads and what may interrupt them: signals of the program, and its cancelling of a thread.
#![allow(unsafe_code)]

use std::marker::PhantomData;
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

/// What the kernel sends a thread for a write that cannot be: past a limit of sizes, to a pipe or
/// socket that nobody reads.
const OF_WRITES: [libc::c_int; 2] = [libc::SIGXFSZ, libc::SIGPIPE];

/// Do something that makes files grow or writes to whatever the program has for its errors. Where
/// that cannot be, it is an error here, and no signal ends the program for it.
pub fn without_size_signal<T>(work: impl FnOnce() -> T) -> T {
    let mut ours = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: each set is filled before it is read, here or below.
    unsafe {
        libc::sigemptyset(ours.as_mut_ptr());
        for signal in OF_WRITES {
            libc::sigaddset(ours.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, ours.as_ptr(), before.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
    }
    let result = work();
    // SAFETY: the sets above; no place for what is known of a signal is given.
    unsafe {
        for signal in OF_WRITES {
            // One that was there before is the program's.
            if libc::sigismember(pending.as_ptr(), signal) == 0 {
                let mut one = MaybeUninit::<libc::sigset_t>::uninit();
                libc::sigemptyset(one.as_mut_ptr());
                libc::sigaddset(one.as_mut_ptr(), signal);
                let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                libc::sigtimedwait(one.as_ptr(), ptr::null_mut(), &now);
            }
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
    }
    result
}

/// Do `work`, which may set handlers for signals (UCX's libraries did before 1.20 as they were
/// loaded), and leave the program its own.
pub fn with_own_signals<T>(work: impl FnOnce() -> T) -> T {
    let handled = [libc::SIGILL, libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV];
    let own = handled.map(|signal| {
        // SAFETY: all zeros are an action, which the call then fills in.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the action is one to be written.
        unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        (signal, action)
    });
    let done = work();
    for (signal, action) in own {
        // SAFETY: the action is what was in force before.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
    done
}

/// While it lives, a write to a pipe or socket that nobody reads raises no signal in the calling
/// thread: for code of others that does not ask the kernel for that.
pub struct NoPipeSignal {
    before: libc::sigset_t,
    /// One that waits already is the program's.
    is_pending: bool,
    /// It is the thread's.
    _stays: PhantomData<*const ()>,
}

/// The set of the one signal.
fn pipe_signal() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

impl NoPipeSignal {
    pub fn begin() -> NoPipeSignal {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the calls fill the sets that are read here and kept.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &pipe_signal(), before.as_mut_ptr());
            let before = before.assume_init();
            // Where it was not blocked, none can have waited.
            let is_pending = libc::sigismember(&before, libc::SIGPIPE) == 1
                && libc::sigpending(pending.as_mut_ptr()) == 0
                && libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1;
            NoPipeSignal { before, is_pending, _stays: PhantomData }
        }
    }
}

impl Drop for NoPipeSignal {
    fn drop(&mut self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the sets are filled; no place for what is known of a signal is given.
        unsafe {
            if !self.is_pending {
                libc::sigtimedwait(&pipe_signal(), ptr::null_mut(), &now);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut());
        }
    }
}

/// Say something on the program's standard error, whatever that is.
pub fn say(text: &str) {
    use std::io::Write;
    // Nobody may be reading any more: that changes no result.
    let _ = without_size_signal(|| writeln!(io::stderr(), "{text}"));
}

/// A number of the calling thread that no other one has while it runs; never 0. It costs one load,
/// and a signal handler may ask.
#[inline]
pub fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let block: usize;
        // SAFETY: the thread's control block begins with its own address (x86-64 psABI, TLS).
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) block, options(nostack, pure, readonly))
        };
        block
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: no arguments, cannot fail.
        unsafe { libc::pthread_self() as usize }
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// PTHREAD_CANCEL_DISABLE of glibc and musl.
const DISABLE: libc::c_int = 1;

/// While it lives, the calling thread is not cancelled: cancelling unwinds, which would end the
/// process in the library's code. What is asked for meanwhile happens afterwards, in the program's.
pub struct NoCancel(libc::c_int);

impl NoCancel {
    pub fn begin() -> NoCancel {
        let mut before = 0;
        // SAFETY: the place is live; the state is one of the two.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        NoCancel(before)
    }
}

impl Drop for NoCancel {
    fn drop(&mut self) {
        // SAFETY: the state that the thread had.
        unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
    }
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

    /// Send the calling thread a signal of a pipe, as a write does; whether one waits.
    fn raise_and_look(raises: bool) -> bool {
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the thread is this one; the call fills the set.
        unsafe {
            if raises {
                libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE);
            }
            libc::sigpending(pending.as_mut_ptr());
            libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
        }
    }

    #[test]
    fn handlers_that_a_library_sets_are_taken_back() {
        // SAFETY: to ignore a signal that nobody raises changes nothing else.
        let ignored = || unsafe { libc::signal(libc::SIGFPE, libc::SIG_IGN) };
        let before = with_own_signals(ignored);
        assert_eq!(ignored(), before);
        // SAFETY: it is what was in force.
        unsafe { libc::signal(libc::SIGFPE, before) };
    }

    #[test]
    fn a_signal_of_a_pipe_is_taken_unless_the_program_waits_for_it() {
        let before = blocked();
        let guard = NoPipeSignal::begin();
        assert!(raise_and_look(true));
        drop(guard);
        assert!(!raise_and_look(false));
        assert_eq!(blocked(), before);
        // The program blocks it, first without one that waits.
        // SAFETY: a filled set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &pipe_signal(), ptr::null_mut()) };
        let guard = NoPipeSignal::begin();
        assert!(raise_and_look(true));
        drop(guard);
        assert!(!raise_and_look(false));
        assert!(raise_and_look(true));
        drop(NoPipeSignal::begin());
        assert!(raise_and_look(false), "it is the program's");
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: takes the one that waits.
        unsafe { libc::sigtimedwait(&pipe_signal(), ptr::null_mut(), &now) };
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
