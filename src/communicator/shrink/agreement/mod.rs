//! How the survivors of a failure agree on who is left, and that all of them have gone on.
//!
//! Every rank shows the others an [`Announcement`] and looks at theirs; that is all the survivors
//! share, be it memory or what travelled over a network, where a look may show something old and
//! two ranks may see the same things in different orders. An attempt goes
//!
//! ```text
//! propose a set of the dead   until all ranks outside the set propose the same set
//! make the communicator       without the set; needs all of them, and each may fail in it
//! say that it is made         until all of them have said so: the attempt is settled
//! ```
//!
//! and starts over with the next number and a larger set if a rank outside the set dies meanwhile.
//!
//! **Guarantee.** The dead stay dead and the living are never taken for dead; then no two survivors
//! return from different attempts, and once no more ranks die all of them return.
//!
//! *Why.* A rank that returned from attempt k (call it settled) never announces a later attempt of
//! the same shrink. Let A be settled in k, alive, and B about to make attempt k' > k: B has seen
//! all ranks outside its set S' propose (k', S'). A is not among them, so it would have to be in
//! S', which holds dead ranks only. A rank that goes on from k keeps what it made there until it
//! makes the next, and if it meets a settled rank that it has not counted as dead, it settles too.
//! A rank of S' that settled concerns no survivor: a survivor outside S' that learned from it did
//! so before it announced S', and then it would have settled and not announced S' at all.

use crate::executor::control_block::shrink_board::{Announcement, Phase, RankSet};

#[cfg(test)]
mod tests;

/// What a rank knows of another one. It looks whether the rank is dead first, then what it
/// announced: so the last words of the dead are seen before they are counted out.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// It has died, or ended its part in the communicator.
    pub is_dead: bool,
    pub announced: Announcement,
}

/// What is to be done, once [`Agreement::mine`] is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Look again later.
    Wait,
    /// Forget what was made before, make the communicator of this attempt, and report.
    Make,
    /// Return what was made last.
    Settle,
    /// The rank counts this one as dead: it cannot hear us, so neither can go on with the other.
    Excluded(usize),
    /// The rank lives and does not take part.
    Absent(usize),
}

/// One rank's part in one shrink.
pub struct Agreement {
    rank: usize,
    mine: Announcement,
    /// The attempt whose communicator this rank holds.
    holds: Option<u64>,
}

impl Agreement {
    /// Begin, where `before` is what this rank announced last.
    pub fn begin(rank: usize, before: Announcement, peers: &[PeerView]) -> Agreement {
        let earliest = living(rank, &before.dead, peers).map(|(_, theirs)| match theirs.phase {
            Phase::Proposing | Phase::Made => theirs.attempt,
            // Who gave up may come back, and then with a later attempt than its last.
            Phase::GaveUp => theirs.attempt + 1,
            Phase::Idle | Phase::Closed => 0,
        });
        let attempt = earliest.max().unwrap_or(0).max(before.attempt + 1);
        let mine = Announcement { attempt, phase: Phase::Proposing, ..before };
        Agreement { rank, mine, holds: None }
    }

    /// What the others should see now.
    pub fn mine(&self) -> &Announcement {
        &self.mine
    }

    /// Where ranks of other hosts meet this one in the attempt.
    pub fn meet_at(&mut self, port: u16) {
        self.mine.port = port;
    }

    /// Look at the others, by rank; what `peers` says of this rank itself is not looked at.
    pub fn look(&mut self, peers: &[PeerView]) -> Act {
        if self.is_settled(peers) {
            self.mine.settled = self.holds.take().expect("it is settled because it is held");
            self.mine.phase = Phase::Idle;
            return Act::Settle;
        }
        let mut grown = false;
        for rank in (0..peers.len()).filter(|rank| *rank != self.rank) {
            if self.mine.dead.contains(rank) {
                continue;
            }
            if peers[rank].is_dead {
                grown |= self.mine.dead.insert(rank);
            } else if peers[rank].announced.dead.contains(self.rank) {
                return Act::Excluded(rank);
            } else {
                grown |= self.mine.dead.unite(&peers[rank].announced.dead);
            }
        }
        self.move_on(grown, peers);
        if let Some(absent) = self.absent(peers) {
            return Act::Absent(absent);
        }
        let agreed = self.others(peers).all(|(_, theirs)| self.goes_along(theirs));
        if self.mine.phase == Phase::Proposing && agreed {
            self.holds = None;
            return Act::Make;
        }
        Act::Wait
    }

    /// Whether making the communicator has become pointless: somebody died or has moved on.
    pub fn is_stale(&self, peers: &[PeerView]) -> bool {
        let died = |rank: usize| peers[rank].is_dead;
        self.others(peers).any(|(rank, theirs)| died(rank) || !self.goes_along(theirs))
    }

    /// The communicator of this attempt is made.
    pub fn made(&mut self) {
        self.holds = Some(self.mine.attempt);
        self.mine.phase = Phase::Made;
    }

    /// The communicator of this attempt could not be made, and another attempt may do better.
    pub fn failed(&mut self) {
        self.mine.attempt += 1;
    }

    /// This rank returns an error.
    pub fn give_up(&mut self) {
        self.holds = None;
        self.mine.phase = Phase::GaveUp;
    }

    /// The first rank that this one waits for, and what it announced.
    pub fn awaited<'a>(&self, peers: &'a [PeerView]) -> Option<(usize, &'a Announcement)> {
        let waits = |theirs: &Announcement| match self.mine.phase {
            Phase::Made => theirs.phase != Phase::Made,
            _ => !self.goes_along(theirs),
        };
        self.others(peers).find(|(_, theirs)| waits(theirs))
    }

    /// The ranks outside this one's set, without itself.
    fn others<'a>(&self, peers: &'a [PeerView]) -> impl Iterator<Item = (usize, &'a Announcement)> {
        living(self.rank, &self.mine.dead, peers)
    }

    fn goes_along(&self, theirs: &Announcement) -> bool {
        matches!(theirs.phase, Phase::Proposing | Phase::Made)
            && theirs.attempt == self.mine.attempt
            && theirs.dead == self.mine.dead
    }

    /// Whether everybody has made what this rank holds, or somebody knows that they have.
    fn is_settled(&self, peers: &[PeerView]) -> bool {
        let Some(held) = self.holds else { return false };
        let knows = |theirs: &Announcement| theirs.settled == held;
        let has = |theirs: &Announcement| theirs.phase == Phase::Made && theirs.attempt == held;
        self.others(peers).any(|(_, theirs)| knows(theirs))
            || (self.mine.phase == Phase::Made && self.others(peers).all(|(_, theirs)| has(theirs)))
    }

    /// Go to the next attempt, or to the one that others are at.
    fn move_on(&mut self, grown: bool, peers: &[PeerView]) {
        let at_work =
            |theirs: &Announcement| matches!(theirs.phase, Phase::Proposing | Phase::Made);
        let attempts = self.others(peers).filter(|(_, theirs)| at_work(theirs));
        let latest = attempts.map(|(_, theirs)| theirs.attempt).max().unwrap_or(0);
        let own = match self.mine.phase {
            Phase::Made if grown => self.mine.attempt + 1,
            _ => self.mine.attempt,
        };
        if latest.max(own) > self.mine.attempt {
            self.mine.attempt = latest.max(own);
            self.mine.phase = Phase::Proposing;
        }
    }

    /// A rank that lives and returned an error from this attempt.
    fn absent(&self, peers: &[PeerView]) -> Option<usize> {
        let absent = |theirs: &Announcement| match theirs.phase {
            Phase::GaveUp => theirs.attempt >= self.mine.attempt,
            _ => false,
        };
        self.others(peers).find(|(_, theirs)| absent(theirs)).map(|(rank, _)| rank)
    }
}

/// The ranks outside a set, without `rank` itself.
fn living<'a>(
    rank: usize,
    dead: &RankSet,
    peers: &'a [PeerView],
) -> impl Iterator<Item = (usize, &'a Announcement)> {
    let counts = move |(other, _): &(usize, &PeerView)| *other != rank && !dead.contains(*other);
    peers.iter().enumerate().filter(counts).map(|(other, peer)| (other, &peer.announced))
}
