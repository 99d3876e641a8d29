//! The simulator: all ranks' plans on an alpha-beta clock, for networks that are not at hand.
//!
//! The one idea: every rank has a clock of its own. A step starts when the rank is free, its
//! messages have arrived and its slots are free, and costs what its bytes cost; since plans form a
//! Kahn network, ranks can be advanced in any order and the times come out the same.
//!
//! Between hosts a [`HostWire`] takes the place of the machine's own links. Connections of
//! [`PIPELINE_DEPTH`](super::PIPELINE_DEPTH) slots or more run plans in stages, as executors do.
//!
//! Up to a million ranks: where every rank's plan is rank 0's turned round the circle (ring,
//! one-shot, two-shot), all clocks are equal and **one rank is run for all**; its own posts stand
//! for what arrives. Where hosts are alike, one host's ranks are run for all hosts'. Above
//! `MOST_EXACT` ranks the all-gather of doubling counts as turned, too: it differs where a span
//! runs on over the last chunk, and is two messages. Other plans (trees, halving, the doubling of
//! vectors: some log n steps a rank) are generated one by one, packed into some twenty bytes a step
//! and run in full. What has more than [`MAX_STEPS`] steps in all is refused
//! ([`SimulationError::TooLarge`]). Of many slices the first few are run and the rest follow at
//! their pace.

mod packed;
mod run;

use super::topology::Topology;
use super::{Collective, Plan};
use packed::Packed;
use std::fmt;

/// Steps of all ranks together, or their peers, that one simulation may hold: about ten seconds, as
/// much as a row of a table may take. Halving among 100,000 ranks has 7 million.
pub const MAX_STEPS: usize = 8_000_000;

/// Steps of one host's ranks that are run for all hosts': about a second, as each is run for up to
/// 24 slices and its rank is compared with others.
const MOST_ON_A_HOST: usize = 1_000_000;

/// Ranks that are run in full in a few milliseconds. More are run as one where they are alike but
/// for a message or two of each among dozens.
const MOST_EXACT: usize = 1024;

/// Slices that are run before the rest is extrapolated: pipelines as deep as the connections have
/// filled, and the last half of them gives the pace.
const RUN_SLICES: usize = 16;

/// The same of plans with more than a million steps, which are no pipelines.
const FEW_SLICES: usize = 4;

/// What things cost on the machine or network that is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// From the end of a step to its message's arrival.
    pub alpha_us: f64,
    /// A rank's own time to post or take one message.
    pub message_us: f64,
    /// A byte sent, in the sender's time.
    pub send_us_per_byte: f64,
    /// A byte copied into the output or scratch.
    pub copy_us_per_byte: f64,
    /// A byte of each further operand of a reduction.
    pub reduce_us_per_byte: f64,
    /// Slots of a connection.
    pub depth: usize,
    /// Bytes of a slot, the most that one message carries.
    pub slot_bytes: usize,
}

/// The links between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostWire {
    /// From leaving a host to a message's arrival.
    pub alpha_us: f64,
    /// A rank's own time to post or take one message.
    pub message_us: f64,
    /// A byte's time on a host's way out, of which its ranks that use it have equal shares. A rank
    /// does not wait for what it has posted, but its messages leave one after the other. A host's
    /// way in is as wide as all others' ways out.
    pub us_per_byte: f64,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// When the last rank was done.
    pub time_us: f64,
    /// Messages of all ranks, over all slices.
    pub messages: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Slices that each rank goes through.
    pub slices: usize,
    /// One rank was run for all, or those of one host.
    pub symmetric: bool,
}

/// Why there is no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulationError {
    /// The plans have as many steps, or more.
    TooLarge { steps: usize },
    /// The plans wait for each other, here with connections of so many slots.
    Deadlock { rank: usize, depth: usize },
}

impl fmt::Display for SimulationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimulationError::TooLarge { steps } => write!(
                f,
                "a simulation of {steps} steps or more is too large (at most {MAX_STEPS}); choose \
                 fewer ranks or another algorithm"
            ),
            SimulationError::Deadlock { rank, depth } => {
                write!(f, "the plans deadlock at rank {rank} with connections of {depth} slots")
            }
        }
    }
}

pub type SimulationResult<T> = std::result::Result<T, SimulationError>;

/// Time a collective of `bytes` (of the vector, or of all blocks of one rank together).
///
/// `plan` makes a rank's plan; it is asked once for every rank, or for a few where that tells.
pub fn simulate(
    collective: Collective,
    nranks: usize,
    bytes: usize,
    machine: &Machine,
    plan: impl Fn(usize) -> Plan,
) -> SimulationResult<Outcome> {
    run(collective, nranks, bytes, machine, None, plan)
}

/// As [`simulate`], for ranks that share hosts: `machine` is each of them.
pub fn simulate_hosts(
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    machine: &Machine,
    wire: &HostWire,
    plan: impl Fn(usize) -> Plan,
) -> SimulationResult<Outcome> {
    run(collective, topology.nranks(), bytes, machine, Some((topology, wire)), plan)
}

fn run(
    collective: Collective,
    nranks: usize,
    bytes: usize,
    machine: &Machine,
    hosts: Option<(&Topology, &HostWire)>,
    plan: impl Fn(usize) -> Plan,
) -> SimulationResult<Outcome> {
    let first = plan(0);
    // AllToAll counts the blocks of one rank, of which its plan numbers all ranks' together.
    let parts = match collective {
        Collective::AllToAll => nranks,
        _ => first.nchunks,
    };
    let chunk_bytes = bytes.div_ceil(parts);
    let runs = representatives(&first, hosts.map(|(topology, _)| topology), &plan)?;
    let mut packed = Packed::default();
    packed.add(&first)?;
    for rank in 1..runs {
        packed.add(&plan(rank))?;
    }
    let slices = (chunk_bytes * packed.longest_span()).div_ceil(machine.slot_bytes).max(1);
    let slice_bytes = chunk_bytes as f64 / slices as f64;
    let run = |slices| run::run(&packed, nranks, slice_bytes, slices, machine, hosts);
    let some = if packed.len() > 1_000_000 { FEW_SLICES } else { RUN_SLICES };
    let time_us = if slices <= some {
        run(slices)?
    } else {
        let (half, full) = (run(some / 2)?, run(some)?);
        let pace = (full - half) / (some - some / 2) as f64;
        full + pace * (slices - some) as f64
    };
    let (messages, chunks) = packed.messages();
    let ranks = (nranks / runs) as u64;
    Ok(Outcome {
        time_us,
        messages: ranks * messages * slices as u64,
        bytes: ranks * chunks * chunk_bytes as u64,
        slices,
        symmetric: runs < nranks,
    })
}

/// How many of the first ranks are run: one for all, those of a host for all hosts', or all.
fn representatives(
    first: &Plan,
    topology: Option<&Topology>,
    plan: &impl Fn(usize) -> Plan,
) -> SimulationResult<usize> {
    let nranks = first.nranks;
    let fits =
        |steps, most| if steps > most { Err(SimulationError::TooLarge { steps }) } else { Ok(()) };
    let alike = topology.map_or(Some(1), ranks_of_each_host).filter(|alike| nranks / alike > 2);
    if let Some(alike) = alike {
        if alike > 1 && nranks > MOST_EXACT {
            fits(packed::size(first) * alike, MOST_ON_A_HOST)?;
        }
        if is_symmetric(first, alike, plan) {
            return Ok(alike);
        }
    }
    // A root does more than others. What is too large is known before all of it is made.
    let least = packed::size(&plan(1 % nranks)).min(packed::size(&plan(nranks - 1)));
    fits(least * nranks, MAX_STEPS)?;
    Ok(nranks)
}

/// Where hosts have equally many ranks that follow each other: how many.
fn ranks_of_each_host(topology: &Topology) -> Option<usize> {
    let (least, nranks) = (topology.min_per_host(), topology.nranks());
    let is_in_order = |rank| topology.host(rank) == rank / least;
    (least == topology.max_per_host() && (0..nranks).all(is_in_order)).then_some(least)
}

/// Whether the plan of rank 0 and that of the last rank like it, turned by a multiple of `alike`
/// ranks, are those of their neighbours and of the ranks across the circle.
///
/// A few ranks tell: algorithms branch on the parity, the size or the ends of the rank's number,
/// and these differ in all of that.
fn is_symmetric(first: &Plan, alike: usize, plan: &impl Fn(usize) -> Plan) -> bool {
    // Several ranks that are run must agree on every message between them.
    let joined = alike == 1 && first.nranks > MOST_EXACT;
    let turns = first.nranks / alike;
    let same = |place: usize, shape| {
        let turned = |turn| packed::turned(&plan(place + turn * alike), joined);
        [1, 2, turns / 2, turns - 1].into_iter().all(|turn| turned(turn) == shape)
    };
    same(0, packed::turned(first, joined))
        && (alike == 1 || same(alike - 1, packed::turned(&plan(alike - 1), joined)))
}

#[cfg(test)]
mod tests;
