//! Smaller communicators: without the ranks that a list names, or without the dead.
//!
//! What the survivors must agree on, and why they do, is in [`super::agree`]; here the agreement
//! meets pages, processes and clocks.

use super::Communicator;
use super::agree::{Act, Agreement, Peer};
use crate::config::Config;
use crate::error::{Error, Operation, Result};
use crate::executor::announcement::{Announcement, MOST_RANKS, Phase, RankSet};
use crate::executor::control::Life;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Between two looks at the others' pages: short beside making a communicator (about 2 ms), long
/// beside a look.
const GLANCE: Duration = Duration::from_micros(100);

/// The longest pause between two looks, when the others are long in coming.
const LONGEST_GLANCE: Duration = Duration::from_millis(2);

/// What a rank has seen of all ranks' announcements.
struct Others<'a> {
    communicator: &'a Communicator,
    peers: Vec<Peer>,
}

impl Others<'_> {
    fn new(communicator: &Communicator) -> Others<'_> {
        let unknown = Peer { is_dead: false, announced: Announcement::NOTHING };
        Others { communicator, peers: vec![unknown; communicator.nranks] }
    }

    fn look(&mut self) -> &[Peer] {
        // First who is dead: the last words of the dead are seen then.
        let watched = &self.communicator.watched;
        for dead in watched.dead() {
            self.peers[dead].is_dead = true;
        }
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            // What is being written now is read at the next look.
            if let Some(announced) = watched.pages.of(rank).board.read() {
                peer.announced = announced;
                // Who has ended its part will not come back.
                peer.is_dead |= peer.announced.phase == Phase::Closed;
            }
        }
        &self.peers
    }
}

impl Communicator {
    /// A communicator without the `excluded` ranks, which need not take part; or, where none are
    /// named, without those that have died or destroyed their communicator.
    ///
    /// Survivors that name nobody agree on who is dead, also where more die meanwhile. A rank that
    /// lives and does not come is waited for until the deadline, and named.
    pub fn shrink(&self, excluded: &[usize], config: Option<&Config>) -> Result<Communicator> {
        let config = config.unwrap_or(&self.config);
        let deadline = Instant::now() + Duration::from_millis(config.timeout_ms);
        if excluded.is_empty() {
            return self.shrink_by_agreement(config, deadline);
        }
        let mut gone = excluded.to_vec();
        gone.sort_unstable();
        gone.dedup();
        if let Some(bad) = gone.iter().find(|rank| **rank >= self.nranks) {
            return Err(Error::argument(format!(
                "shrink: rank {bad} is not a rank of this communicator; ranks are 0 to {}",
                self.nranks - 1
            )));
        }
        if gone.contains(&self.rank) {
            return Err(Error::argument(format!(
                "shrink: rank {} excludes itself; excluded ranks do not call shrink",
                self.rank
            )));
        }
        let dies = || self.watched.dead().into_iter().find(|dead| !gone.contains(dead));
        // Survivors of a failure may have split differently often, so the label is what they share:
        // who is left. A second shrink to the same ranks starts from the first one's communicator.
        let label = format!("shrink {gone:?}");
        let is_gone = |rank| gone.contains(&rank);
        let made = self.make_without(is_gone, &label, config, deadline, &|| dies().is_some());
        match (made, dies()) {
            (Err(_), Some(dead)) => {
                let peer = self.watched.who(dead);
                Err(Error::PeerDied { rank: self.rank, peer, operation: None })
            }
            (made, _) => made,
        }
    }

    /// Make a communicator of the ranks that are not gone.
    fn make_without(
        &self,
        is_gone: impl Fn(usize) -> bool,
        label: &str,
        config: &Config,
        deadline: Instant,
        is_called_off: &dyn Fn() -> bool,
    ) -> Result<Communicator> {
        let left: Vec<usize> = (0..self.nranks).filter(|rank| !is_gone(*rank)).collect();
        let rank = left.iter().position(|rank| *rank == self.rank).expect("not excluded");
        let id = self.id.derive(label.as_bytes());
        let called_off = Some(is_called_off);
        Communicator::init_unless(left.len(), &id, rank, config, deadline, called_off)
    }

    fn shrink_by_agreement(&self, config: &Config, deadline: Instant) -> Result<Communicator> {
        if self.nranks > MOST_RANKS {
            return Err(Error::usage(format!(
                "shrink: {} ranks are too many to find the dead among; name them (the limit is \
                 {MOST_RANKS})",
                self.nranks
            )));
        }
        let _alone = self.shrinking.lock();
        let mut others = Others::new(self);
        let board = &self.watched.pages.mine().board;
        let before = board.read().unwrap_or(Announcement::NOTHING);
        let mut agreement = Agreement::begin(self.rank, before, others.look());
        board.publish(agreement.mine());
        let outcome = self.agree(&mut agreement, &mut others, config, deadline);
        if outcome.is_err() {
            agreement.give_up();
            board.publish(agreement.mine());
        }
        outcome
    }

    fn agree(
        &self,
        agreement: &mut Agreement,
        others: &mut Others,
        config: &Config,
        deadline: Instant,
    ) -> Result<Communicator> {
        let started = Instant::now();
        let board = &self.watched.pages.mine().board;
        let mut made: Option<Communicator> = None;
        let mut pause = GLANCE;
        loop {
            let before = agreement.mine().clone();
            let act = agreement.look(others.look());
            if *agreement.mine() != before {
                board.publish(agreement.mine());
                pause = GLANCE;
            }
            match act {
                Act::Settle => {
                    return made.ok_or_else(|| Error::Internal("settled on nothing".into()));
                }
                Act::Excluded(peer) => return Err(self.excluded_by(peer)),
                Act::Absent(peer) => return Err(self.absent(peer)),
                Act::Make | Act::Wait if Instant::now() >= deadline => {
                    return Err(self.late(agreement, others.look(), started));
                }
                Act::Make => {
                    drop(made.take());
                    made = self.attempt(agreement, others, config, deadline)?;
                    board.publish(agreement.mine());
                }
                Act::Wait => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_GLANCE);
                }
            }
        }
    }

    /// Make the communicator that all have agreed on; `None` where the next attempt may do better.
    fn attempt(
        &self,
        agreement: &mut Agreement,
        others: &mut Others,
        config: &Config,
        deadline: Instant,
    ) -> Result<Option<Communicator>> {
        let Announcement { attempt, dead, .. } = agreement.mine().clone();
        let label = format!("shrink {attempt} {dead:?}");
        let is_gone = |rank| dead.contains(rank);
        let made = {
            let others = RefCell::new(&mut *others);
            let is_stale = || agreement.is_stale(others.borrow_mut().look());
            self.make_without(is_gone, &label, config, deadline, &is_stale)
        };
        let passing = match &made {
            Ok(_) => false,
            // Another rank's trouble: it has died, or has found out first that one has; or the
            // deadline, which the next look sees.
            Err(Error::PeerDied { .. } | Error::Remote { .. }) => true,
            Err(Error::Missing { .. } | Error::Timeout { .. }) => true,
            Err(_) => agreement.is_stale(others.look()),
        };
        if passing {
            agreement.failed();
            return Ok(None);
        }
        agreement.made();
        made.map(Some)
    }

    /// Tell the others that this rank will take no part in any shrink.
    pub(super) fn close_board(&self) {
        let board = &self.watched.pages.mine().board;
        let before = board.read().unwrap_or(Announcement::NOTHING);
        board.publish(&Announcement { phase: Phase::Closed, ..before });
    }

    fn excluded_by(&self, peer: usize) -> Error {
        let text = format!("it counts rank {} among the dead", self.rank);
        Error::Remote { rank: self.rank, peer, operation: None, text }
    }

    fn absent(&self, peer: usize) -> Error {
        let text = "its own shrink returned an error".into();
        Error::Remote { rank: self.rank, peer, operation: None, text }
    }

    /// The deadline came while another rank was missing.
    fn late(&self, agreement: &Agreement, peers: &[Peer], started: Instant) -> Error {
        let awaited = agreement.awaited(peers).or_else(|| {
            (0..peers.len())
                .find(|rank| *rank != self.rank)
                .map(|rank| (rank, &peers[rank].announced))
        });
        let (peer, theirs) = awaited.map_or((self.rank, None), |(rank, a)| (rank, Some(a)));
        let dead = |set: &RankSet| format!("{set:?}");
        let state = match theirs {
            Some(Announcement { phase: Phase::Proposing | Phase::Made, dead: set, .. }) => format!(
                "rank {peer} counts {} as dead, rank {} counts {}",
                dead(set),
                self.rank,
                dead(&agreement.mine().dead)
            ),
            _ if self.watched.pages.of(peer).life() == Life::Failed => {
                format!("rank {peer} has failed too and has not called shrink")
            }
            _ => format!("rank {peer} lives and has not called shrink"),
        };
        Error::Timeout {
            rank: self.rank,
            peer: self.watched.who(peer),
            operation: Operation { call: "Shrink()".into(), sequence: agreement.mine().attempt },
            waited_ms: started.elapsed().as_millis() as u64,
            peer_state: state,
        }
    }
}
