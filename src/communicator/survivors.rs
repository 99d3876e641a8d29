//! The survivors of a failure make a smaller communicator: the agreement of [`super::agree`] meets
//! pages, processes and clocks.

use super::Communicator;
use super::agree::{Act, Agreement, Peer};
use super::assembly::Until;
use super::shrink::{Door, port_of};
use crate::bootstrap::network::Gate;
use crate::bootstrap::{Cause, Unmet};
use crate::config::Config;
use crate::error::{Error, Operation, Result};
use crate::executor::announcement::{Announcement, MOST_RANKS, Phase, RankSet};
use crate::executor::control::Life;
use crate::sync::MutexGuard;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Between two looks at the others' pages: short beside making a communicator, long beside a look.
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

/// This rank's part in one shrink.
struct Survivor<'a> {
    agreement: Agreement,
    others: Others<'a>,
    /// Where the survivors meet in an attempt of this number, if this rank is the first of them.
    door: Option<(u64, Gate)>,
    config: &'a Config,
    deadline: Instant,
    /// How often the communicator had been aborted before.
    aborts: u64,
}

impl Survivor<'_> {
    fn left(&self) -> Vec<usize> {
        let dead = &self.agreement.mine().dead;
        (0..self.others.peers.len()).filter(|rank| !dead.contains(*rank)).collect()
    }

    /// What the survivors of one attempt meet for. No two sets make one in the same attempt.
    fn label(attempt: u64) -> String {
        format!("shrink in attempt {attempt}")
    }

    /// Show the others where this rank is, with the door of the attempt if it is the one to open
    /// it.
    fn announce(&mut self) -> Result<()> {
        let communicator = self.others.communicator;
        let (attempt, left) = (self.agreement.mine().attempt, self.left());
        let opens = left[0] == communicator.rank && !communicator.share_a_host(&left);
        if opens && self.door.as_ref().is_none_or(|(of, _)| *of != attempt) {
            let gate = communicator.open_door(&Survivor::label(attempt), self.config)?;
            self.agreement.meet_at(port_of(&gate));
            self.door = Some((attempt, gate));
        }
        communicator.announce(self.agreement.mine());
        Ok(())
    }

    /// Whether the communicator was aborted since this shrink began.
    fn is_aborted(&self) -> bool {
        self.others.communicator.aborts() != self.aborts
    }

    fn agree(&mut self) -> Result<Communicator> {
        let started = Instant::now();
        let communicator = self.others.communicator;
        let mut made: Option<Communicator> = None;
        let mut pause = GLANCE;
        loop {
            let before = self.agreement.mine().clone();
            if self.is_aborted() {
                return Err(communicator.aborted());
            }
            let act = self.agreement.look(self.others.look());
            if *self.agreement.mine() != before {
                self.announce()?;
                pause = GLANCE;
            }
            match act {
                Act::Settle => {
                    return made.ok_or_else(|| Error::Internal("settled on nothing".into()));
                }
                Act::Excluded(peer) => return Err(communicator.excluded_by(peer)),
                Act::Absent(peer) => return Err(communicator.absent(peer)),
                Act::Make | Act::Wait if Instant::now() >= self.deadline => {
                    return Err(communicator.late(&self.agreement, self.others.look(), started));
                }
                Act::Make => {
                    drop(made.take());
                    made = self.attempt()?;
                    self.announce()?;
                }
                Act::Wait => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_GLANCE);
                }
            }
        }
    }

    /// Make the communicator that all have agreed on; `None` where the next attempt may do better.
    fn attempt(&mut self) -> Result<Option<Communicator>> {
        let left = self.left();
        let attempt = self.agreement.mine().attempt;
        let communicator = self.others.communicator;
        let door = match self.door.take().filter(|(of, _)| *of == attempt) {
            _ if communicator.share_a_host(&left) => Door::Here,
            Some((_, gate)) => Door::Mine(gate),
            None => Door::At(self.others.peers[left[0]].announced.port),
        };
        let made = {
            let (agreement, others) = (&self.agreement, RefCell::new(&mut self.others));
            let is_aborted = || communicator.aborts() != self.aborts;
            let is_stale = || is_aborted() || agreement.is_stale(others.borrow_mut().look());
            let broken_off = || is_stale().then(|| communicator.aborted());
            let until = Until {
                deadline: self.deadline,
                is_called_off: Some(&is_stale),
                is_broken_off: Some(&broken_off),
            };
            communicator.make_of(&left, &Survivor::label(attempt), door, self.config, until)
        };
        let passing = match &made {
            Ok(_) => false,
            // Another rank's trouble: it has died, or has found out first that one has; or the
            // deadline, which the next look sees.
            Err(Unmet { cause: Cause::There | Cause::Late, .. }) => true,
            Err(_) => self.is_aborted() || self.agreement.is_stale(self.others.look()),
        };
        if passing {
            self.agreement.failed();
            return Ok(None);
        }
        self.agreement.made();
        Ok(Some(made?))
    }
}

impl Communicator {
    pub(super) fn shrink_by_agreement(
        &self,
        config: &Config,
        deadline: Instant,
    ) -> Result<Communicator> {
        if self.nranks > MOST_RANKS {
            return Err(Error::usage(format!(
                "shrink: {} ranks are too many to find the dead among; name them (the limit is \
                 {MOST_RANKS})",
                self.nranks
            )));
        }
        let aborts = self.aborts();
        let _alone = self.begin_shrink()?;
        let mut others = Others::new(self);
        let before = self.watched.pages.mine().board.read().unwrap_or(Announcement::NOTHING);
        let agreement = Agreement::begin(self.rank, before, others.look());
        let mut survivor = Survivor { agreement, others, door: None, config, deadline, aborts };
        survivor.announce()?;
        let outcome = survivor.agree();
        if outcome.is_err() {
            survivor.agreement.give_up();
            self.announce(survivor.agreement.mine());
        }
        outcome
    }

    /// Take the right to shrink, unless this rank has ended its part.
    pub(super) fn begin_shrink(&self) -> Result<MutexGuard<'_, Vec<Vec<usize>>>> {
        let alone = self.shrinking.lock();
        let said = self.watched.pages.mine().board.read();
        match said.is_some_and(|said| said.phase == Phase::Closed) {
            true => Err(Error::usage("this communicator was destroyed; it cannot be shrunk")),
            false => Ok(alone),
        }
    }

    /// Tell the others that this rank will take no part in any shrink.
    pub(super) fn close_board(&self) {
        let before = self.watched.pages.mine().board.read().unwrap_or(Announcement::NOTHING);
        self.announce(&Announcement { phase: Phase::Closed, ..before });
    }

    fn excluded_by(&self, peer: usize) -> Error {
        let text = format!("it counts rank {} among the dead", self.rank);
        let peer = self.watched.who(peer);
        Error::Remote { rank: self.rank, peer, operation: None, text }
    }

    fn absent(&self, peer: usize) -> Error {
        let text = "its own shrink returned an error".into();
        let peer = self.watched.who(peer);
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
            operation: Operation {
                call: "Shrink()".into(),
                sequence: Some(agreement.mine().attempt),
            },
            waited_ms: started.elapsed().as_millis() as u64,
            peer_state: state.into(),
        }
    }
}
