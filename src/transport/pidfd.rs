//! Other processes of this machine: whether they live.
//!
//! A process number says nothing about a death, since the next process may get it; a descriptor of
//! the process does. It becomes readable when the process has ended, whoever its parent is, and
//! with its descriptor open no other process is ever mistaken for it.
//!
//! Where the system refuses such descriptors, and for a process that becomes another program, there
//! is a second sign: a rank holds one end of a socket pair, its mailbox, which the kernel closes
//! with the process or at `execve`.

use crate::error::{Error, Result};
use crate::os::descriptors::above_stdio;
use crate::os::poll::{entry, poll_for};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A descriptor of this process, for peers to watch; `None` where the system refuses it: Linux
/// before 5.3, and some containers.
pub fn own_descriptor() -> Option<OwnedFd> {
    pidfd_open(getpid(), PidfdFlags::empty()).and_then(above_stdio).ok()
}

/// A process of this machine whose memory the kernel may read for this one, as the kernel names it:
/// never a number that somebody wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadableProcess(NonZeroU32);

impl ReadableProcess {
    /// The process behind a descriptor that a peer sent, where `told`, the number that the kernel
    /// gave for the peer's own connection, is its number, too. `None` where this process cannot see
    /// it, as from another container, or it has ended.
    pub fn of(descriptor: &OwnedFd, told: u32) -> Result<Option<ReadableProcess>> {
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        // Without this file nothing is known of any process.
        let Ok(text) = std::fs::read_to_string(path) else { return Ok(None) };
        let number = text.lines().find_map(|line| line.strip_prefix("Pid:"));
        let number = number.ok_or_else(|| {
            Error::usage("a peer sent a descriptor that is no process's as that of its process")
        })?;
        let number = number.trim().parse::<u32>().ok().filter(|number| *number == told);
        let number = number.filter(|number| *number != std::process::id());
        Ok(number.and_then(NonZeroU32::new).map(ReadableProcess))
    }

    /// This one, for ranks that the kernel says are threads of it.
    pub fn this() -> ReadableProcess {
        ReadableProcess(NonZeroU32::new(std::process::id()).expect("not 0"))
    }

    /// Its number, for the kernel.
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

/// Watches the processes of other ranks.
pub struct Liveness {
    /// By rank; `None` for ranks that live and die with this process, and where the rank has no
    /// such descriptor.
    processes: Vec<Option<OwnedFd>>,
    /// By rank: the other end is its mailbox.
    lifelines: Vec<Option<Arc<OwnedFd>>>,
}

/// Descriptors asked about in one system call; the array lives on the stack.
const BATCH: usize = 128;

impl Liveness {
    /// Watch the processes behind these descriptors, by rank.
    pub fn new(processes: Vec<Option<OwnedFd>>) -> Liveness {
        Liveness { processes, lifelines: Vec::new() }
    }

    /// Watch the other ends of these sockets, too.
    pub fn with_lifelines(self, lifelines: Vec<Option<Arc<OwnedFd>>>) -> Liveness {
        Liveness { lifelines, ..self }
    }

    /// The ranks whose mailboxes are closed: they have ended their part, or their process has, or
    /// it is another program now. Allocates only if there are any.
    pub fn cut(&self) -> Vec<usize> {
        ended(&self.lifelines, |lifeline| lifeline.as_raw_fd())
    }

    /// Descriptors of the same processes, by rank, for a thread of its own.
    pub fn copies(&self) -> Result<Vec<Option<OwnedFd>>> {
        let copy = |process: &Option<OwnedFd>| process.as_ref().map(OwnedFd::try_clone).transpose();
        let copies: std::io::Result<Vec<_>> = self.processes.iter().map(copy).collect();
        copies.map_err(|_| Error::system("duplicating the descriptor of a process"))
    }

    /// The ranks whose processes have ended. Allocates only if there are any.
    pub fn dead(&self) -> Vec<usize> {
        ended(&self.processes, AsRawFd::as_raw_fd)
    }
}

/// The ranks whose descriptors say that something has ended: they become readable then.
fn ended<T>(descriptors: &[Option<T>], raw: impl Fn(&T) -> RawFd) -> Vec<usize> {
    let mut ended = Vec::new();
    for (batch, descriptors) in descriptors.chunks(BATCH).enumerate() {
        let mut polled = [entry(-1, libc::POLLIN); BATCH];
        for (entry, descriptor) in polled.iter_mut().zip(descriptors) {
            // The kernel skips negative descriptors.
            entry.fd = descriptor.as_ref().map_or(-1, &raw);
        }
        let ready = poll_for(&mut polled[..descriptors.len()], Duration::ZERO);
        if ready.is_ok_and(|ready| ready > 0) {
            let ranks = (0..descriptors.len()).filter(|index| polled[*index].revents != 0);
            ended.extend(ranks.map(|index| batch * BATCH + index));
        }
    }
    ended
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

    #[test]
    fn a_process_is_the_kernels_word_and_never_a_peers() {
        let (mut child, descriptor) = child();
        let process = ReadableProcess::of(&descriptor, child.id()).unwrap().expect("it is here");
        assert_eq!(process.number(), child.id());
        // The descriptor is of one process, the connection of another.
        assert_eq!(ReadableProcess::of(&descriptor, child.id() + 1), Ok(None));
        let own = own_descriptor().unwrap();
        assert_eq!(ReadableProcess::of(&own, std::process::id()), Ok(None));
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        let text = ReadableProcess::of(&file, child.id()).unwrap_err().to_string();
        assert!(text.contains("no process's"), "{text}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ReadableProcess::of(&descriptor, child.id()), Ok(None));
    }
}
