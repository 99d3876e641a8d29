//! The rendezvous: every rank brings a contribution and leaves with everybody's.
//!
//! The ranks meet under an abstract socket name that only the secret gives. The first to bind it
//! coordinates; the kernel makes that choice atomic. What follows for each other rank:
//!
//! ```text
//! rank                           coordinator
//!   hello(rank, nranks, nonce) ->
//!                              <- challenge(nonce, proof of the secret over both)
//!   proof, offer               ->            ... until every rank has offered
//!                              <- every rank's contribution, in order of rank
//!   done                       ->            ... until every rank is done
//!                              <- go
//! ```
//!
//! **Guarantee.** A rank that returns success knows that every rank had received every
//! contribution.
//! If a rank or the coordinator dies before that, every rank that had come returns an error naming
//! it; if the coordinator dies while it says "go", some ranks succeed and find the death in their
//! first operation, the others return the error now.

pub mod wire;

mod broadcast;
mod client;
mod framing;
mod handshake;
mod private_name;
mod root;
mod socket;

use super::error::BootstrapError;
use super::process::random;
use super::unique_id::UniqueId;
use crate::error::{Error, Result};
use client::{JoinOutcome, join};
use private_name::private_name;
use root::LocalRoot;
use socket::Connected;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use wire::{Failure, MAX_PAYLOAD};

/// Most descriptors that one rank can contribute.
pub const MAX_FDS: usize = 4;

/// What a rank brings to the rendezvous.
#[derive(Debug)]
pub struct Contribution {
    /// At most [`MAX_PAYLOAD`] bytes, for everybody.
    pub payload: Vec<u8>,
    /// The process the rank lives in: see [`super::process_token`].
    pub process: u64,
    /// At most [`MAX_FDS`], for the ranks of other processes.
    pub fds: Vec<OwnedFd>,
}

/// What a rank learns of one rank, itself included.
#[derive(Debug)]
pub struct Member {
    pub payload: Vec<u8>,
    /// The process id, as the kernel told the coordinator.
    pub pid: u32,
    pub process: u64,
    /// Empty for another rank of this process; for the rank itself, what it brought.
    pub fds: Vec<OwnedFd>,
}

impl Member {
    /// Whether both are ranks of one process.
    pub fn shares_process(&self, other: &Member) -> bool {
        self.origin().is(other.origin())
    }

    pub(super) fn origin(&self) -> ProcessOrigin {
        ProcessOrigin { process: self.process, pid: self.pid }
    }
}

/// Which process a rank lives in: what it says, and the process id that the kernel gives. Any rank
/// learns the others' tokens, so a token alone proves nothing.
#[derive(Clone, Copy)]
pub(super) struct ProcessOrigin {
    pub process: u64,
    pub pid: u32,
}

impl ProcessOrigin {
    /// Whether both are one process. The kernel gives 0 for those that the coordinator's container
    /// cannot see: they may be any.
    pub fn is(self, other: ProcessOrigin) -> bool {
        self.process == other.process && self.pid == other.pid && self.pid != 0
    }
}

/// What all parts of one rank's rendezvous know.
pub(super) struct LocalRendezvous<'a> {
    pub id: &'a UniqueId,
    pub rank: usize,
    pub nranks: usize,
    pub started: Instant,
    pub deadline: Instant,
    /// Says that the rendezvous has no point any more; asked now and then.
    pub liveness_probe: LivenessProbe<'a>,
}

/// A rank that will never come, and its process where that was here.
pub type VanishedPeer = (usize, Option<u32>);

/// What a rank may learn from elsewhere while it waits for the others.
#[derive(Clone, Copy, Default)]
pub struct LivenessProbe<'a> {
    /// Whether the rendezvous has no point any more.
    pub cancelled: Option<&'a dyn Fn() -> bool>,
    /// Asked by who waits for ranks to come: the coordinator tells the others, whose own word would
    /// look like their death.
    pub absent: Option<&'a dyn Fn() -> Vec<VanishedPeer>>,
}

/// Between two looks at whether the rendezvous is called off: what a rank may take longer to notice
/// another's death in the middle of it, little beside the time of a rendezvous.
const GLANCE: Duration = Duration::from_millis(2);

/// Between two tries to find a coordinator: as long as it takes whoever just bound the name to
/// listen, and at last short beside a process's start.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

impl LocalRendezvous<'_> {
    pub fn waited_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// How long to sleep at most where one could sleep until `until`.
    pub fn glance(&self, until: Instant) -> Result<Instant, Failure> {
        if self.liveness_probe.cancelled.is_some_and(|cancelled| cancelled()) {
            return Err(Failure::called_off_here(self.rank as u32));
        }
        let asks = self.liveness_probe.cancelled.is_some();
        Ok(if asks { until.min(Instant::now() + GLANCE) } else { until })
    }

    /// As [`LocalRendezvous::glance`], for a rank that is not the coordinator.
    pub fn pause(&self, until: Instant) -> Result<Instant, BootstrapError> {
        self.glance(until).map_err(|failure| failure.into_unmet(self.rank, self.nranks))
    }

    /// As [`LocalRendezvous::glance`], for the coordinator while it waits for ranks to come.
    pub fn look_around(&self, until: Instant) -> Result<Instant, Failure> {
        let until = self.glance(until)?;
        let Some(absent) = self.liveness_probe.absent else { return Ok(until) };
        match absent()[..] {
            [] => Ok(until.min(Instant::now() + GLANCE)),
            [(rank, Some(pid))] => Err(Failure::died_here(rank as u32, pid)),
            ref gone => {
                let missing = gone.iter().map(|(rank, _)| *rank as u32).collect();
                Err(Failure::Missing { waited_ms: self.waited_ms(), missing, unlisted: 0 })
            }
        }
    }

    /// The proof of `role` for this handshake; roles differ, so no proof can be sent back.
    pub fn tag(&self, role: &str, hello: &[u8], challenge: &[u8]) -> [u8; 32] {
        self.id.mac(role, &[hello, challenge])
    }

    pub fn proves(&self, role: &str, hello: &[u8], challenge: &[u8], tag: &[u8; 32]) -> bool {
        self.id.verify(role, &[hello, challenge], tag)
    }
}

pub(super) const COORDINATOR: &str = "coordinator's proof";
pub(super) const MEMBER: &str = "member's proof";

/// 32 random bytes that make a handshake unlike any other.
pub(super) fn nonce() -> Result<[u8; 32]> {
    let mut nonce = [0; 32];
    random(&mut nonce)?;
    Ok(nonce)
}

/// Meet the other ranks of `id` and return what every rank brought, in order of rank.
///
/// Every rank gives the same `nranks` and a `rank` of its own; ranks may be threads or processes of
/// one machine. Returns an error at `deadline` at the latest, or a second after it where the
/// coordinator's process has stopped. All sockets are closed when it returns.
pub fn exchange(
    id: &UniqueId,
    rank: usize,
    nranks: usize,
    mine: Contribution,
    deadline: Instant,
) -> Result<Vec<Member>> {
    Ok(exchange_unless(id, rank, nranks, mine, deadline, LivenessProbe::default())?)
}

/// As [`exchange`], ended soon with an error where `liveness_probe` say so.
pub fn exchange_unless(
    id: &UniqueId,
    rank: usize,
    nranks: usize,
    mine: Contribution,
    deadline: Instant,
    liveness_probe: LivenessProbe,
) -> Result<Vec<Member>, BootstrapError> {
    check(rank, nranks, &mine)?;
    let started = Instant::now();
    let rendezvous = LocalRendezvous { id, rank, nranks, started, deadline, liveness_probe };
    if nranks == 1 {
        return Ok(vec![own(mine)]);
    }
    let mut name = rendezvous_name(id);
    let mut is_private = false;
    let mut pause = SHORTEST_PAUSE;
    loop {
        match socket::connect(&name)? {
            Connected::Yes(socket) => match (socket.stranger(), is_private) {
                (Some(holder), false) => {
                    (name, is_private) = (private_name(&name, holder)?, true);
                    continue;
                }
                _ => match join(&rendezvous, socket, &mine)? {
                    JoinOutcome::Received(mut members) => {
                        members[rank].fds = mine.fds;
                        return Ok(members);
                    }
                    JoinOutcome::Retry => {}
                },
            },
            Connected::Nobody => {
                if let Some(listener) = socket::listen(&name)? {
                    return LocalRoot::new(rendezvous, listener, own(mine)).run();
                }
            }
            Connected::Busy => {}
        }
        if Instant::now() >= deadline {
            let missing = (0..nranks as u32).filter(|peer| *peer != rank as u32).collect();
            let waited_ms = rendezvous.waited_ms();
            let failure = Failure::Missing { waited_ms, missing, unlisted: 0 };
            return Err(failure.into_unmet(rank, nranks));
        }
        rendezvous.pause(deadline)?;
        std::thread::sleep(pause);
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

fn own(mine: Contribution) -> Member {
    let Contribution { payload, process, fds } = mine;
    Member { payload, pid: std::process::id(), process, fds }
}

fn check(rank: usize, nranks: usize, mine: &Contribution) -> Result<()> {
    if rank >= nranks {
        return Err(Error::argument(format!(
            "rank {rank} of {nranks}: ranks are numbered from 0 to nranks - 1"
        )));
    }
    // Ranks travel as 32-bit words.
    if nranks > i32::MAX as usize {
        return Err(Error::argument(format!("{nranks} ranks are more than a machine can run")));
    }
    if mine.payload.len() > MAX_PAYLOAD || mine.fds.len() > MAX_FDS {
        return Err(Error::Internal(format!(
            "rank {rank} brings {} bytes and {} descriptors, the rendezvous takes {MAX_PAYLOAD} \
             and {MAX_FDS}",
            mine.payload.len(),
            mine.fds.len()
        )));
    }
    Ok(())
}

/// The abstract name under which the ranks meet: 128 bits that only the secret gives.
pub fn rendezvous_name(id: &UniqueId) -> Vec<u8> {
    let tag = id.mac("name", &[]);
    let hex: String = tag[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("ringcomm-{hex}").into_bytes()
}
