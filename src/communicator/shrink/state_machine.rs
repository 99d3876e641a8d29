//! One rank's part in one shrink, as a series of attempts: what it announces, where the survivors
//! meet, when an attempt has become pointless, and whether the next may do better.
//!
//! It stands between the [`Agreement`], which only sees announcements, and whoever makes the
//! communicator. No sockets, no clock and no sleep in here: a thread drives it
//! (`driver.rs`), or the simulation.

use super::agreement::{Act, Agreement, PeerView};
use crate::bootstrap::Blame;
use crate::communicator::health::wait_check::CommHealth;
use crate::error::Result;
use crate::executor::control_block::shrink_board::{Announcement, Phase};
use std::time::Instant;

/// Where the ranks that are left meet.
pub enum RendezvousPoint<G> {
    /// On this host, to which they all belong.
    Here,
    /// At this rank, the first of them.
    Mine(G),
    /// At this port of the first of them.
    At(u16),
}

/// What a survivor needs of where it runs.
pub trait ShrinkEnv {
    type Listener;

    /// What it sees of the others.
    fn health(&self) -> &CommHealth;

    fn share_a_host(&self, ranks: &[usize]) -> bool;

    /// A listener for those who know the label, and its port.
    fn open_door(&self, label: &str) -> Result<(Self::Listener, u16)>;

    /// Show the other ranks an announcement.
    fn announce(&self, announcement: &Announcement);
}

/// The communicator that all survivors of an attempt have agreed to make.
pub struct ShrinkAttempt<G> {
    pub left: Vec<usize>,
    /// What they meet for. No two sets make one in the same attempt.
    pub label: String,
    pub door: RendezvousPoint<G>,
}

/// What is to be done next.
pub enum ShrinkStep<G> {
    /// Look again later; whether this rank has just announced something.
    Wait { moved: bool },
    /// Forget what was made before, make this, and tell [`ShrinkMachine::made`] or
    /// [`ShrinkMachine::failed`].
    Make(ShrinkAttempt<G>),
    /// Return what was made last.
    Settle,
    /// The rank counts this one as dead.
    Excluded(usize),
    /// The rank lives and does not take part.
    Absent(usize),
    /// The deadline has come.
    Late,
}

pub struct ShrinkMachine<P: ShrinkEnv> {
    place: P,
    agreement: Agreement,
    /// By rank: what this rank has seen of it.
    peers: Vec<PeerView>,
    /// Where the survivors meet in an attempt of this number, if this rank is the first of them.
    door: Option<(u64, P::Listener)>,
    deadline: Instant,
}

impl<P: ShrinkEnv> ShrinkMachine<P> {
    /// Begin, and announce it.
    pub fn begin(place: P, deadline: Instant) -> Result<ShrinkMachine<P>> {
        let pages = &place.health().pages;
        let unknown = PeerView { is_dead: false, announced: Announcement::NOTHING };
        let mut peers = vec![unknown; pages.nranks()];
        look(place.health(), &mut peers);
        let before = pages.mine().board.read().unwrap_or(Announcement::NOTHING);
        let agreement = Agreement::begin(pages.rank, before, &peers);
        let mut survivor = ShrinkMachine { place, agreement, peers, door: None, deadline };
        survivor.announce().inspect_err(|_| survivor.give_up())?;
        Ok(survivor)
    }

    /// Look at the others and go on.
    pub fn advance(&mut self, now: Instant) -> Result<ShrinkStep<P::Listener>> {
        let before = self.agreement.mine().clone();
        look(self.place.health(), &mut self.peers);
        let act = self.agreement.look(&self.peers);
        let moved = *self.agreement.mine() != before;
        if moved {
            self.announce()?;
        }
        Ok(match act {
            Act::Settle => ShrinkStep::Settle,
            Act::Excluded(peer) => ShrinkStep::Excluded(peer),
            Act::Absent(peer) => ShrinkStep::Absent(peer),
            Act::Make | Act::Wait if now >= self.deadline => ShrinkStep::Late,
            Act::Make => ShrinkStep::Make(self.attempt()),
            Act::Wait => ShrinkStep::Wait { moved },
        })
    }

    /// Whether making the communicator has become pointless: somebody died or has moved on.
    pub fn is_stale(&mut self) -> bool {
        look(self.place.health(), &mut self.peers);
        self.agreement.is_stale(&self.peers)
    }

    /// The communicator of the attempt is made.
    pub fn made(&mut self) -> Result<()> {
        self.agreement.made();
        self.announce()
    }

    /// The communicator of the attempt could not be made; whether the next attempt may do better.
    pub fn failed(&mut self, cause: Blame) -> Result<bool> {
        let passing = match cause {
            // Another rank's trouble: it has died, or has found out first that one has; or the
            // deadline, which the next look sees.
            Blame::There | Blame::CalledOff | Blame::Late => true,
            Blame::Here => self.is_stale(),
        };
        if passing {
            self.agreement.failed();
            self.announce()?;
        }
        Ok(passing)
    }

    /// This rank returns an error.
    pub fn give_up(&mut self) {
        self.agreement.give_up();
        self.place.announce(self.agreement.mine());
    }

    /// What the others should see now.
    pub fn mine(&self) -> &Announcement {
        self.agreement.mine()
    }

    /// The first rank that this one waits for, and what it announced.
    pub fn awaited(&self) -> Option<(usize, &Announcement)> {
        let mut others = self.left().into_iter().filter(|rank| *rank != self.rank());
        let any = || others.next().map(|rank| (rank, &self.peers[rank].announced));
        self.agreement.awaited(&self.peers).or_else(any)
    }

    fn rank(&self) -> usize {
        self.place.health().pages.rank
    }

    fn left(&self) -> Vec<usize> {
        let dead = &self.agreement.mine().dead;
        (0..self.peers.len()).filter(|rank| !dead.contains(*rank)).collect()
    }

    fn label(attempt: u64) -> String {
        format!("shrink in attempt {attempt}")
    }

    /// Show the others where this rank is, with the door of the attempt if it is the one to open
    /// it.
    fn announce(&mut self) -> Result<()> {
        let (attempt, left) = (self.agreement.mine().attempt, self.left());
        let proposes = self.agreement.mine().phase == Phase::Proposing;
        let opens = proposes && left[0] == self.rank() && !self.place.share_a_host(&left);
        if opens && self.door.as_ref().is_none_or(|(of, _)| *of != attempt) {
            let (listener, port) = self.place.open_door(&Self::label(attempt))?;
            self.agreement.meet_at(port);
            self.door = Some((attempt, listener));
        }
        self.place.announce(self.agreement.mine());
        Ok(())
    }

    fn attempt(&mut self) -> ShrinkAttempt<P::Listener> {
        let (left, number) = (self.left(), self.agreement.mine().attempt);
        let door = match self.door.take().filter(|(of, _)| *of == number) {
            _ if self.place.share_a_host(&left) => RendezvousPoint::Here,
            Some((_, listener)) => RendezvousPoint::Mine(listener),
            None => RendezvousPoint::At(self.peers[left[0]].announced.port),
        };
        ShrinkAttempt { left, label: Self::label(number), door }
    }
}

fn look(health: &CommHealth, peers: &mut [PeerView]) {
    // First who is dead: the last words of the dead are seen then.
    for dead in health.dead() {
        peers[dead].is_dead = true;
    }
    for (rank, peer) in peers.iter_mut().enumerate() {
        // What is being written now is read at the next look.
        if let Some(announced) = health.pages.of(rank).board.read() {
            peer.announced = announced;
            // Who has ended its part will not come back.
            peer.is_dead |= peer.announced.phase == Phase::Closed;
        }
    }
}
