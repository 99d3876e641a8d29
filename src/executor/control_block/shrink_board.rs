//! Seqlock of what a rank announces while the survivors of a failure agree on who is left.
//!
//! Several words that belong together, with one writer and any number of readers: the writer makes
//! the version odd, writes, makes it even again, and a reader that saw the version change, or saw
//! it odd, has read nothing. A writer that was killed in between stays unreadable, which is as
//! well: it is dead.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use std::fmt;

/// Ranks that a communicator may have for its survivors to find the dead by themselves: a set of
/// ranks takes half a kilobyte of every page then. Larger communicators name the dead in a list.
pub const MOST_RANKS: usize = 4096;

const WORDS: usize = MOST_RANKS / 64;

/// No communicator comes so far; a peer's word may say more, to which nothing could be added.
const MOST_ATTEMPTS: u64 = 1 << 48;

/// Ranks of a communicator, a bit each.
#[derive(Clone, PartialEq, Eq)]
pub struct RankSet([u64; WORDS]);

impl RankSet {
    pub const EMPTY: RankSet = RankSet([0; WORDS]);

    pub fn contains(&self, rank: usize) -> bool {
        self.0[rank / 64] >> (rank % 64) & 1 == 1
    }

    /// Whether it was not there before.
    pub fn insert(&mut self, rank: usize) -> bool {
        let fresh = !self.contains(rank);
        self.0[rank / 64] |= 1 << (rank % 64);
        fresh
    }

    /// Take in the members of another set; whether that changed anything.
    pub fn unite(&mut self, other: &RankSet) -> bool {
        let mut grown = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            grown |= theirs & !*mine != 0;
            *mine |= theirs;
        }
        grown
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = |(index, word): (usize, &u64)| {
            let (mut left, base) = (*word, index * 64);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(base + bit)
            })
        };
        self.0.iter().enumerate().flat_map(bits)
    }

    /// As words of 64 ranks, without the empty ones at the end.
    pub fn words(&self) -> &[u64] {
        let used = self.0.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        &self.0[..used]
    }

    /// From [`RankSet::words`]; `None` where there are too many.
    pub fn from_words(words: &[u64]) -> Option<RankSet> {
        let mut set = RankSet::EMPTY;
        set.0.get_mut(..words.len())?.copy_from_slice(words);
        Some(set)
    }
}

impl fmt::Debug for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// How far a rank is with making a smaller communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Not at it: it never was, or it has returned.
    Idle = 0,
    /// It goes by its attempt and its set, and makes the communicator once all others do.
    Proposing = 1,
    /// It has made the communicator of its attempt, and waits for the others to say so.
    Made = 2,
    /// It returned an error, and may try again.
    GaveUp = 3,
    /// It ended its part in the communicator and counts as dead.
    Closed = 4,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Attempts count from 1.
    pub attempt: u64,
    pub phase: Phase,
    /// The last attempt whose communicator the rank returned to its user; 0 for none.
    pub settled: u64,
    /// Where ranks of other hosts meet this rank; 0 for nowhere.
    pub port: u16,
    /// The attempt of a shrink by list that the rank is at, or that last worked; 0 for none.
    pub label: u64,
    /// The ranks it counts as dead. Never shrinks.
    pub dead: RankSet,
}

impl Announcement {
    pub const NOTHING: Announcement = Announcement {
        attempt: 0,
        phase: Phase::Idle,
        settled: 0,
        port: 0,
        label: 0,
        dead: RankSet::EMPTY,
    };
}

/// The place of an announcement in a page. Zeroed memory is [`Announcement::NOTHING`].
#[repr(C)]
pub struct Board {
    /// Odd while the rest is being written.
    version: AtomicU64,
    attempt: AtomicU64,
    settled: AtomicU64,
    label: AtomicU64,
    phase: AtomicU32,
    port: AtomicU32,
    dead: [AtomicU64; WORDS],
}

impl Board {
    /// Only the page's owner writes, one thread at a time.
    pub fn publish(&self, announcement: &Announcement) {
        // Even where an earlier owner of the memory was stopped in the middle.
        let version = self.version.load(Relaxed) & !1;
        self.version.store(version | 1, Relaxed);
        // Pairs with the Acquire fence in `read`: who sees a word of this sees the odd version.
        fence(Release);
        self.attempt.store(announcement.attempt, Relaxed);
        self.settled.store(announcement.settled, Relaxed);
        self.label.store(announcement.label, Relaxed);
        self.phase.store(announcement.phase as u32, Relaxed);
        self.port.store(announcement.port.into(), Relaxed);
        for (cell, word) in self.dead.iter().zip(announcement.dead.0) {
            cell.store(word, Relaxed);
        }
        // Release: pairs with the Acquire in `read`.
        self.version.store(version.wrapping_add(2), Release);
    }

    /// `None` while it is being written, and where it says what cannot be.
    pub fn read(&self) -> Option<Announcement> {
        // Acquire: pairs with the last Release in `publish`.
        let version = self.version.load(Acquire);
        let announcement = Announcement {
            attempt: self.attempt.load(Relaxed),
            settled: self.settled.load(Relaxed),
            label: self.label.load(Relaxed),
            phase: match self.phase.load(Relaxed) {
                0 => Phase::Idle,
                1 => Phase::Proposing,
                2 => Phase::Made,
                3 => Phase::GaveUp,
                _ => Phase::Closed,
            },
            port: self.port.load(Relaxed) as u16,
            dead: RankSet(std::array::from_fn(|index| self.dead[index].load(Relaxed))),
        };
        // Pairs with the Release fence in `publish`.
        fence(Acquire);
        let whole = version & 1 == 0 && self.version.load(Relaxed) == version;
        let can_be = announcement.attempt.max(announcement.settled) <= MOST_ATTEMPTS;
        (whole && can_be).then_some(announcement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn zeroed() -> Board {
        Board {
            version: AtomicU64::new(0),
            attempt: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            label: AtomicU64::new(0),
            phase: AtomicU32::new(0),
            port: AtomicU32::new(0),
            dead: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[test]
    fn a_set_knows_its_members() {
        let mut set = RankSet::EMPTY;
        assert!(set.words().is_empty());
        for rank in [0, 63, 64, 200, MOST_RANKS - 1] {
            assert!(set.insert(rank) && !set.insert(rank));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 200, MOST_RANKS - 1]);
        assert_eq!(format!("{set:?}"), "{0, 63, 64, 200, 4095}");
        assert_eq!(RankSet::from_words(set.words()), Some(set.clone()));
        assert_eq!(RankSet::from_words(&[1; WORDS + 1]), None);
        let mut other = RankSet::EMPTY;
        other.insert(5);
        assert!(other.unite(&set) && !other.unite(&set));
        assert!(other.contains(5) && other.contains(200) && !set.contains(5));
    }

    #[test]
    fn what_is_read_was_written_together() {
        let (board, done) = (zeroed(), AtomicBool::new(false));
        assert_eq!(board.read(), Some(Announcement::NOTHING));
        let announcement = |number: u64| Announcement {
            attempt: number,
            phase: Phase::Made,
            settled: number,
            port: number as u16,
            label: number,
            dead: RankSet([number; WORDS]),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (1..=20_000).for_each(|number| board.publish(&announcement(number)));
                done.store(true, Release);
            });
            let mut last = 0;
            while !done.load(Acquire) {
                let Some(read) = board.read().filter(|read| read.attempt > 0) else { continue };
                assert_eq!(read, announcement(read.attempt));
                assert!(read.attempt >= last);
                last = read.attempt;
            }
        });
        assert_eq!(board.read(), Some(announcement(20_000)));
    }
}
