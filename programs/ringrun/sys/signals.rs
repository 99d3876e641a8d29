//! Signals as something to read, and their names.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Signals of this process that arrive through a descriptor.
pub struct Signals(OwnedFd);

impl Signals {
    /// Take these signals, except those that whoever started this process had it ignore: `nohup`
    /// means the job too. To be called before the first thread is made.
    pub fn take(wanted: &[i32]) -> io::Result<Signals> {
        // SAFETY: a signal set is plain bits, and all-zero is initialised by the call below.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is ours.
        unsafe { libc::sigemptyset(&mut set) };
        for signal in wanted.iter().filter(|signal| !is_ignored(**signal)) {
            // SAFETY: the set is ours.
            unsafe { libc::sigaddset(&mut set, *signal) };
        }
        // SAFETY: the set is initialised; a null pointer means that the old mask is not wanted.
        if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor, owned by nobody else.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next one that has arrived.
    pub fn next(&self) -> Option<i32> {
        // SAFETY: the record is plain numbers.
        let mut record: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&record);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.0);
        // SAFETY: the record has room for the bytes that are asked for.
        let got = unsafe { libc::read(fd, (&raw mut record).cast(), size) };
        (got == size as isize).then_some(record.ssi_signo as i32)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a signal is ignored. A child's end is always wanted, so that one is reset instead.
fn is_ignored(signal: i32) -> bool {
    if signal == libc::SIGCHLD {
        // SAFETY: restores the default; no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return false;
    }
    // SAFETY: the record is plain bits, written by the call.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null pointer changes nothing; the record is ours.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0;
    known && action.sa_sigaction == libc::SIG_IGN
}

/// Stop this process as the terminal would.
pub fn stop_here() {
    // SAFETY: no memory is touched.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// `9 (SIGKILL)`.
pub fn describe(signal: i32) -> String {
    const NAMES: [(i32, &str); 31] = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGSTKFLT, "SIGSTKFLT"),
        (libc::SIGCHLD, "SIGCHLD"),
        (libc::SIGCONT, "SIGCONT"),
        (libc::SIGSTOP, "SIGSTOP"),
        (libc::SIGTSTP, "SIGTSTP"),
        (libc::SIGTTIN, "SIGTTIN"),
        (libc::SIGTTOU, "SIGTTOU"),
        (libc::SIGURG, "SIGURG"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGVTALRM, "SIGVTALRM"),
        (libc::SIGPROF, "SIGPROF"),
        (libc::SIGWINCH, "SIGWINCH"),
        (libc::SIGIO, "SIGIO"),
        (libc::SIGPWR, "SIGPWR"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    match NAMES.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => format!("{signal} ({name})"),
        None => signal.to_string(),
    }
}
