//! How news reaches every rank: each passes it on to a few neighbours.
//!
//! Ranks that live sit in a circle, and a rank's neighbours are those 1, 2, 4, 8, ... places away
//! from it in both directions: news crosses `n` ranks in `log n` hops, and the circle closes over
//! those who die, so that it stays whole whoever does. What is kept of a rank is its newest
//! status and whether it is gone; a neighbour that is slow to read gets the newest when it does,
//! so nothing piles up.
//!
//! No sockets and no clock in here: connections, bytes and verdicts come in as calls, bytes and
//! changes go out.

use super::frame::{Item, Opener, Refusal, Sealer};
use super::status::Status;
use crate::executor::announcement::Phase;
use std::collections::VecDeque;

/// Bytes that are sealed ahead of what a socket takes: a few dozen statuses.
const AHEAD: usize = 16 << 10;

/// What is known of a rank.
#[derive(Default)]
struct Known {
    version: u64,
    status: Option<Box<Status>>,
    is_gone: bool,
}

impl Known {
    /// It has said goodbye: the end of its connections is no news.
    fn has_left(&self) -> bool {
        self.status.as_deref().is_some_and(|status| status.board.phase == Phase::Closed)
    }
}

/// A connection to a neighbour.
struct Link {
    sealer: Sealer,
    opener: Opener,
    /// Ranks that there is news of, in order; each at most once.
    queue: VecDeque<u32>,
    queued: Vec<bool>,
    /// Sealed and not yet the socket's.
    outgoing: Vec<u8>,
}

impl Link {
    fn queue(&mut self, rank: usize) {
        if !std::mem::replace(&mut self.queued[rank], true) {
            self.queue.push_back(rank as u32);
        }
    }
}

/// What has changed for this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// There is a newer status of the rank.
    Status(usize),
    Gone(usize),
}

pub struct Gossip {
    rank: usize,
    known: Vec<Known>,
    links: Vec<Option<Link>>,
    news: Vec<News>,
}

impl Gossip {
    pub fn new(rank: usize, nranks: usize) -> Gossip {
        Gossip {
            rank,
            known: (0..nranks).map(|_| Known::default()).collect(),
            links: (0..nranks).map(|_| None).collect(),
            news: Vec::new(),
        }
    }

    /// The ranks that this one should have a connection with.
    pub fn neighbours(&self) -> Vec<usize> {
        let lives = |rank: &usize| {
            *rank == self.rank || !(self.known[*rank].is_gone || self.known[*rank].has_left())
        };
        let circle: Vec<usize> = (0..self.known.len()).filter(lives).collect();
        let mine = circle.iter().position(|rank| *rank == self.rank).expect("it counts itself");
        let steps =
            (0..usize::BITS).map(|power| 1 << power).take_while(|step| *step < circle.len());
        let pair = |step| [mine + step, mine + circle.len() - step];
        let mut all: Vec<usize> =
            steps.flat_map(pair).map(|place| circle[place % circle.len()]).collect();
        all.retain(|rank| *rank != self.rank);
        all.sort_unstable();
        all.dedup();
        all
    }

    pub fn is_linked(&self, rank: usize) -> bool {
        self.links[rank].is_some()
    }

    pub fn is_gone(&self, rank: usize) -> bool {
        self.known[rank].is_gone
    }

    pub fn has_left(&self, rank: usize) -> bool {
        self.known[rank].has_left()
    }

    pub fn status(&self, rank: usize) -> Option<&Status> {
        self.known[rank].status.as_deref()
    }

    /// What has changed since it was last asked.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// This rank's own page says something; whether that is new.
    pub fn publish(&mut self, status: Status) -> bool {
        let known = &mut self.known[self.rank];
        if known.status.as_deref() == Some(&status) {
            return false;
        }
        known.version += 1;
        known.status = Some(Box::new(status));
        self.pass_on(self.rank, None);
        true
    }

    /// A connection with a neighbour, in place of an earlier one; `send` and `receive` are its
    /// keys, never used for another.
    pub fn connected(&mut self, neighbour: usize, send: &[u8; 32], receive: &[u8; 32]) {
        let nranks = self.known.len();
        let mut link = Link {
            sealer: Sealer::new(send),
            opener: Opener::new(receive),
            queue: VecDeque::new(),
            queued: vec![false; nranks],
            outgoing: Vec::new(),
        };
        let told = |known: &Known| known.is_gone || known.status.is_some();
        (0..nranks).filter(|rank| told(&self.known[*rank])).for_each(|rank| link.queue(rank));
        self.links[neighbour] = Some(link);
    }

    /// The connection is of no more use.
    pub fn closed(&mut self, neighbour: usize) {
        self.links[neighbour] = None;
    }

    /// A rank has died, or nobody can reach it.
    pub fn died(&mut self, rank: usize) {
        self.note_gone(rank, None);
    }

    /// Show a neighbour that this rank is there.
    pub fn beat(&mut self, neighbour: usize) {
        if let Some(link) = &mut self.links[neighbour]
            && link.outgoing.is_empty()
        {
            link.sealer.seal(&Item::Beat, &mut link.outgoing);
        }
    }

    /// Bytes have come from a neighbour. An error ends the connection.
    pub fn received(&mut self, neighbour: usize, bytes: &[u8]) -> Result<(), Refusal> {
        let Some(link) = &mut self.links[neighbour] else { return Ok(()) };
        let mut items = Vec::new();
        let outcome = link.opener.feed(bytes, |item| items.push(item));
        // What came before something wrong was right.
        for item in items {
            self.heard(neighbour, item)?;
        }
        outcome
    }

    /// What is to be sent to a neighbour next.
    pub fn outgoing(&mut self, neighbour: usize) -> &[u8] {
        let Some(link) = &mut self.links[neighbour] else { return &[] };
        while link.outgoing.len() < AHEAD
            && let Some(rank) = link.queue.pop_front()
        {
            link.queued[rank as usize] = false;
            let known = &self.known[rank as usize];
            if let Some(status) = &known.status {
                let item = Item::Status { rank, version: known.version, status: status.clone() };
                link.sealer.seal(&item, &mut link.outgoing);
            }
            if known.is_gone {
                link.sealer.seal(&Item::Gone { rank }, &mut link.outgoing);
            }
        }
        &link.outgoing
    }

    /// So many bytes of [`Gossip::outgoing`] are the neighbour's.
    pub fn sent(&mut self, neighbour: usize, count: usize) {
        if let Some(link) = &mut self.links[neighbour] {
            link.outgoing.drain(..count);
        }
    }

    fn heard(&mut self, from: usize, item: Item) -> Result<(), Refusal> {
        match item {
            Item::Beat => Ok(()),
            Item::Status { rank, version, status } => {
                let rank = self.known_rank(rank)?;
                let known = &mut self.known[rank];
                if rank != self.rank && version > known.version {
                    (known.version, known.status) = (version, Some(status));
                    self.news.push(News::Status(rank));
                    self.pass_on(rank, Some(from));
                }
                Ok(())
            }
            Item::Gone { rank } => {
                let rank = self.known_rank(rank)?;
                self.note_gone(rank, Some(from));
                Ok(())
            }
        }
    }

    fn known_rank(&self, rank: u32) -> Result<usize, Refusal> {
        let rank = rank as usize;
        if rank < self.known.len() { Ok(rank) } else { Err("news of a rank that there is not") }
    }

    fn note_gone(&mut self, rank: usize, from: Option<usize>) {
        // Who takes this rank for dead cannot hear it; what this one does is its own affair.
        if rank == self.rank || self.has_left(rank) {
            return;
        }
        if std::mem::replace(&mut self.known[rank].is_gone, true) {
            return;
        }
        self.news.push(News::Gone(rank));
        self.pass_on(rank, from);
    }

    fn pass_on(&mut self, rank: usize, except: Option<usize>) {
        for (neighbour, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link.as_mut().filter(|_| Some(neighbour) != except) {
                link.queue(rank);
            }
        }
    }
}

#[cfg(test)]
#[path = "gossip_tests.rs"]
mod tests;
