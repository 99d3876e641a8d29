//! The simulator: all ranks' plans on an alpha-beta clock, for networks that are not at hand.
//!
//! The one idea: every rank has a clock of its own. A step starts when the rank is free, its
//! messages have arrived and its slots are free, and costs what its bytes cost; since plans form a
//! Kahn network, ranks can be advanced in any order and the times come out the same.
//!
//! Between hosts a [`Wire`] takes the place of the machine's own links. Connections of
//! [`PIPELINE_DEPTH`](super::PIPELINE_DEPTH) slots or more run plans in stages, as executors do.
//!
//! Up to 100,000 ranks: where every rank's plan is rank 0's turned round the circle (ring,
//! one-shot, two-shot), all clocks are equal and **one rank is run for all**; its own posts stand
//! for what arrives. Above `MOST_EXACT` ranks halving and the all-gather of doubling count as such,
//! too: they differ where a span runs on over the last chunk, and is two messages. Other plans
//! (trees, the doubling of vectors: about log n steps a rank) are generated one by one, packed into
//! some twenty bytes a step and run in full. What has more than [`MAX_STEPS`] steps in all is
//! refused. Of many slices the first few are run and the rest follow at their pace.

mod clock;
mod packed;

use super::topology::Topology;
use super::{Collective, Plan};
use crate::error::{Error, Result};
use packed::Packed;

/// Steps of all ranks together that one simulation may hold: some 400 MB when packed.
pub const MAX_STEPS: usize = 10_000_000;

/// Ranks that are run in full in a few milliseconds. More are run as one where they are alike but
/// for a message or two of each among dozens.
const MOST_EXACT: usize = 1024;

/// Slices that are run before the rest is extrapolated: pipelines as deep as the connections have
/// filled, and the last half of them gives the pace.
const RUN_SLICES: usize = 16;

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
pub struct Wire {
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
    /// One rank was run for all.
    pub symmetric: bool,
}

/// Time a collective of `bytes` (of the vector, or of all blocks of one rank together).
///
/// `plan` makes a rank's plan; it is asked once for every rank, or for a few where that tells.
pub fn simulate(
    collective: Collective,
    nranks: usize,
    bytes: usize,
    machine: &Machine,
    plan: impl Fn(usize) -> Plan,
) -> Result<Outcome> {
    run(collective, nranks, bytes, machine, None, plan)
}

/// As [`simulate`], for ranks that share hosts: `machine` is each of them.
pub fn simulate_hosts(
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    machine: &Machine,
    wire: &Wire,
    plan: impl Fn(usize) -> Plan,
) -> Result<Outcome> {
    run(collective, topology.nranks(), bytes, machine, Some((topology, wire)), plan)
}

fn run(
    collective: Collective,
    nranks: usize,
    bytes: usize,
    machine: &Machine,
    hosts: Option<(&Topology, &Wire)>,
    plan: impl Fn(usize) -> Plan,
) -> Result<Outcome> {
    let first = plan(0);
    // AllToAll counts the blocks of one rank, of which its plan numbers all ranks' together.
    let parts = match collective {
        Collective::AllToAll => nranks,
        _ => first.nchunks,
    };
    let chunk_bytes = bytes.div_ceil(parts);
    let symmetric = nranks > 2 && hosts.is_none() && is_symmetric(&first, &plan);
    let mut packed = Packed::default();
    packed.add(&first)?;
    if !symmetric {
        for rank in 1..nranks {
            packed.add(&plan(rank))?;
        }
    }
    let slices = (chunk_bytes * packed.longest_span()).div_ceil(machine.slot_bytes).max(1);
    let slice_bytes = chunk_bytes as f64 / slices as f64;
    let run = |slices| clock::run(&packed, nranks, slice_bytes, slices, machine, hosts);
    let time_us = if slices <= RUN_SLICES {
        run(slices)?
    } else {
        let (half, full) = (run(RUN_SLICES / 2)?, run(RUN_SLICES)?);
        let pace = (full - half) / (RUN_SLICES - RUN_SLICES / 2) as f64;
        full + pace * (slices - RUN_SLICES) as f64
    };
    let (messages, chunks) = packed.messages();
    let ranks = if symmetric { nranks as u64 } else { 1 };
    Ok(Outcome {
        time_us,
        messages: ranks * messages * slices as u64,
        bytes: ranks * chunks * chunk_bytes as u64,
        slices,
        symmetric,
    })
}

/// Whether rank 0's plan, turned, is that of its neighbours and of the ranks across the circle.
///
/// A few ranks tell: algorithms branch on the parity, the size or the ends of the rank's number,
/// and these differ in all of that.
fn is_symmetric(first: &Plan, plan: &impl Fn(usize) -> Plan) -> bool {
    let (nranks, joined) = (first.nranks, first.nranks > MOST_EXACT);
    let shape = packed::turned(first, joined);
    let same = |rank| packed::turned(&plan(rank), joined) == shape;
    [1, 2, nranks / 2, nranks - 1].into_iter().all(same)
}

fn too_many(steps: usize) -> Error {
    Error::argument(format!(
        "a simulation of {steps} steps or more is too large (at most {MAX_STEPS}); \
         choose fewer ranks or another algorithm"
    ))
}

#[cfg(test)]
mod tests;
