//! Algorithms: how a collective is done, each a pure function of the rank that returns a plan.
//!
//! Every sibling answers the same question, [`plan`], for the collectives that it knows. Whether it
//! knows one depends on the collective and on the number of ranks, never on the rank, so all ranks
//! agree. [`crate::plan::verify`] proves every answer, out of place and in place.

mod balanced;
mod binomial;
mod chain;
mod doubling;
mod halving;
mod hierarchical;
mod oneshot;
mod pairwise;
mod ring;
pub mod select;
mod tree;
mod twoshot;

use crate::error::{Error, Result};
use crate::plan::topology::Topology;
use crate::plan::{Collective, End, Plan, Span};
use crate::suggest::nearest;
use balanced::Members;
pub use balanced::left_half;
pub use halving::chunks as halving_chunks;
use std::fmt;

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// Every rank hears all others directly and finishes alone.
    OneShot,
    /// Every rank finishes its own part, then everybody collects the parts.
    TwoShot,
    /// Chunks travel around a circle.
    Ring,
    /// Groups that agree double in every round.
    Doubling,
    /// What is left to reduce halves in every round.
    Halving,
    /// Two trees, each for half of the vector.
    DoubleTree,
    /// Slices stream along a line.
    Chain,
    /// The ranks that are done double in every round, from or to a root.
    Binomial,
    /// One partner at a time.
    Pairwise,
    /// One rank alone.
    Local,
    /// First among the ranks of a host, then between hosts, in as many channels as hosts have
    /// ranks.
    Hierarchical,
    /// The same in one channel and one round: a rank of each host speaks for it.
    Leaders,
}

impl Algorithm {
    pub const ALL: [Algorithm; 12] = [
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::Ring,
        Algorithm::Doubling,
        Algorithm::Halving,
        Algorithm::DoubleTree,
        Algorithm::Chain,
        Algorithm::Binomial,
        Algorithm::Pairwise,
        Algorithm::Local,
        Algorithm::Hierarchical,
        Algorithm::Leaders,
    ];

    /// The name that `RINGCOMM_ALGO` takes and explanations print.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::OneShot => "oneshot",
            Algorithm::TwoShot => "twoshot",
            Algorithm::Ring => "ring",
            Algorithm::Doubling => "doubling",
            Algorithm::Halving => "halving",
            Algorithm::DoubleTree => "tree",
            Algorithm::Chain => "chain",
            Algorithm::Binomial => "binomial",
            Algorithm::Pairwise => "pairwise",
            Algorithm::Local => "local",
            Algorithm::Hierarchical => "hierarchical",
            Algorithm::Leaders => "leaders",
        }
    }

    /// The algorithm of that name; an unknown one is an error with the choices.
    pub fn from_name(name: &str) -> Result<Algorithm> {
        let lower = name.trim().to_ascii_lowercase();
        if let Some(found) = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == lower)
        {
            return Ok(found);
        }
        let choices = Algorithm::ALL.map(Algorithm::name);
        let guess = nearest(&lower, &choices);
        let guess = guess.map_or("the".into(), |near| format!("did you mean {near:?}? The"));
        Err(Error::argument(format!(
            "unknown algorithm {name:?}; {guess} choices are {}",
            choices.join(", ")
        )))
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `rank` does in `collective` by `algorithm`; `None` where the algorithm does not do it.
///
/// As [`plan_on`] where all ranks share a host, or where sums are to be in serial order.
pub fn plan(
    algorithm: Algorithm,
    collective: Collective,
    rank: usize,
    nranks: usize,
    root: usize,
) -> Option<Plan> {
    assert!(rank < nranks && root < nranks, "rank {rank}, root {root} of {nranks}");
    match algorithm {
        Algorithm::Hierarchical | Algorithm::Leaders => None,
        flat => of_members(flat, collective, &Members::ranks(rank, nranks), nranks, root),
    }
}

/// What `rank` does in `collective` by `algorithm`; `None` where the algorithm does not do it.
///
/// `root` matters only where [`Collective::has_root`]. Algorithms in [`host_order`] sum in it.
pub fn plan_on(
    topology: &Topology,
    algorithm: Algorithm,
    collective: Collective,
    rank: usize,
    root: usize,
) -> Option<Plan> {
    let nranks = topology.nranks();
    assert!(rank < nranks && root < nranks, "rank {rank}, root {root} of {nranks}");
    match algorithm {
        Algorithm::Hierarchical => hierarchical::plan(collective, rank, topology, root),
        Algorithm::Leaders => hierarchical::leaders(collective, rank, topology, root),
        flat => {
            let members = Members::on(rank, topology);
            let plan = of_members(flat, collective, &members, nranks, root)?;
            let alone = topology.nhosts() == nranks;
            Some(if alone { plan.balanced() } else { plan })
        }
    }
}

fn of_members(
    algorithm: Algorithm,
    collective: Collective,
    members: &Members,
    nranks: usize,
    root: usize,
) -> Option<Plan> {
    let rank = members.rank;
    if algorithm == Algorithm::Local {
        return alone(collective, nranks);
    }
    if nranks == 1 {
        return None;
    }
    match algorithm {
        Algorithm::OneShot => oneshot::plan(collective, rank, nranks, root),
        Algorithm::TwoShot => twoshot::plan(collective, rank, nranks, root),
        Algorithm::Ring => ring::plan(collective, rank, nranks, root),
        Algorithm::Doubling => doubling::plan(collective, members, nranks),
        Algorithm::Halving => halving::plan(collective, members, nranks),
        Algorithm::DoubleTree => tree::plan(collective, rank, nranks, root),
        Algorithm::Chain => chain::plan(collective, rank, nranks, root),
        Algorithm::Binomial => binomial::plan(collective, members, nranks, root),
        Algorithm::Pairwise => pairwise::plan(collective, rank, nranks, root),
        Algorithm::Local => unreachable!("answered above"),
        Algorithm::Hierarchical | Algorithm::Leaders => None,
    }
}

/// Lanes that run beside each other between hosts, each with ranks of its own.
pub fn channels(topology: &Topology, algorithm: Algorithm, collective: Collective) -> usize {
    use Collective::*;
    let has_lanes = match algorithm {
        Algorithm::Hierarchical => true,
        Algorithm::Doubling => collective == AllReduce,
        Algorithm::Halving => matches!(collective, AllReduce | ReduceScatter),
        _ => false,
    };
    if has_lanes && topology.nhosts() > 1 { topology.min_per_host() } else { 1 }
}

/// Whether the algorithm reduces in host order between hosts, `alone` where each has one rank: each
/// host's ranks in rank order, then the hosts' parts as a balanced tree. All such algorithms give
/// the same bits.
pub const fn host_order(algorithm: Algorithm, collective: Collective, alone: bool) -> bool {
    use Algorithm::*;
    match algorithm {
        Hierarchical | Leaders => true,
        Doubling | Halving => collective.reduces(),
        Binomial => matches!(collective, Collective::Reduce),
        OneShot | TwoShot => alone && collective.reduces(),
        _ => false,
    }
}

/// Whether every result of [`plan`] equals the serial loop over ranks 0, 1, 2, ... bit for bit:
/// each element is reduced in one step over all inputs in rank order, or is not reduced at all.
pub const fn serial_order(algorithm: Algorithm, collective: Collective) -> bool {
    !collective.reduces()
        || matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Local)
}

/// In which order an algorithm reduces a call's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumOrder {
    /// As [`serial_order`].
    Serial,
    /// As [`host_order`].
    Hosts,
    /// The algorithm's own.
    Own,
}

impl SumOrder {
    /// The order among so many hosts and ranks, `deterministic` where the serial one is asked for.
    pub const fn of(
        algorithm: Algorithm,
        collective: Collective,
        (nhosts, nranks): (usize, usize),
        deterministic: bool,
    ) -> SumOrder {
        // Two ranks have one order.
        let alone = nhosts == nranks && nranks > 2;
        match () {
            () if serial_order(algorithm, collective) && (deterministic || !alone) => {
                SumOrder::Serial
            }
            () if nhosts > 1 && host_order(algorithm, collective, alone) => SumOrder::Hosts,
            () => SumOrder::Own,
        }
    }

    /// What explanations call it.
    pub const fn name(self) -> &'static str {
        match self {
            SumOrder::Serial => "rank order",
            SumOrder::Hosts => "host order",
            SumOrder::Own => "an order of its own",
        }
    }
}

/// One rank alone, where every collective is a copy of its input, complete.
fn alone(collective: Collective, nranks: usize) -> Option<Plan> {
    if nranks != 1 {
        return None;
    }
    let mut plan = Plan::new(0, 1, 1);
    plan.step(Span::one(0), &[End::Output], &[End::Input]).finish = collective.reduces();
    Some(plan)
}

/// All ranks but `rank`, starting after it, so that not everybody calls on rank 0 first.
fn others(rank: usize, nranks: usize) -> impl Iterator<Item = usize> {
    (1..nranks).map(move |step| (rank + step) % nranks)
}

/// The connections with the given ranks.
fn peers(ranks: impl IntoIterator<Item = usize>) -> Vec<End> {
    ranks.into_iter().map(End::Peer).collect()
}

/// Everybody's contribution in rank order, this rank's own from its input.
fn everyone(rank: usize, nranks: usize) -> Vec<End> {
    (0..nranks).map(|r| if r == rank { End::Input } else { End::Peer(r) }).collect()
}

/// The block that AllToAll moves from one rank to another.
fn block(from: usize, to: usize, nranks: usize) -> Span {
    Span::one(from * nranks + to)
}

#[cfg(test)]
mod tests;
