//! A rank that is not the coordinator: prove, offer, receive, confirm.

use super::framing::{Arrived, FrameReader};
use super::socket::{self, UnixSocket, is_not_yet};
use super::wire::{self, CHALLENGE, Challenge, Failure, FrameHeader, FrameKind, LocalHello};
use super::{COORDINATOR, Contribution, LocalRendezvous, MEMBER, Member, nonce};
use crate::bootstrap::error::BootstrapError;
use crate::error::{Error, Result};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long past its own deadline a rank waits for the coordinator's verdict. The coordinator knows
/// every rank's deadline and speaks at the first; a second covers a machine that is busy.
const GRACE: Duration = Duration::from_secs(1);

pub(in crate::bootstrap) enum JoinOutcome {
    Received(Vec<Member>),
    /// The listener was not the coordinator, or had no place; try again.
    Retry,
}

/// The coordinator, once it has proved itself.
struct ProvenCoordinator {
    rank: u32,
    pid: u32,
}

impl ProvenCoordinator {
    fn died(&self, rendezvous: &LocalRendezvous) -> BootstrapError {
        let failure = Failure::died_here(self.rank, self.pid);
        failure.into_unmet(rendezvous.rank, rendezvous.nranks)
    }

    fn stuck(&self, rendezvous: &LocalRendezvous) -> BootstrapError {
        let waited_ms = rendezvous.waited_ms();
        let failure = Failure::stuck_here(self.rank, self.pid, waited_ms);
        failure.into_unmet(rendezvous.rank, rendezvous.nranks)
    }
}

/// One connection to whoever listens under the name.
pub(super) fn join(
    rendezvous: &LocalRendezvous,
    socket: UnixSocket,
    mine: &Contribution,
) -> Result<JoinOutcome, BootstrapError> {
    let Some((coordinator, proof)) = authenticate(rendezvous, &socket)? else {
        return Ok(JoinOutcome::Retry);
    };
    let offer = FrameHeader {
        kind: FrameKind::Offer,
        fds: mine.fds.len() as u16,
        bytes: 0,
        process: mine.process,
        rank: rendezvous.rank as u32,
        pid: 0,
    };
    // If the coordinator is gone the receiving side says so, or delivers its last words.
    let _ = send(rendezvous, &socket, &proof, &[]);
    let _ = send(rendezvous, &socket, &wire::frame(offer, &mine.payload), &mine.fds);
    let result = receive(rendezvous, &socket, &coordinator, mine.process);
    if let Err(BootstrapError { error: Error::System { what, errno }, .. }) = &result {
        let failure = Failure::system_here(rendezvous.rank as u32, *errno, what.as_str());
        let _ = send(rendezvous, &socket, &wire::failure_frame(&failure), &[]);
    }
    result
}

/// Greet, check the coordinator's proof, and make our own. `None`: whoever listens is not it, or it
/// hung up before it had proved anything.
fn authenticate(
    rendezvous: &LocalRendezvous,
    socket: &UnixSocket,
) -> Result<Option<(ProvenCoordinator, [u8; 32])>, BootstrapError> {
    let Ok(peer) = socket.peer() else { return Ok(None) };
    if !peer.is_ours() {
        return Ok(None);
    }
    let remaining = rendezvous.deadline.saturating_duration_since(Instant::now());
    let hello = LocalHello {
        rank: rendezvous.rank as u32,
        nranks: rendezvous.nranks as u32,
        remaining_ms: remaining.as_millis().min(u32::MAX.into()) as u32,
        nonce: nonce()?,
    };
    let hello = hello.encode();
    if send(rendezvous, socket, &hello, &[]).is_err() {
        return Ok(None);
    }
    let mut bytes = [0; CHALLENGE];
    let mut have = 0;
    while have < bytes.len() {
        match socket.receive(&mut bytes[have..], None) {
            Ok(0) => return Ok(None),
            Ok(got) => have += got,
            Err(error) if is_not_yet(&error) => {
                if Instant::now() >= rendezvous.deadline {
                    return Ok(None);
                }
                socket::wait(socket, libc::POLLIN, rendezvous.pause(rendezvous.deadline)?)?;
            }
            Err(_) => return Ok(None),
        }
    }
    let Ok(challenge) = Challenge::decode(&bytes) else { return Ok(None) };
    let head = challenge.head();
    if !rendezvous.proves(COORDINATOR, &hello, &head, &challenge.tag) {
        return Ok(None);
    }
    let coordinator = ProvenCoordinator { rank: challenge.rank, pid: peer.pid };
    Ok(Some((coordinator, rendezvous.tag(MEMBER, &hello, &head))))
}

/// Send all of `bytes`; an error means that the other end is gone or the deadline has passed.
fn send(
    rendezvous: &LocalRendezvous,
    socket: &UnixSocket,
    bytes: &[u8],
    fds: &[OwnedFd],
) -> io::Result<()> {
    let (mut sent, mut fds) = (0, fds);
    while sent < bytes.len() {
        match socket.send(&bytes[sent..], fds) {
            Ok(count) => {
                sent += count;
                fds = &[];
            }
            Err(_) if Instant::now() >= rendezvous.deadline => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) if is_not_yet(&error) => {
                let _ = socket::wait(socket, libc::POLLOUT, rendezvous.deadline);
            }
            // Too many descriptors of this user are under way: they arrive, and then ours can go.
            Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Collect every rank's contribution, confirm, and wait for the others to confirm.
fn receive(
    rendezvous: &LocalRendezvous,
    socket: &UnixSocket,
    coordinator: &ProvenCoordinator,
    process_of_mine: u64,
) -> Result<JoinOutcome, BootstrapError> {
    let until = rendezvous.deadline + GRACE;
    let mut inbox = FrameReader::new();
    let (mut members, mut counts) = (Vec::<Member>::new(), Vec::<usize>::new());
    loop {
        let Arrived { header, body, fds } = match inbox.advance(socket) {
            Ok(Some(arrived)) => arrived,
            Ok(None) if Instant::now() >= until => return Err(coordinator.stuck(rendezvous)),
            Ok(None) => {
                // Once this rank has confirmed, the others may go on with it: there is no way back.
                let confirmed = members.len() == rendezvous.nranks;
                let pause = if confirmed { until } else { rendezvous.pause(until)? };
                socket::wait(socket, libc::POLLIN, pause)?;
                continue;
            }
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                return Err(Error::os("receiving the other ranks' descriptors", error).into());
            }
            Err(_) => return Err(coordinator.died(rendezvous)),
        };
        match header.kind {
            FrameKind::Member if header.rank as usize == members.len() => {
                if members.len() >= rendezvous.nranks {
                    return Err(confused(coordinator).into());
                }
                let FrameHeader { pid, process, .. } = header;
                members.push(Member { payload: body, pid, process, fds });
                counts.push(header.fds.into());
                if members.len() == rendezvous.nranks {
                    if !is_plausible(rendezvous, coordinator, process_of_mine, &members, &counts) {
                        return Err(confused(coordinator).into());
                    }
                    let done = FrameHeader::bare(FrameKind::Done).encode();
                    let _ = send(rendezvous, socket, &done, &[]);
                }
            }
            FrameKind::Failure => {
                let failure = Failure::decode(&body).map_err(|_| confused(coordinator))?;
                return Err(failure.into_unmet(rendezvous.rank, rendezvous.nranks));
            }
            FrameKind::Retry => return Ok(JoinOutcome::Retry),
            FrameKind::Go if members.len() == rendezvous.nranks => {
                return Ok(JoinOutcome::Received(members));
            }
            _ => return Err(confused(coordinator).into()),
        }
    }
}

/// Whether descriptors came with the members of other processes, and with no others; and whether
/// the coordinator is in this process if it says so.
fn is_plausible(
    rendezvous: &LocalRendezvous,
    coordinator: &ProvenCoordinator,
    process: u64,
    members: &[Member],
    counts: &[usize],
) -> bool {
    let mine = &members[rendezvous.rank];
    let is_elsewhere = coordinator.pid != std::process::id();
    let mut peers = members.iter().zip(counts).enumerate();
    mine.process == process
        && peers.all(|(rank, (member, count))| match member.shares_process(mine) {
            true if rank == coordinator.rank as usize && is_elsewhere => false,
            true => member.fds.is_empty(),
            false => member.fds.len() == *count,
        })
}

fn confused(coordinator: &ProvenCoordinator) -> Error {
    Error::Internal(format!(
        "rank {} (pid {}) coordinates the rendezvous and sent something out of turn",
        coordinator.rank, coordinator.pid
    ))
}
