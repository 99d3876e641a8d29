//! Other processes of this machine: whether they live.
//!
//! A process number says nothing about a death, since the next process may get it; a descriptor of
//! the process does. It becomes readable when the process has ended, whoever its parent is, and
//! with its descriptor open no other process is ever mistaken for it.

use crate::error::{Error, Result};
use crate::os::poll::{entry, poll_for};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// A descriptor of this process, for peers to watch.
pub fn own_descriptor() -> Result<OwnedFd> {
    pidfd_open(getpid(), PidfdFlags::empty())
        .map_err(|error| Error::os("watching processes (pidfd_open needs Linux 5.3)", error))
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

    /// Descriptors of the same processes, by rank, for a thread of its own.
    pub fn copies(&self) -> Result<Vec<Option<OwnedFd>>> {
        let copy = |process: &Option<OwnedFd>| process.as_ref().map(OwnedFd::try_clone).transpose();
        let copies: std::io::Result<Vec<_>> = self.processes.iter().map(copy).collect();
        copies.map_err(|_| Error::system("duplicating the descriptor of a process"))
    }

    /// The ranks whose processes have ended. Allocates only if there are any.
    pub fn dead(&self) -> Vec<usize> {
        let mut dead = Vec::new();
        for (batch, processes) in self.processes.chunks(BATCH).enumerate() {
            let mut polled = [entry(-1, libc::POLLIN); BATCH];
            for (entry, process) in polled.iter_mut().zip(processes) {
                // The kernel skips negative descriptors.
                entry.fd = process.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            }
            let ready = poll_for(&mut polled[..processes.len()], Duration::ZERO);
            if ready.is_ok_and(|ready| ready > 0) {
                let ended = |entry: &libc::pollfd| entry.revents & libc::POLLIN != 0;
                let ranks = (0..processes.len()).filter(|index| ended(&polled[*index]));
                dead.extend(ranks.map(|index| batch * BATCH + index));
            }
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Pid;
    use std::process::{Child, Command, Stdio};

    /// A child that waits for the end of its input, which is held here, and its descriptor.
    fn child() -> (Child, OwnedFd) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is there");
        let pid = Pid::from_raw(child.id() as i32).expect("not 0");
        (child, pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    #[test]
    fn the_killed_rank_is_named_and_no_other() {
        let (own, (mut one, first), (mut two, second)) =
            (own_descriptor().unwrap(), child(), child());
        // Ranks in two batches.
        let mut processes: Vec<Option<OwnedFd>> = (0..BATCH + 3).map(|_| None).collect();
        processes[0] = Some(own);
        processes[5] = Some(first);
        processes[BATCH + 2] = Some(second);
        let liveness = Liveness::new(processes);
        assert!(liveness.dead().is_empty());
        // Unreaped ones count as dead too.
        two.kill().unwrap();
        while liveness.dead().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(liveness.dead(), [BATCH + 2]);
        two.wait().unwrap();
        one.kill().unwrap();
        one.wait().unwrap();
        assert_eq!(liveness.dead(), [5, BATCH + 2]);
    }
}
