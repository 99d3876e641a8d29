//! Pipelined order: proof that starting later slices early changes nothing.
//!
//! An executor with deep enough connections runs slice `tick - stage` of every step at each tick,
//! so that a rank sends its next slice before it waits for this one. Within a slice the steps keep
//! their order, which the symbolic run has proved, and slices touch different memory: every slice
//! under way has scratch of its own. What is left to prove is that both ends of every connection
//! still agree on the order of messages, and that nobody waits for ever.

use super::{Fault, Violation, Wait};
use crate::plan::{End, Plan, Span};
use std::collections::VecDeque;

/// One message: its slice and span.
type Token = (usize, Span);

/// Prove that the plans may be run in stages on connections of `depth` slots; executors ask for
/// [`PIPELINE_DEPTH`](crate::plan::PIPELINE_DEPTH).
pub fn verify_pipelined(plans: &[Plan], depth: usize) -> Result<(), Violation> {
    for plan in plans {
        check_shape(plan)?;
    }
    Pipeline::new(plans, depth).run()
}

fn check_shape(plan: &Plan) -> Result<(), Violation> {
    let malformed = |step: usize, what: &str| Violation {
        rank: plan.rank,
        step: Some(step),
        slice: 0,
        fault: Fault::Malformed(what.into()),
    };
    for (index, step) in plan.steps.iter().enumerate() {
        if index > 0 && step.stage < plan.steps[index - 1].stage {
            return Err(malformed(index, "its stage is before that of the step above"));
        }
    }
    Ok(())
}

struct Pipeline<'a> {
    plans: &'a [Plan],
    depth: usize,
    slices: usize,
    /// By rank, at which tick it is done.
    ends: Vec<usize>,
    /// Messages under way, by sender times ranks plus receiver.
    wires: Vec<VecDeque<Token>>,
    /// Each rank's next (tick, step).
    cursors: Vec<(usize, usize)>,
}

impl<'a> Pipeline<'a> {
    fn new(plans: &'a [Plan], depth: usize) -> Pipeline<'a> {
        let nranks = plans.len();
        // Enough that every slot is used again while all stages are busy.
        let slices = depth + 2;
        let wires = vec![VecDeque::new(); nranks * nranks];
        let ends = plans.iter().map(|plan| slices + plan.stages() - 1).collect();
        Pipeline { plans, depth, slices, ends, wires, cursors: vec![(0, 0); nranks] }
    }

    fn run(mut self) -> Result<(), Violation> {
        loop {
            let mut moved = false;
            for rank in 0..self.plans.len() {
                moved |= self.advance(rank)?;
            }
            if !moved {
                break;
            }
        }
        let stuck = (0..self.plans.len()).find(|&rank| !self.is_done(rank));
        match stuck.and_then(|rank| self.waits_for(rank).map(|wait| (rank, wait))) {
            None => self.check_wires(),
            Some((rank, waits_for)) => {
                let (tick, step) = self.cursors[rank];
                let slice = tick - self.plans[rank].steps[step].stage;
                let fault = Fault::Deadlock { waits_for };
                Err(Violation { rank, step: Some(step), slice, fault })
            }
        }
    }

    /// A reader that takes less than comes is told from one that only comes late: slices are more
    /// than slots, so its writer waits for one of these before it is through. Looked at all the
    /// same, as nothing else says so should there be fewer slices one day.
    fn check_wires(&self) -> Result<(), Violation> {
        let nranks = self.plans.len();
        let Some(wire) = self.wires.iter().position(|wire| !wire.is_empty()) else {
            return Ok(());
        };
        let fault = Fault::Leftover { to: wire % nranks, count: self.wires[wire].len() };
        Err(Violation { rank: wire / nranks, step: None, slice: self.slices - 1, fault })
    }

    fn is_done(&self, rank: usize) -> bool {
        self.cursors[rank].0 == self.ends[rank]
    }

    /// Run a rank until it must wait or is done; whether it moved.
    fn advance(&mut self, rank: usize) -> Result<bool, Violation> {
        let steps = &self.plans[rank].steps;
        let mut moved = false;
        while !self.is_done(rank) {
            let (tick, at) = self.cursors[rank];
            let Some(step) = steps.get(at) else {
                self.cursors[rank] = (tick + 1, 0);
                continue;
            };
            if tick >= step.stage && tick - step.stage < self.slices {
                if self.waits_for(rank).is_some() {
                    return Ok(moved);
                }
                self.execute(rank, tick - step.stage, at)?;
            }
            self.cursors[rank].1 += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// What a rank's next step waits for, if it must.
    fn waits_for(&self, rank: usize) -> Option<Wait> {
        let nranks = self.plans.len();
        let step = self.plans[rank].steps.get(self.cursors[rank].1)?;
        for source in &step.sources {
            if let &End::Peer(from) = source
                && self.wires[from * nranks + rank].is_empty()
            {
                return Some(Wait::Message { from });
            }
        }
        for target in &step.targets {
            if let &End::Peer(to) = target
                && self.wires[rank * nranks + to].len() == self.depth
            {
                return Some(Wait::Slot { to });
            }
        }
        None
    }

    fn execute(&mut self, rank: usize, slice: usize, at: usize) -> Result<(), Violation> {
        let nranks = self.plans.len();
        let step = &self.plans[rank].steps[at];
        for target in &step.targets {
            if let &End::Peer(to) = target {
                self.wires[rank * nranks + to].push_back((slice, step.span));
            }
        }
        for source in &step.sources {
            if let &End::Peer(from) = source {
                let got = self.wires[from * nranks + rank].pop_front();
                if got != Some((slice, step.span)) {
                    let what = format!("rank {from} sends {got:?} where this step comes");
                    let fault = Fault::Malformed(what);
                    return Err(Violation { rank, step: Some(at), slice, fault });
                }
            }
        }
        Ok(())
    }
}
