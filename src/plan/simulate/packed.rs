//! Plans of many ranks in little memory: what the clock needs of each step, in flat arrays.

use super::{MAX_STEPS, SimulationError, SimulationResult};
use crate::plan::{End, Plan, Step};
use std::ops::Range;

/// One step; its peers lie in [`Packed::peers`], sources first.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedStep {
    first_peer: u32,
    nsources: u32,
    ntargets: u32,
    /// Chunks of the span.
    pub len: u32,
    /// Operands that are reduced into the first.
    pub further: u32,
    /// A single operand is copied into local memory.
    pub copies: bool,
    /// How many slices behind the first stage it runs.
    pub stage: u16,
}

#[derive(Debug, Default)]
pub(super) struct Packed {
    steps: Vec<PackedStep>,
    peers: Vec<u32>,
    /// Where each rank's steps end.
    ends: Vec<usize>,
}

fn peers(ends: &[End]) -> impl Iterator<Item = usize> {
    ends.iter().filter_map(|end| match end {
        End::Peer(peer) => Some(*peer),
        _ => None,
    })
}

/// What a plan takes of the room that there is for steps.
pub(super) fn size(plan: &Plan) -> usize {
    let npeers = |step: &Step| peers(&step.sources).count() + peers(&step.targets).count();
    plan.steps.len().max(plan.steps.iter().map(npeers).sum())
}

impl Packed {
    /// Add the plan of the next rank.
    pub fn add(&mut self, plan: &Plan) -> SimulationResult<()> {
        for step in &plan.steps {
            self.add_step(step);
        }
        self.ends.push(self.steps.len());
        let steps = self.steps.len().max(self.peers.len());
        if steps > MAX_STEPS { Err(SimulationError::TooLarge { steps }) } else { Ok(()) }
    }

    fn add_step(&mut self, step: &Step) {
        let first_peer = self.peers.len();
        self.peers.extend(peers(&step.sources).map(|peer| peer as u32));
        let nsources = self.peers.len() - first_peer;
        self.peers.extend(peers(&step.targets).map(|peer| peer as u32));
        let ntargets = self.peers.len() - first_peer - nsources;
        self.steps.push(PackedStep {
            first_peer: first_peer as u32,
            nsources: nsources as u32,
            ntargets: ntargets as u32,
            len: step.span.len as u32,
            further: step.sources.len() as u32 - 1,
            copies: step.sources.len() == 1 && ntargets < step.targets.len(),
            stage: step.stage as u16,
        });
    }

    /// How many steps all ranks have.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// How many ranks there are.
    pub fn nranks(&self) -> usize {
        self.ends.len()
    }

    pub fn steps(&self, rank: usize) -> Range<usize> {
        (if rank == 0 { 0 } else { self.ends[rank - 1] })..self.ends[rank]
    }

    pub fn step(&self, index: usize) -> PackedStep {
        self.steps[index]
    }

    pub fn sources(&self, step: PackedStep) -> &[u32] {
        &self.peers[step.first_peer as usize..][..step.nsources as usize]
    }

    pub fn targets(&self, step: PackedStep) -> &[u32] {
        &self.peers[(step.first_peer + step.nsources) as usize..][..step.ntargets as usize]
    }

    /// How many stages a rank's plan has.
    pub fn stages(&self, rank: usize) -> usize {
        let stages = self.steps[self.steps(rank)].iter().map(|step| usize::from(step.stage) + 1);
        stages.max().unwrap_or(1)
    }

    pub fn longest_span(&self) -> usize {
        let moved = self.steps.iter().filter(|step| step.nsources + step.ntargets > 0);
        moved.map(|step| step.len as usize).max().unwrap_or(1)
    }

    /// Messages in one slice, and the chunks in them.
    pub fn messages(&self) -> (u64, u64) {
        self.steps.iter().fold((0, 0), |(messages, chunks), step| {
            let sent = u64::from(step.ntargets);
            (messages + sent, chunks + sent * u64::from(step.len))
        })
    }
}

/// A step as it looks from its rank: peers as distances on the circle.
#[derive(PartialEq)]
pub(super) struct TurnedStep {
    sources: Vec<usize>,
    targets: Vec<usize>,
    operands: usize,
    local: bool,
    len: usize,
}

/// What of a plan's timing does not depend on where on the circle its rank is. With `joined`, a
/// span that runs on over the last chunk is one message, which it is on most ranks.
pub(super) fn turned(plan: &Plan, joined: bool) -> Vec<TurnedStep> {
    let distances = |ends: &[End]| {
        let distance = |peer: usize| (peer + plan.nranks - plan.rank) % plan.nranks;
        let mut distances: Vec<usize> = peers(ends).map(distance).collect();
        // Which source comes first is arithmetic, not time; nor is it the same on all ranks.
        distances.sort_unstable();
        distances
    };
    let step = |step: &Step| {
        let targets = distances(&step.targets);
        TurnedStep {
            sources: distances(&step.sources),
            local: targets.len() < step.targets.len(),
            targets,
            operands: step.sources.len(),
            len: step.span.len,
        }
    };
    let mut all: Vec<TurnedStep> = Vec::with_capacity(plan.steps.len());
    let mut ends_at = None;
    for next in &plan.steps {
        let turned = step(next);
        match all.last_mut() {
            Some(last)
                if joined
                    && ends_at == Some(plan.nchunks)
                    && next.span.first == 0
                    && last.goes_with(&turned) =>
            {
                last.len += turned.len;
            }
            _ => all.push(turned),
        }
        ends_at = Some(next.span.first + next.span.len);
    }
    all
}

impl TurnedStep {
    /// The two differ in nothing but their chunks.
    fn goes_with(&self, next: &TurnedStep) -> bool {
        let same = |step: &TurnedStep| (step.operands, step.local);
        same(self) == same(next) && self.sources == next.sources && self.targets == next.targets
    }
}
