//! Other processes of this machine: whether they live, and reading their memory.
//!
//! A process number says nothing about a death, since the next process may get it; a descriptor of
//! the process does. It becomes readable when the process has ended, whoever its parent is, and
//! with its descriptor open no other process is ever mistaken for it.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor of this process, for peers to watch.
pub fn own_descriptor() -> Result<OwnedFd> {
    // SAFETY: the call takes two numbers; the descriptor that comes back is ours.
    unsafe {
        let raw = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        if raw < 0 {
            return Err(Error::system("watching processes (pidfd_open needs Linux 5.3)"));
        }
        Ok(OwnedFd::from_raw_fd(raw as libc::c_int))
    }
}

/// Watches the processes of other ranks.
pub struct Liveness {
    /// By rank; `None` for ranks that live and die with this process.
    processes: Vec<Option<OwnedFd>>,
}

/// Descriptors asked about in one system call; the array lives on the stack.
const BATCH: usize = 128;

impl Liveness {
    /// Watch the processes behind these descriptors, by rank.
    pub fn new(processes: Vec<Option<OwnedFd>>) -> Liveness {
        Liveness { processes }
    }

    /// The ranks whose processes have ended. Allocates only if there are any.
    pub fn dead(&self) -> Vec<usize> {
        let mut dead = Vec::new();
        for (batch, processes) in self.processes.chunks(BATCH).enumerate() {
            let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; BATCH];
            for (entry, process) in polled.iter_mut().zip(processes) {
                // The kernel skips negative descriptors.
                entry.fd = process.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            }
            // SAFETY: the array has that many entries.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), processes.len() as _, 0) };
            if ready > 0 {
                let ended = |entry: &libc::pollfd| entry.revents & libc::POLLIN != 0;
                let ranks = (0..processes.len()).filter(|index| ended(&polled[*index]));
                dead.extend(ranks.map(|index| batch * BATCH + index));
            }
        }
        dead
    }
}

/// Copy memory of another process into `buffer`; fails where the kernel forbids it.
///
/// The other process must keep the memory as it is meanwhile, or what arrives is a mixture.
pub fn read_remote(pid: u32, address: u64, buffer: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address as usize + done),
            iov_len: rest.len(),
        };
        // SAFETY: the local range is ours; the kernel checks the remote one.
        let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match usize::try_from(read) {
            Ok(bytes) if bytes > 0 => done += bytes,
            _ => return Err(Error::system(format!("reading memory of process {pid}"))),
        }
    }
    Ok(())
}

/// Whether the kernel lets this process read `address` of process `pid`, where a word `expected`
/// lies.
///
/// The word shows that the number means the same process here as there (it may not, in containers).
pub fn can_read_remote(pid: u32, address: u64, expected: u64) -> bool {
    let mut word = [0; 8];
    read_remote(pid, address, &mut word).is_ok() && u64::from_ne_bytes(word) == expected
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that waits to be killed.
    fn child() -> (libc::pid_t, OwnedFd) {
        // SAFETY: the child only makes system calls; its descriptor is ours.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::pause();
                libc::_exit(1);
            }
            let raw = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            (pid, OwnedFd::from_raw_fd(raw as libc::c_int))
        }
    }

    #[test]
    fn the_killed_rank_is_named_and_no_other() {
        let (own, (one, first), (two, second)) = (own_descriptor().unwrap(), child(), child());
        // Ranks in two batches.
        let mut processes: Vec<Option<OwnedFd>> = (0..BATCH + 3).map(|_| None).collect();
        processes[0] = Some(own);
        processes[5] = Some(first);
        processes[BATCH + 2] = Some(second);
        let liveness = Liveness::new(processes);
        assert!(liveness.dead().is_empty());
        // SAFETY: both are children of this test. Unreaped ones count as dead too.
        unsafe { libc::kill(two, libc::SIGKILL) };
        while liveness.dead().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(liveness.dead(), [BATCH + 2]);
        // SAFETY: as above.
        unsafe {
            libc::waitpid(two, std::ptr::null_mut(), 0);
            libc::kill(one, libc::SIGKILL);
            libc::waitpid(one, std::ptr::null_mut(), 0);
        }
        assert_eq!(liveness.dead(), [5, BATCH + 2]);
    }

    #[test]
    fn a_childs_memory_is_read_or_refused_but_never_misread() {
        let word = Box::new(0x1234_5678_9abc_def0_u64);
        let address = std::ptr::from_ref(&*word).expose_provenance() as u64;
        let (pid, _descriptor) = child();
        let pid = pid as u32;
        let permitted = can_read_remote(pid, address, *word);
        assert!(!can_read_remote(pid, address, 1));
        assert!(read_remote(pid, 8, &mut [0; 8]).is_err());
        let mut copy = [0; 8];
        assert_eq!(read_remote(pid, address, &mut copy).is_ok(), permitted);
        assert_eq!(u64::from_ne_bytes(copy) == *word, permitted);
        // SAFETY: the child of this test.
        unsafe {
            libc::kill(pid as libc::pid_t, libc::SIGKILL);
            libc::waitpid(pid as libc::pid_t, std::ptr::null_mut(), 0);
        }
        assert!(!can_read_remote(pid, address, *word));
    }
}
