//! Rendezvous over real sockets: a host, a listener, and a loop around `poll`.

pub(super) mod client;
pub(super) mod driver;
pub(super) mod message;
pub(super) mod protocol;
pub(super) mod root;
pub mod root_threads;

use super::error::BootstrapError;
use super::local::wire::{Failure, MAX_PAYLOAD};
use super::process::random;
use super::tcp::connect::Proved;
use super::tcp::handshake::SharedSecret;
use super::tcp::hello::{ANYONE, Hello, Purpose};
use super::tcp::listener::AuthListener;
use super::tcp::socket::OsNetwork;
use super::unique_id::UniqueId;
use crate::error::{Error, Result};
use crate::os::poll::{entry, poll};
use client::AllgatherClient;
use driver::{AllgatherDriver, Role};
pub use message::{AllgatherMessage, PeerId, RankContribution, entries};
use root::AllgatherRoot;
use std::time::{Duration, Instant};

/// How long a rank whose rendezvous is over stays to tell the others. Only one that does not read
/// makes it wait at all.
pub const LAST_WORDS: Duration = Duration::from_millis(250);

/// Between two looks at whether the rendezvous is called off: as in a rendezvous on one machine.
const GLANCE: Duration = Duration::from_millis(2);

/// Meet the other ranks of `id` over the network and return what every rank brought, in order of
/// rank. The root is this rank if its listener is the root's ([`AuthListener::of_root`]), else
/// whoever listens at the id's address.
///
/// A rank that returns success knows that every rank had received everything. Otherwise every
/// living rank returns an error at `deadline`, or a quarter of a second after it, that names who is
/// missing, who died, or who disagrees. Connections for other purposes that come through the
/// listener meanwhile are given out by its next [`AuthListener::advance`].
pub fn meet(
    id: &UniqueId,
    rank: usize,
    nranks: usize,
    mine: Vec<u8>,
    listener: &mut AuthListener,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>> {
    Ok(meet_unless(id, rank, nranks, mine, listener, deadline, None)?)
}

/// As [`meet`], ended soon with an error once `cancelled` says so.
pub fn meet_unless(
    id: &UniqueId,
    rank: usize,
    nranks: usize,
    mine: Vec<u8>,
    listener: &mut AuthListener,
    deadline: Instant,
    cancelled: Option<&dyn Fn() -> bool>,
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    check(rank, nranks, &mine)?;
    listener.set_rank(rank);
    if nranks == 1 {
        return Ok(vec![mine]);
    }
    let now = Instant::now();
    let me = PeerId { rank: rank as u32, pid: std::process::id() };
    let role = if listener.is_root() {
        Role::Root(AllgatherRoot::of(me, nranks, &mine, now, deadline))
    } else {
        let root = id.addresses();
        Role::Member(AllgatherClient::new(
            me,
            nranks,
            &mine,
            listener.addresses(),
            &root,
            now,
            deadline,
        ))
    };
    let mut host =
        AllgatherDriver::new(OsNetwork, SharedSecret::new(id), greeting(me, nranks)?, role);
    let mut others = Vec::new();
    let interrupt = || match cancelled {
        Some(cancelled) if cancelled() => {
            Err(Failure::called_off_here(me.rank).into_unmet(rank, nranks))
        }
        _ => Ok(()),
    };
    let interrupt: Option<&dyn Fn() -> Result<(), BootstrapError>> =
        cancelled.map(|_| &interrupt as _);
    let met = run(&mut host, listener, nranks as u32, &mut others, interrupt);
    listener.keep(others);
    met?;
    Ok(host.take_table().into_iter().map(|(_, payload)| payload).collect())
}

fn greeting(me: PeerId, nranks: usize) -> Result<Hello> {
    let mut note = [0; 8];
    random(&mut note)?;
    Ok(Hello {
        purpose: Purpose::Meet,
        rank: me.rank,
        to: ANYONE,
        nranks: nranks as u32,
        detail: me.pid,
        note: u64::from_le_bytes(note),
    })
}

fn check(rank: usize, nranks: usize, mine: &[u8]) -> Result<()> {
    if rank >= nranks {
        return Err(Error::argument(format!(
            "rank {rank} of {nranks}: ranks are numbered from 0 to nranks - 1"
        )));
    }
    // Ranks travel as 32-bit words.
    if nranks > i32::MAX as usize {
        return Err(Error::argument(format!("{nranks} ranks are more than can meet")));
    }
    if mine.len() > MAX_PAYLOAD {
        return Err(Error::Internal(format!(
            "rank {rank} brings {} bytes, the rendezvous takes {MAX_PAYLOAD}",
            mine.len()
        )));
    }
    Ok(())
}

/// Drive a host until its rendezvous is over and everybody has been told, or `interrupt` ends it.
/// What comes meanwhile from one of `nranks` ranks for another purpose is for `others`; who is no
/// rank only asks whether anybody is there, and is hung up on.
fn run(
    host: &mut AllgatherDriver<OsNetwork>,
    listener: &mut AuthListener,
    nranks: u32,
    others: &mut Vec<Proved>,
    interrupt: Option<&dyn Fn() -> Result<(), BootstrapError>>,
) -> Result<(), BootstrapError> {
    let mut entries = Vec::new();
    let mut over: Option<Instant> = None;
    loop {
        let now = Instant::now();
        for proved in listener.advance() {
            if proved.greeting.purpose == Purpose::Meet {
                host.admit(proved, now);
            } else if proved.greeting.rank < nranks {
                others.push(proved);
            }
        }
        host.set_shortage(listener.shortage(), listener.is_starved(), now);
        host.advance(now);
        if host.outcome().is_none() {
            interrupt.map_or(Ok(()), |interrupt| interrupt())?;
        }
        if let Some(outcome) = host.outcome() {
            let until = *over.get_or_insert(now + LAST_WORDS);
            listener.release_spare();
            // Those who could not be let in come one by one now, and are told.
            let is_quiet = host.is_quiet() && (outcome.is_ok() || listener.shortage().is_none());
            if is_quiet || now >= until {
                return outcome.clone();
            }
        }
        entries.clear();
        listener.poll_fds(&mut entries);
        entries.extend(host.streams().map(|(socket, sending)| {
            entry(socket.raw(), libc::POLLIN | if sending { libc::POLLOUT } else { 0 })
        }));
        let waits =
            [over, listener.next_deadline(), host.next_deadline().filter(|_| over.is_none())];
        // A root that nobody has come to waits for ever.
        let day = now + interrupt.map_or(Duration::from_secs(86_400), |_| GLANCE);
        let until = waits.into_iter().flatten().fold(day, Instant::min);
        poll(&mut entries, until).map_err(|_| Error::system("waiting for the network"))?;
    }
}

#[cfg(test)]
mod tests;
