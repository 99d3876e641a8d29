//! Children: how they are prepared, signalled and reaped, with whatever they started themselves.
//!
//! A rank leads a process group, which is signalled as one. Whoever leaves the group is still a
//! descendant: this process adopts orphans, so that the end of a job can find them all.
#![allow(unsafe_code)]

use crate::protocol::messages::Ended;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Orphans among this process's descendants become its children.
pub fn adopt_orphans() {
    // A kernel that cannot (before 3.4) leaves them to init.
    // SAFETY: the call touches no memory.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// What becomes of a child when this process dies.
#[derive(Clone, Copy, PartialEq)]
pub enum Orphan {
    /// It is killed with its parent.
    Dies,
    /// It notices by itself, and has something to do then.
    Lives,
}

/// Make a command lead a process group of its own, with a clean signal mask, and inherit the
/// descriptor `keep`.
pub fn prepare(command: &mut Command, orphan: Orphan, keep: Option<RawFd>) {
    command.process_group(0);
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec and makes async-signal-safe calls only.
    unsafe {
        command.pre_exec(move || {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            if let Some(fd) = keep
                && libc::fcntl(fd, libc::F_SETFD, 0) < 0
            {
                return Err(io::Error::last_os_error());
            }
            if orphan == Orphan::Dies {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The parent may have died before the request was made.
                if libc::getppid() as u32 != parent {
                    return Err(io::Error::other("the parent is gone"));
                }
            }
            Ok(())
        })
    };
}

/// The user that this process runs as.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Send a signal to a process group whose leader this process started and has not reaped.
pub fn signal_group(leader: u32, signal: i32) {
    // A group that is gone needs no signal.
    // SAFETY: the call touches no memory.
    unsafe { libc::killpg(leader as i32, signal) };
}

/// All children that have ended, reaped, in the order in which their ends are to be told. The
/// kernel gives them as they were started, whoever ended first. So those that a signal ended come
/// first: a rank that is killed has its peers fail, and seldom the other way round.
pub fn reap_all(leads: impl Fn(u32) -> bool) -> Vec<(u32, Ended)> {
    let mut all: Vec<_> = std::iter::from_fn(|| reap(&leads)).collect();
    all.sort_by_key(|(_, ended)| !ended.is_a_kill());
    all
}

/// The next child that has ended, reaped. If `leads` names it, what is left of its process group is
/// killed, while the number still is the group's. An adopted child's group is none of our business:
/// a daemon may go on in it.
fn reap(leads: impl Fn(u32) -> bool) -> Option<(u32, Ended)> {
    // SAFETY: the record is plain numbers.
    let mut record: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the record is ours.
    if unsafe { libc::waitid(libc::P_ALL, 0, &mut record, flags) } != 0 {
        return None;
    }
    // SAFETY: waitid filled in the fields for a child, or left them zero.
    let pid = unsafe { record.si_pid() };
    if pid == 0 {
        return None;
    }
    if leads(pid as u32) {
        signal_group(pid as u32, libc::SIGKILL);
    }
    let mut status = 0;
    // SAFETY: `status` is a live integer.
    if unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } != pid {
        return None;
    }
    let ended = if libc::WIFSIGNALED(status) {
        Ended::Signal(libc::WTERMSIG(status))
    } else {
        Ended::Code(libc::WEXITSTATUS(status))
    };
    Some((pid as u32, ended))
}

/// The children of this process, adopted ones included.
fn children() -> Vec<u32> {
    let own = std::process::id();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_own = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may hold anything; the parent is the second field after it.
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        after.split_whitespace().nth(1).and_then(|field| field.parse().ok()) == Some(own)
    };
    numbers.filter(is_own).collect()
}

/// Kill every descendant that `chosen` names, generation by generation: the children of a dead
/// child become ours.
pub fn kill_descendants(chosen: impl Fn(u32) -> bool) {
    // What sleeps in the kernel dies when it wakes up, which may be never: a second is enough for
    // everybody else.
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        let children: Vec<u32> = children().into_iter().filter(|pid| chosen(*pid)).collect();
        if children.is_empty() || Instant::now() > until {
            return;
        }
        for pid in children {
            // SAFETY: the call touches no memory. The child is not reaped, so the number is its.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        // Nothing else is going on, and the end of a process takes a fraction of this.
        std::thread::sleep(Duration::from_millis(1));
        reap_all(|_| false);
    }
}

/// Whether a process was started with a variable.
pub fn has_variable(pid: u32, name: &str, value: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|entry| entry == format!("{name}={value}").as_bytes())
}

/// `N` bytes from the kernel's generator, as hexadecimal digits.
pub fn random_hex<const N: usize>() -> io::Result<String> {
    let mut bytes = [0u8; N];
    // Up to 256 bytes come whole and uninterrupted, once the generator is seeded.
    assert!(N <= 256);
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
