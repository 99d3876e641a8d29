//! How news reaches every rank: each passes it on to a few neighbours.
//!
//! Ranks that live sit in a circle, and a rank's neighbours are those 1, 2, 4, 8, ... places away
//! from it in both directions: news crosses `n` ranks in `log n` hops, and the circle closes over
//! those who die, so that it stays whole whoever does. What is kept of a rank is its newest
//! status and whether it is gone; a neighbour says how much it has read, and one that is slow to
//! gets the newest when it does, so nothing piles up, not even in its kernel. Deaths and failures
//! wait for no other news.
//!
//! No sockets and no clock in here: connections, bytes and verdicts come in as calls, bytes and
//! changes go out.

use super::frame::{ControlOpener, ControlSealer, Item, Refusal};
use super::status::Status;
use crate::error::cut;
use crate::executor::control_block::shrink_board::Phase;
use crate::executor::control_block::{Life, TEXT_BYTES};
use std::collections::VecDeque;

/// Bytes that are sealed ahead of what a neighbour has read: a few dozen statuses, and a quarter of
/// the window that Linux opens unless it is told otherwise. A kernel gives up a connection whose
/// window stays closed, also where a stopped process's kernel answers for it.
const AHEAD: u64 = 16 << 10;

/// What is known of a rank.
#[derive(Default)]
struct KnownRank {
    version: u64,
    status: Option<Box<Status>>,
    /// The news that it is gone, as it is passed on. The first stays.
    end: Option<Item>,
}

impl KnownRank {
    /// It has said goodbye: the end of its connections is no news.
    fn has_left(&self) -> bool {
        self.status.as_deref().is_some_and(|status| status.board.phase == Phase::Closed)
    }

    /// When news of it is told. What is bad stays bad.
    fn turn(&self) -> SpreadOrder {
        let has_failed = self.status.as_deref().is_some_and(|status| status.life == Life::Failed);
        if self.end.is_some() || has_failed { SpreadOrder::First } else { SpreadOrder::Later }
    }
}

/// When a neighbour is told the news of a rank.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum SpreadOrder {
    Never,
    Later,
    First,
}

/// A connection to a neighbour.
struct NeighbourLink {
    sealer: ControlSealer,
    opener: ControlOpener,
    /// Ranks that there is news of, in order; one that has moved to the front is still at its old
    /// place, which counts for nothing.
    first: VecDeque<u32>,
    later: VecDeque<u32>,
    /// By rank: which of the two it is in.
    turns: Vec<SpreadOrder>,
    /// Sealed and not yet the socket's.
    outgoing: Vec<u8>,
    /// Bytes that were ever sealed, and how many of them the neighbour says it has read.
    sealed: u64,
    was_read: u64,
    /// Bytes that ever came, and how many of them the neighbour was told of.
    read: u64,
    told: u64,
}

impl NeighbourLink {
    fn new(send: &[u8; 32], receive: &[u8; 32], nranks: usize) -> NeighbourLink {
        NeighbourLink {
            sealer: ControlSealer::new(send),
            opener: ControlOpener::new(receive),
            first: VecDeque::new(),
            later: VecDeque::new(),
            turns: vec![SpreadOrder::Never; nranks],
            outgoing: Vec::new(),
            sealed: 0,
            was_read: 0,
            read: 0,
            told: 0,
        }
    }

    fn seal(&mut self, item: &Item) {
        let before = self.outgoing.len();
        self.sealer.seal(item, &mut self.outgoing);
        self.sealed += (self.outgoing.len() - before) as u64;
    }

    /// Say that this end is there, and how much it has read.
    fn beat(&mut self) {
        self.told = self.read;
        self.seal(&Item::Beat { read: self.read });
    }

    /// What the neighbour has not read yet, as far as it has said.
    fn unread(&self) -> u64 {
        self.sealed - self.was_read
    }

    /// The neighbour says how much it has read.
    fn note_read(&mut self, read: u64) -> Result<(), Refusal> {
        if !(self.was_read..=self.sealed).contains(&read) {
            return Err("a count of bytes read that cannot be right");
        }
        self.was_read = read;
        Ok(())
    }

    fn queue(&mut self, rank: usize, turn: SpreadOrder) {
        if turn > self.turns[rank] {
            self.turns[rank] = turn;
            let queue = if turn == SpreadOrder::First { &mut self.first } else { &mut self.later };
            queue.push_back(rank as u32);
        }
    }

    /// The rank that there is news of next.
    fn next(&mut self) -> Option<usize> {
        let later = &mut self.later;
        let turns = &mut self.turns;
        let next = self.first.pop_front().or_else(|| {
            std::iter::from_fn(|| later.pop_front())
                .find(|rank| turns[*rank as usize] == SpreadOrder::Later)
        })?;
        turns[next as usize] = SpreadOrder::Never;
        Some(next as usize)
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
    known: Vec<KnownRank>,
    links: Vec<Option<NeighbourLink>>,
    news: Vec<News>,
    /// These are the last words.
    parts: bool,
}

impl Gossip {
    pub fn new(rank: usize, nranks: usize) -> Gossip {
        Gossip {
            rank,
            known: (0..nranks).map(|_| KnownRank::default()).collect(),
            links: (0..nranks).map(|_| None).collect(),
            news: Vec::new(),
            parts: false,
        }
    }

    /// The ranks that this one should have a connection with.
    pub fn neighbours(&self) -> Vec<usize> {
        let lives = |rank: &usize| {
            *rank == self.rank || !(self.is_gone(*rank) || self.known[*rank].has_left())
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
        self.known[rank].end.is_some()
    }

    /// Who could not reach a rank that is gone, and why, where nobody ever did.
    pub fn obstacle(&self, rank: usize) -> Option<(usize, &str)> {
        match &self.known[rank].end {
            Some(Item::Unreached { by, why, .. }) => Some((*by as usize, why)),
            _ => None,
        }
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
        let mut link = NeighbourLink::new(send, receive, nranks);
        let told = |known: &KnownRank| known.end.is_some() || known.status.is_some();
        for (rank, known) in self.known.iter().enumerate().filter(|(_, known)| told(known)) {
            link.queue(rank, known.turn());
        }
        self.links[neighbour] = Some(link);
    }

    /// The connection is of no more use.
    pub fn closed(&mut self, neighbour: usize) {
        self.links[neighbour] = None;
    }

    /// A rank has died, or nobody can reach it any more.
    pub fn died(&mut self, rank: usize) {
        self.note_end(rank, Item::Gone { rank: rank as u32 }, None);
    }

    /// This rank has never reached a rank.
    pub fn unreached(&mut self, rank: usize, why: String) {
        let (by, why) = (self.rank as u32, cut(&why, TEXT_BYTES).into());
        self.note_end(rank, Item::Unreached { rank: rank as u32, by, why }, None);
    }

    /// Show a neighbour that this rank is there, unless it has yet to read that: beats would fill
    /// the window of one that is stopped, and its kernel answers those of this one without them.
    pub fn beat(&mut self, neighbour: usize) {
        if let Some(link) = &mut self.links[neighbour]
            && link.outgoing.is_empty()
            && (link.unread() == 0 || link.read > link.told)
        {
            link.beat();
        }
    }

    /// Nobody will say any more that it has read: the rest goes out as sockets take it.
    pub fn stop_flow_control(&mut self) {
        self.parts = true;
    }

    /// Bytes have come from a neighbour. An error ends the connection.
    pub fn received(&mut self, neighbour: usize, bytes: &[u8]) -> Result<(), Refusal> {
        let Some(link) = &mut self.links[neighbour] else { return Ok(()) };
        let mut items = Vec::new();
        let outcome = link.opener.feed(bytes, |item| items.push(item));
        link.read += bytes.len() as u64;
        // Often enough that who reads at once never has its neighbour wait.
        if link.read - link.told >= AHEAD / 4 {
            link.beat();
        }
        // What came before something wrong was right.
        for item in items {
            self.heard(Some(neighbour), item)?;
        }
        outcome
    }

    /// What is to be sent to a neighbour next.
    pub fn outgoing(&mut self, neighbour: usize) -> &[u8] {
        let Some(link) = &mut self.links[neighbour] else { return &[] };
        loop {
            let ahead = if self.parts { link.outgoing.len() as u64 } else { link.unread() };
            if ahead >= AHEAD {
                break;
            }
            let Some(rank) = link.next() else { break };
            let (known, rank) = (&self.known[rank], rank as u32);
            if let Some(status) = &known.status {
                let item = Item::Status { rank, version: known.version, status: status.clone() };
                link.seal(&item);
            }
            if let Some(end) = &known.end {
                link.seal(end);
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

    /// The dead that are known of and, last, what this rank says of itself.
    pub fn report(&self) -> Vec<Item> {
        let ends = self.known.iter().filter_map(|known| known.end.clone());
        let mine = &self.known[self.rank];
        let (rank, version) = (self.rank as u32, mine.version);
        let status = mine.status.clone().map(|status| Item::Status { rank, version, status });
        ends.chain(status).collect()
    }

    /// Take an item of the report of a rank that is perhaps no neighbour.
    pub fn learn(&mut self, item: Item) -> Result<(), Refusal> {
        self.heard(None, item)
    }

    fn heard(&mut self, from: Option<usize>, item: Item) -> Result<(), Refusal> {
        match item {
            Item::Beat { read } => match from.and_then(|from| self.links[from].as_mut()) {
                Some(link) => link.note_read(read),
                None => Ok(()),
            },
            Item::Status { rank, version, status } => {
                let rank = self.known_rank(rank)?;
                let known = &mut self.known[rank];
                if rank != self.rank && version > known.version {
                    (known.version, known.status) = (version, Some(status));
                    self.news.push(News::Status(rank));
                    self.pass_on(rank, from);
                }
                Ok(())
            }
            Item::Gone { rank } => {
                let rank = self.known_rank(rank)?;
                self.note_end(rank, item, from);
                Ok(())
            }
            Item::Unreached { rank, by, .. } => {
                self.known_rank(by)?;
                let rank = self.known_rank(rank)?;
                self.note_end(rank, item, from);
                Ok(())
            }
        }
    }

    fn known_rank(&self, rank: u32) -> Result<usize, Refusal> {
        let rank = rank as usize;
        if rank < self.known.len() { Ok(rank) } else { Err("news of a rank that there is not") }
    }

    fn note_end(&mut self, rank: usize, end: Item, from: Option<usize>) {
        // Who takes this rank for dead cannot hear it; what this one does is its own affair.
        if rank == self.rank || self.has_left(rank) {
            return;
        }
        let known = &mut self.known[rank].end;
        if known.is_some() {
            return;
        }
        *known = Some(end);
        self.news.push(News::Gone(rank));
        self.pass_on(rank, from);
    }

    fn pass_on(&mut self, rank: usize, except: Option<usize>) {
        let turn = self.known[rank].turn();
        for (neighbour, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link.as_mut().filter(|_| Some(neighbour) != except) {
                link.queue(rank, turn);
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/gossip.rs"]
mod tests;
