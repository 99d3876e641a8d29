//! The symbolic run: every rank goes on until it must wait; whoever it wakes goes on next.

use super::message_queues::{MessageQueues, PlanMessage};
use super::symbolic_memory::{RankMemory, Value, balanced, in_order};
use super::{Fault, Placement, Report, Violation, Wait};
use crate::plan::{Collective, End, Plan, Step};
use std::rc::Rc;

pub(super) struct Verification<'a> {
    collective: Collective,
    plans: &'a [Plan],
    root: usize,
    slices: usize,
    network: MessageQueues,
    memories: Vec<RankMemory>,
    /// Each rank's next (slice, step).
    cursors: Vec<(usize, usize)>,
    /// Ranks that may be able to go on; `queued` says which are in it.
    ready: Vec<usize>,
    queued: Vec<bool>,
    /// By chunk: the expression of the first rank that completed it.
    agreed: Vec<u64>,
    /// By chunk: the expression of the serial loop.
    serial: Vec<u64>,
    report: Report,
    /// Reused by every step.
    values: Vec<Value>,
}

impl<'a> Verification<'a> {
    pub fn new(
        collective: Collective,
        plans: &'a [Plan],
        root: usize,
        depth: usize,
        placement: Placement,
    ) -> Verification<'a> {
        let (nranks, nchunks) = (plans.len(), plans[0].nchunks);
        let memory = |rank| RankMemory::new(collective, rank, nranks, root, nchunks, placement);
        let results = if collective.reduces() { nchunks } else { 0 };
        Verification {
            collective,
            plans,
            root,
            slices: depth + 1,
            network: MessageQueues::new(nranks, depth),
            memories: (0..nranks).map(memory).collect(),
            cursors: vec![(0, 0); nranks],
            ready: (0..nranks).rev().collect(),
            queued: vec![true; nranks],
            agreed: vec![0; results],
            serial: (0..results).map(|chunk| serial(nranks, chunk)).collect(),
            report: Report {
                messages: vec![0; nranks],
                chunks: vec![0; nranks],
                serial: true,
                formed: Vec::new(),
            },
            values: Vec::new(),
        }
    }

    pub fn prove(mut self) -> Result<Report, Violation> {
        while let Some(rank) = self.ready.pop() {
            self.queued[rank] = false;
            self.advance(rank)?;
        }
        let stuck = |&rank: &usize| self.cursors[rank].0 < self.slices;
        // The one furthest behind is the one that holds up the others.
        let behind = (0..self.plans.len()).filter(stuck).min_by_key(|&rank| self.cursors[rank]);
        if let Some(rank) = behind {
            let (slice, step) = self.cursors[rank];
            let waits_for = self.blocked(rank).expect("a rank stops only where it must wait");
            let fault = Fault::Deadlock { waits_for };
            return Err(Violation { rank, step: Some(step), slice, fault });
        }
        if let Some((from, to, count)) = self.network.leftover() {
            let fault = Fault::Leftover { to, count };
            return Err(Violation { rank: from, step: None, slice: self.slices - 1, fault });
        }
        self.report.formed = self.agreed;
        Ok(self.report)
    }

    /// Run a rank until it must wait or is done.
    fn advance(&mut self, rank: usize) -> Result<(), Violation> {
        let plans = self.plans;
        let steps = &plans[rank].steps;
        while self.cursors[rank].0 < self.slices {
            let (slice, at) = self.cursors[rank];
            if at == steps.len() {
                self.end_slice(rank).map_err(|fault| Violation {
                    rank,
                    step: None,
                    slice,
                    fault,
                })?;
                self.memories[rank].start_slice();
                self.cursors[rank] = (slice + 1, 0);
                continue;
            }
            if self.blocked(rank).is_some() {
                return Ok(());
            }
            self.execute(rank, slice, &steps[at]).map_err(|fault| Violation {
                rank,
                step: Some(at),
                slice,
                fault,
            })?;
            self.cursors[rank].1 += 1;
        }
        Ok(())
    }

    /// What a rank's next step waits for, if it must.
    fn blocked(&self, rank: usize) -> Option<Wait> {
        let step = &self.plans[rank].steps[self.cursors[rank].1];
        for source in &step.sources {
            if let &End::Peer(from) = source
                && !self.network.has_message(from, rank)
            {
                return Some(Wait::Message { from });
            }
        }
        for target in &step.targets {
            if let &End::Peer(to) = target
                && !self.network.has_slot(rank, to)
            {
                return Some(Wait::Slot { to });
            }
        }
        None
    }

    fn execute(&mut self, rank: usize, slice: usize, step: &Step) -> Result<(), Fault> {
        self.values.clear();
        // By source, where their order is not that of the accumulator.
        let mut columns = Vec::new();
        for (index, &source) in step.sources.iter().enumerate() {
            let message = match source {
                End::Peer(peer) => Some(self.receive(peer, rank, slice, step)?),
                _ => None,
            };
            for (at, chunk) in step.span.chunks().enumerate() {
                let value = match &message {
                    Some(message) => message.values[at],
                    None => self.memories[rank].read(source, chunk)?,
                };
                match index {
                    _ if step.balanced => columns.push(value),
                    0 if step.sources.len() == 1 => self.values.push(value),
                    0 => self.values.push(value.opened()),
                    _ => self.values[at].reduce(value, chunk)?,
                }
            }
        }
        for (at, chunk) in step.span.chunks().enumerate().filter(|_| step.balanced) {
            let row: Vec<Value> = columns.iter().skip(at).step_by(step.span.len).copied().collect();
            self.values.push(balanced(&row, chunk)?);
        }
        if step.finish {
            for (at, chunk) in step.span.chunks().enumerate() {
                let value = &mut self.values[at];
                if value.finished || !self.collective.reduces() {
                    return Err(Fault::Refinished { chunk });
                }
                value.finished = true;
            }
        }
        self.deliver(rank, slice, step)
    }

    fn receive(
        &mut self,
        from: usize,
        rank: usize,
        slice: usize,
        step: &Step,
    ) -> Result<PlanMessage, Fault> {
        let message = self.network.take(from, rank);
        self.wake(from);
        if (message.slice, message.span) == (slice, step.span) {
            return Ok(message);
        }
        Err(Fault::Mismatch {
            peer: from,
            wanted: (slice, step.span),
            got: (message.slice, message.span),
        })
    }

    fn deliver(&mut self, rank: usize, slice: usize, step: &Step) -> Result<(), Fault> {
        let mut shared: Option<Rc<[Value]>> = None;
        for &target in &step.targets {
            if let End::Peer(to) = target {
                let values = shared.get_or_insert_with(|| self.values.as_slice().into()).clone();
                self.network.post(rank, to, PlanMessage { slice, span: step.span, values });
                self.wake(to);
                if slice == 0 {
                    self.report.messages[rank] += 1;
                    self.report.chunks[rank] += step.span.len;
                }
                continue;
            }
            for (at, chunk) in step.span.chunks().enumerate() {
                self.memories[rank].write(target, chunk, self.values[at])?;
            }
        }
        Ok(())
    }

    fn wake(&mut self, rank: usize) {
        if !self.queued[rank] {
            self.queued[rank] = true;
            self.ready.push(rank);
        }
    }

    /// Every output that the collective wants of this rank is what it promises.
    fn end_slice(&mut self, rank: usize) -> Result<(), Fault> {
        let (nranks, nchunks) = (self.plans.len(), self.plans[0].nchunks);
        for chunk in 0..nchunks {
            if !self.memories[rank].wants(chunk) {
                continue;
            }
            let got = self.memories[rank].output(chunk);
            let wrong =
                |wanted| Err(Fault::Wrong { chunk, wanted, got: got.set, finished: got.finished });
            if !self.collective.reduces() {
                let source = match self.collective {
                    Collective::AllGather | Collective::Gather => chunk,
                    Collective::AllToAll => chunk / nranks,
                    _ => self.root,
                };
                let wanted = Value::input(source, chunk);
                if got != wanted {
                    return wrong(wanted.set);
                }
                continue;
            }
            let everybody = u64::MAX >> (64 - nranks);
            if got.set != everybody || !got.finished {
                return wrong(everybody);
            }
            if self.agreed[chunk] == 0 {
                self.agreed[chunk] = got.expression;
            }
            if self.agreed[chunk] != got.expression {
                return Err(Fault::Disagree { chunk });
            }
            self.report.serial &= got.expression == self.serial[chunk];
        }
        Ok(())
    }
}

/// The expression of one reduction over all inputs in rank order.
fn serial(nranks: usize, chunk: usize) -> u64 {
    let inputs: Vec<Value> = (0..nranks).map(|rank| Value::input(rank, chunk)).collect();
    in_order(&inputs, chunk).expect("every input once").expression
}
