//! The prover: runs all ranks' plans on symbols instead of numbers and checks every promise.
//!
//! The one idea: a connection has one writer and one reader and both block, so the plans form a
//! Kahn network, whose results and deadlocks do not depend on the order in which ranks run. **One
//! run therefore proves all of them**, and running the ranks round by round is enough.
//!
//! A value is the set of ranks that it contains, the expression that formed it, and whether it was
//! finished. A proof covers, for one rank count, root, depth and placement: every output that the
//! collective wants holds exactly the inputs it must, each once, finished once; all ranks that keep
//! a result formed it by the same expression (the same bits); messages mean the same span to both
//! ends and none is left over; no unset memory is read; no memory but the wanted outputs is
//! written; an input is never read after an output in place has replaced it; and no rank waits for
//! ever. It runs one slice more than a connection has slots, so that every slot is used again.

mod message_queues;
mod pipeline;
mod run;
mod symbolic_memory;

#[cfg(test)]
use super::Step;
use super::topology::Topology;
use super::{Collective, End, Plan, Span};
pub use pipeline::verify_pipelined;
use std::fmt;
use symbolic_memory::{Value, balanced, in_order};

/// Where the output lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Input and output share no memory.
    OutOfPlace,
    /// The output lies on the input as NCCL defines it: a chunk that both hold is one memory, and
    /// in AllToAll the block to rank p lies where the block from rank p arrives.
    InPlace,
}

impl Placement {
    pub const ALL: [Placement; 2] = [Placement::OutOfPlace, Placement::InPlace];
}

/// What a proof has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Messages that each rank sends in one slice.
    pub messages: Vec<usize>,
    /// Chunks in those messages.
    pub chunks: Vec<usize>,
    /// Every reduced output is one step over all inputs in rank order: the serial loop.
    pub serial: bool,
    /// By chunk of a collective that reduces: a hash of the expression of its result.
    pub formed: Vec<u64>,
}

/// Where and how a set of plans is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rank: usize,
    /// The step, from 0; `None` after the last one.
    pub step: Option<usize>,
    /// The slice, from 0.
    pub slice: usize,
    pub fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The plans do not belong together, or a step can never be run by any executor.
    Malformed(String),
    /// A source that nothing has been written to.
    Unset { source: End, chunk: usize },
    /// The input is not this rank's, or an output in place has replaced it.
    InputGone { chunk: usize },
    /// A target that the collective does not give to this rank.
    NotWanted { chunk: usize },
    /// The same contribution came in twice.
    Twice { chunk: usize },
    /// A complete value was reduced or finished again.
    Refinished { chunk: usize },
    /// A message is not what its reader takes it for.
    Mismatch { peer: usize, wanted: (usize, Span), got: (usize, Span) },
    /// An output does not hold what the collective promises.
    Wrong { chunk: usize, wanted: u64, got: u64, finished: bool },
    /// Ranks formed the same result by different expressions.
    Disagree { chunk: usize },
    /// Messages that nobody has read.
    Leftover { to: usize, count: usize },
    /// No rank can go on; one of them, and what it waits for.
    Deadlock { waits_for: Wait },
}

/// What a blocked step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Message { from: usize },
    Slot { to: usize },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "rank {}, step {step}, slice {}: ", self.rank, self.slice)?,
            None => write!(f, "rank {}, after the last step: ", self.rank)?,
        }
        match &self.fault {
            Fault::Malformed(what) => f.write_str(what),
            Fault::Unset { source, chunk } => {
                write!(f, "chunk {chunk} of {source:?} is read before it is written")
            }
            Fault::InputGone { chunk } => {
                write!(f, "chunk {chunk} of the input is not there, or overwritten in place")
            }
            Fault::NotWanted { chunk } => {
                write!(f, "chunk {chunk} of the output is written but not this rank's")
            }
            Fault::Twice { chunk } => write!(f, "chunk {chunk} gets one contribution twice"),
            Fault::Refinished { chunk } => {
                write!(f, "chunk {chunk} was complete and is reduced or finished again")
            }
            Fault::Mismatch { peer, wanted, got } => write!(
                f,
                "expects chunks {:?} of slice {} from rank {peer}, which sent chunks {:?} of \
                 slice {}",
                wanted.1.chunks(),
                wanted.0,
                got.1.chunks(),
                got.0
            ),
            Fault::Wrong { chunk, wanted, got, finished } => write!(
                f,
                "output chunk {chunk} holds the inputs {got:#b} ({}), wanted {wanted:#b}",
                if *finished { "finished" } else { "not finished" }
            ),
            Fault::Disagree { chunk } => {
                write!(f, "output chunk {chunk} is another expression than on other ranks")
            }
            Fault::Leftover { to, count } => {
                write!(f, "{count} messages to rank {to} are never read")
            }
            Fault::Deadlock { waits_for: Wait::Message { from } } => {
                write!(f, "deadlock: waits for a message from rank {from}")
            }
            Fault::Deadlock { waits_for: Wait::Slot { to } } => {
                write!(f, "deadlock: waits for a free slot to rank {to}")
            }
        }
    }
}

impl std::error::Error for Violation {}

/// A set of ranks is one word.
pub const MAX_RANKS: usize = 64;

/// Prove the plans of all ranks, in rank order, for connections of `depth` slots.
pub fn verify(
    collective: Collective,
    plans: &[Plan],
    root: usize,
    depth: usize,
    placement: Placement,
) -> Result<Report, Violation> {
    check_set(collective, plans, root, depth)?;
    for plan in plans {
        check_steps(plan)?;
    }
    run::Verification::new(collective, plans, root, depth, placement).prove()
}

/// The hash that [`Report::formed`] has for a chunk whose result is the sum of the hosts' sums, as
/// a balanced tree, of their ranks' inputs in rank order.
pub fn formed_by_hosts(topology: &Topology, chunk: usize) -> u64 {
    let part = |host: usize| {
        let inputs = topology.ranks(host).iter().map(|&rank| Value::input(rank, chunk));
        in_order(&inputs.collect::<Vec<_>>(), chunk).expect("every input once")
    };
    let parts: Vec<Value> = (0..topology.nhosts()).map(part).collect();
    balanced(&parts, chunk).expect("every input once").expression
}

fn malformed(rank: usize, step: Option<usize>, what: impl Into<String>) -> Violation {
    Violation { rank, step, slice: 0, fault: Fault::Malformed(what.into()) }
}

/// The plans belong together and cut the collective as its chunk numbering says.
fn check_set(
    collective: Collective,
    plans: &[Plan],
    root: usize,
    depth: usize,
) -> Result<(), Violation> {
    use Collective::*;
    let nranks = plans.len();
    let Some(first) = plans.first() else { return Err(malformed(0, None, "no plans")) };
    if nranks > MAX_RANKS || root >= nranks || depth == 0 {
        return Err(malformed(
            0,
            None,
            format!("{nranks} ranks (at most {MAX_RANKS}), root {root}, depth {depth}"),
        ));
    }
    let right = |nchunks| match collective {
        AllReduce | Broadcast | Reduce | Barrier => nchunks > 0,
        ReduceScatter | AllGather | Gather | Scatter => nchunks == nranks,
        AllToAll => nchunks == nranks * nranks,
    };
    for (rank, plan) in plans.iter().enumerate() {
        let same = (plan.rank, plan.nranks, plan.nchunks) == (rank, nranks, first.nchunks);
        if !same || !right(plan.nchunks) {
            let what = format!("{} chunks, rank {}", plan.nchunks, plan.rank);
            return Err(malformed(rank, None, format!("not a plan of this set: {what}")));
        }
    }
    Ok(())
}

/// What every executor may take for granted about a step.
fn check_steps(plan: &Plan) -> Result<(), Violation> {
    for (index, step) in plan.steps.iter().enumerate() {
        let wrong = |what: &str| Err(malformed(plan.rank, Some(index), what));
        if step.span.len == 0 || step.span.first + step.span.len > plan.nchunks {
            return wrong("the span is empty or runs past the last chunk");
        }
        if step.sources.is_empty() || step.targets.is_empty() {
            return wrong("a step has at least one source and one target");
        }
        let local = |end: &End| !matches!(end, End::Peer(_));
        if step.targets.iter().skip(1).any(local) {
            return wrong("only the first target is local");
        }
        if step.targets.contains(&End::Input) {
            return wrong("the input is never a target");
        }
        for ends in [&step.sources, &step.targets] {
            for (at, end) in ends.iter().enumerate() {
                if ends[..at].contains(end) {
                    return wrong("an end appears twice");
                }
                if matches!(end, End::Peer(peer) if *peer >= plan.nranks || *peer == plan.rank) {
                    return wrong("a peer is another rank of the communicator");
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
