//! Closed forms: what each algorithm's critical path is made of.
//!
//! Each row of [`ClosedForm::of`] is the cost line of that algorithm's own header; a test holds
//! every row against the simulated clock.

use super::Costs;
use crate::algorithm::Algorithm::{self, *};
use crate::algorithm::halving_chunks;
use crate::plan::Collective::{self, *};

/// Things done by one rank after the other, or by all: they add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CostTerms {
    /// Messages posted and taken.
    pub messages: f64,
    /// Bytes put into slots.
    pub sent: f64,
    /// Bytes copied into local memory.
    pub copied: f64,
    /// Bytes of further operands.
    pub reduced: f64,
    /// Bytes read or written that another core wrote or read last, but for those in slots: of
    /// these each crosses twice, to the reader and back, as room for the next.
    pub crossed: f64,
}

impl CostTerms {
    pub fn time(&self, costs: &Costs) -> f64 {
        self.messages * costs.message_us
            + (self.sent + self.copied) * costs.copy_us_per_byte
            + self.reduced * costs.reduce_us_per_byte
            + (2.0 * self.sent + self.crossed) * costs.cross_us_per_byte
    }

    pub fn and(self, other: CostTerms) -> CostTerms {
        CostTerms {
            messages: self.messages + other.messages,
            sent: self.sent + other.sent,
            copied: self.copied + other.copied,
            reduced: self.reduced + other.reduced,
            crossed: self.crossed + other.crossed,
        }
    }

    pub fn times(self, factor: f64) -> CostTerms {
        CostTerms {
            messages: self.messages * factor,
            sent: self.sent * factor,
            copied: self.copied * factor,
            reduced: self.reduced * factor,
            crossed: self.crossed * factor,
        }
    }
}

pub(super) fn work(messages: f64, sent: f64, copied: f64, reduced: f64) -> CostTerms {
    CostTerms { messages, sent, copied, reduced, crossed: 0.0 }
}

impl CostTerms {
    /// Of a rank that sends and takes nothing: it gets every line of a slot once, as its peer does.
    fn only_sent(self) -> CostTerms {
        CostTerms { crossed: self.crossed - self.sent, ..self }
    }

    /// Of a rank that takes so many bytes out of slots and sends nothing.
    fn only_taken(self, bytes: f64) -> CostTerms {
        CostTerms { crossed: self.crossed + bytes, ..self }
    }
}

/// The cost of one slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ClosedForm {
    /// Messages whose latency the critical path waits for.
    pub alphas: f64,
    /// The work on the critical path.
    pub path: CostTerms,
    /// The busiest rank's work, where slices stream one behind the other.
    pub period: Option<CostTerms>,
    /// The work of all ranks.
    pub total: CostTerms,
}

/// Chunks of the widest message, of which each has its share of a slot.
pub(super) fn widest_message(algorithm: Algorithm, collective: Collective, nranks: usize) -> usize {
    let widest = match (algorithm, collective) {
        (Halving, AllReduce) => halving_chunks(nranks).div_ceil(2),
        (Halving, _) => nranks.div_ceil(2),
        (Doubling, AllGather) => nranks / 2,
        (Binomial, Gather | Scatter) => (nranks.next_power_of_two() / 2).min(nranks - 1),
        _ => 1,
    };
    // One rank alone asks, too, and has no messages.
    widest.max(1)
}

/// Bytes of the longest message.
pub(super) fn longest_message(
    algorithm: Algorithm,
    collective: Collective,
    nranks: usize,
    bytes: f64,
) -> f64 {
    match (algorithm, collective) {
        (DoubleTree, _) | (Halving, AllReduce) => bytes / 2.0,
        (_, AllReduce | Broadcast | Reduce | Barrier) if !matches!(algorithm, TwoShot | Ring) => {
            bytes
        }
        _ => bytes / nranks as f64 * widest_message(algorithm, collective, nranks) as f64,
    }
}

impl ClosedForm {
    /// `None` where the algorithm does not do the collective. `bytes` as in
    /// [`super::Question::bytes`], of one slice.
    pub fn of(
        algorithm: Algorithm,
        collective: Collective,
        nranks: usize,
        bytes: f64,
    ) -> Option<ClosedForm> {
        if (algorithm == Local) != (nranks == 1) {
            return None;
        }
        if algorithm == Local {
            let path = work(0.0, 0.0, bytes, 0.0);
            return Some(ClosedForm { alphas: 0.0, path, period: None, total: path });
        }
        let n = nranks as f64;
        match collective {
            AllReduce => all_reduce(algorithm, nranks, bytes),
            Barrier if matches!(algorithm, OneShot | Doubling | DoubleTree) => {
                all_reduce(algorithm, nranks, 0.0)
            }
            Barrier => None,
            ReduceScatter | AllGather | AllToAll => blocks(algorithm, collective, n, bytes / n),
            Broadcast | Reduce => vector(algorithm, collective, nranks, bytes),
            Gather | Scatter => parts(algorithm, collective, n, bytes / n),
        }
    }

    /// All ranks do the same work, and none can start its next slice before the last one's end.
    fn alike(n: f64, alphas: f64, path: CostTerms) -> Option<ClosedForm> {
        Some(ClosedForm { alphas, path, period: None, total: path.times(n) })
    }

    /// As [`ClosedForm::alike`] for plans in stages, whose slices follow each other without a wait.
    fn staged(n: f64, alphas: f64, path: CostTerms) -> Option<ClosedForm> {
        Some(ClosedForm { alphas, path, period: Some(path), total: path.times(n) })
    }
}

fn floor_log2(nranks: usize) -> f64 {
    f64::from(nranks.ilog2())
}

fn ceil_log2(n: f64) -> f64 {
    n.log2().ceil()
}

/// Messages that a member sends in a round of halving, and its bytes beside those of the least:
/// where halves differ, their shares overlap, and who has less to do waits for the others.
pub(super) fn halving_shares(members: usize) -> (f64, f64) {
    if members.is_power_of_two() { (1.0, 1.0) } else { (1.5, 1.2) }
}

/// `b` bytes of vector; `c` is one of n chunks.
fn all_reduce(algorithm: Algorithm, nranks: usize, b: f64) -> Option<ClosedForm> {
    let n = nranks as f64;
    let (others, c) = (n - 1.0, b / n);
    let (parts, floor) = (others * c, floor_log2(nranks));
    match algorithm {
        // The first operand of a reduction is copied, the others are added to it.
        OneShot => ClosedForm::staged(n, 1.0, work(2.0 * others, others * b, b, others * b)),
        TwoShot => ClosedForm::staged(n, 2.0, work(4.0 * others, 2.0 * parts, parts + c, parts)),
        Ring => ClosedForm::alike(n, 2.0 * others, work(4.0 * others, 2.0 * parts, parts, parts)),
        Doubling => {
            let rounds = ceil_log2(n);
            ClosedForm::alike(n, rounds, work(2.0 * rounds, rounds * b, 0.0, rounds * b))
        }
        Halving => {
            let rounds = 2.0 * ceil_log2(n);
            let (messages, share) = halving_shares(nranks);
            let (messages, parts) = (2.0 * rounds * messages, parts * share);
            ClosedForm::alike(n, rounds, work(messages, 2.0 * parts, parts, parts))
        }
        DoubleTree => {
            // A level up: two takes, a post, two operands; a level down: a take, two posts, a copy.
            let h = b / 2.0;
            let path = work(6.0 * floor, 3.0 * floor * h, floor * h, 2.0 * floor * h);
            let total = work(8.0 * others, 2.0 * others * b, others * b, others * b);
            Some(ClosedForm { alphas: 2.0 * floor, path, period: None, total })
        }
        Chain => {
            let path = work(4.0 * others, 2.0 * others * b, others * b, others * b);
            Some(ClosedForm { alphas: 2.0 * others, path, period: None, total: path })
        }
        _ => None,
    }
}

/// Collectives in which every rank has a block of `c` bytes for or from every other.
fn blocks(algorithm: Algorithm, collective: Collective, n: f64, c: f64) -> Option<ClosedForm> {
    let others = n - 1.0;
    let path = match collective {
        ReduceScatter => work(2.0 * others, others * c, 0.0, others * c),
        _ => work(2.0 * others, others * c, n * c, 0.0),
    };
    let rounds = match (algorithm, collective) {
        (OneShot, _) => 1.0,
        (Ring, ReduceScatter | AllGather) | (Pairwise, _) => others,
        // A block is completed somewhere, and goes to its rank from there.
        (Halving, ReduceScatter) => ceil_log2(n) + f64::from(u8::from(n > 2.0)),
        (Doubling, AllGather) => ceil_log2(n),
        _ => return None,
    };
    let path = match algorithm {
        Halving => {
            let (messages, share) = halving_shares(n as usize);
            let hop = if n > 2.0 { c } else { 0.0 };
            let parts = others * c * share;
            work(2.0 * rounds * messages, parts + hop, hop, parts)
        }
        Doubling => CostTerms { messages: 2.0 * rounds, ..path },
        _ => path,
    };
    ClosedForm::alike(n, rounds, path)
}

/// One vector of `b` bytes from or to a root.
fn vector(
    algorithm: Algorithm,
    collective: Collective,
    nranks: usize,
    b: f64,
) -> Option<ClosedForm> {
    let n = nranks as f64;
    let (others, c) = (n - 1.0, b / n);
    let broadcast = collective == Broadcast;
    // A hop takes the vector in and passes it on.
    let hop = |share: f64| match broadcast {
        true => work(2.0, share, share, 0.0),
        false => work(2.0, share, 0.0, share),
    };
    let total = hop(b).times(others);
    // Of two ranks one sends while the other reduces: there is no middle that does both.
    let ends = if nranks == 2 && !broadcast { 0.5 } else { 1.0 };
    let (alphas, path, period) = match algorithm {
        OneShot if broadcast => {
            let root = work(others, others * b, b, 0.0).only_sent();
            (1.0, work(n, others * b, 2.0 * b, 0.0), root)
        }
        OneShot => {
            let root = work(others, 0.0, 0.0, others * b).only_taken(others * b);
            (1.0, work(n, b, 0.0, others * b), root)
        }
        TwoShot if broadcast => {
            let path = work(3.0 * others, 3.0 * others * c, 2.0 * b, 0.0);
            (2.0, path, work(2.0 * others, 2.0 * others * c, b, 0.0))
        }
        TwoShot => {
            let parts = others * c;
            let root = work(3.0 * others, parts, parts, parts);
            (2.0, work(3.0 * others + 1.0, parts + c, parts, parts), root)
        }
        DoubleTree => tree(nranks, b, broadcast),
        Chain if broadcast && nranks == 2 => (1.0, hop(b), hop(b).only_sent()),
        Chain => (others, hop(b).times(others), hop(b).times(ends)),
        Binomial => binomial(nranks, b, broadcast),
        _ => return None,
    };
    Some(ClosedForm { alphas, path, period: Some(period), total })
}

/// The double tree of [`vector`]: alphas, path and period.
fn tree(nranks: usize, b: f64, broadcast: bool) -> (f64, CostTerms, CostTerms) {
    let hops = if nranks == 2 { 1.0 } else { floor_log2(nranks - 1) + 1.0 };
    let h = b / 2.0;
    // An inner node of one tree has two children there, and is a leaf of the other.
    let (level, busy) = match broadcast {
        true => (work(3.0, 2.0 * h, h, 0.0), work(4.0, b, b, 0.0)),
        false => (work(3.0, h, 0.0, 2.0 * h), work(4.0, b, 0.0, b)),
    };
    if nranks == 2 {
        return (hops, busy, if broadcast { busy.only_sent() } else { busy.times(0.5) });
    }
    // A rank meets the two halves of a slice at levels up to `hops` apart, and a connection lets
    // only two slices be under way in between.
    (hops, level.times(hops), busy.times((hops / 2.0).max(1.0)))
}

/// The binomial tree of [`vector`]: alphas, path and period.
fn binomial(nranks: usize, b: f64, broadcast: bool) -> (f64, CostTerms, CostTerms) {
    let levels = ceil_log2(nranks as f64);
    if broadcast {
        let root = work(levels, levels * b, b, 0.0).only_sent();
        return (levels, work(2.0, b, b, 0.0).times(levels), root);
    }
    // At every level a speaker takes, reduces and sends on; the root takes at all of them.
    let root = work(levels, 0.0, 0.0, levels * b).only_taken(levels * b);
    (levels, work(2.0, b, 0.0, b).times(levels), root)
}

/// A block of `c` bytes of every rank, from or to a root.
fn parts(algorithm: Algorithm, collective: Collective, n: f64, c: f64) -> Option<ClosedForm> {
    let (others, gather) = (n - 1.0, collective == Gather);
    let all = others * c;
    let root = match gather {
        true => work(others, 0.0, n * c, 0.0).only_taken(all),
        false => work(others, all, c, 0.0).only_sent(),
    };
    let levels = ceil_log2(n);
    let (alphas, path, total) = match algorithm {
        OneShot if gather => (1.0, work(n, c, n * c, 0.0), work(2.0 * n, all, n * c, 0.0)),
        OneShot => (1.0, work(n, all, c, 0.0), work(2.0 * n, all, n * c, 0.0)),
        Binomial => {
            // The largest subtree below the root, then half of it, and so on.
            let half = 2f64.powf(levels - 1.0);
            let below = (n - half).max(half / 2.0).floor().max(1.0);
            let copied = if gather { (n + 2.0 * below - 2.0) * c } else { all };
            let sent = if gather { (2.0 * below - 1.0) * c } else { all };
            let moved = levels / 2.0 + 1.0;
            (
                levels,
                work(2.0 * levels, sent, copied, 0.0),
                work(2.0 * n, all, all, 0.0).times(moved),
            )
        }
        _ => return None,
    };
    Some(ClosedForm { alphas, path, period: Some(root), total })
}
