//! Symbolic connections: a first-in first-out queue from every rank to every other.

use super::symbolic_memory::Value;
use crate::plan::Span;
use std::collections::VecDeque;
use std::rc::Rc;

/// One message: which slice and span it is, and a value for each chunk of the span.
#[derive(Clone)]
pub(super) struct PlanMessage {
    pub slice: usize,
    pub span: Span,
    pub values: Rc<[Value]>,
}

pub(super) struct MessageQueues {
    nranks: usize,
    depth: usize,
    queues: Vec<VecDeque<PlanMessage>>,
}

impl MessageQueues {
    pub fn new(nranks: usize, depth: usize) -> MessageQueues {
        MessageQueues { nranks, depth, queues: vec![VecDeque::new(); nranks * nranks] }
    }

    fn queue(&mut self, from: usize, to: usize) -> &mut VecDeque<PlanMessage> {
        &mut self.queues[from * self.nranks + to]
    }

    pub fn has_message(&self, from: usize, to: usize) -> bool {
        !self.queues[from * self.nranks + to].is_empty()
    }

    pub fn has_slot(&self, from: usize, to: usize) -> bool {
        self.queues[from * self.nranks + to].len() < self.depth
    }

    pub fn post(&mut self, from: usize, to: usize, message: PlanMessage) {
        self.queue(from, to).push_back(message);
    }

    /// Take the oldest message; its slot is free for the writer from then on.
    pub fn take(&mut self, from: usize, to: usize) -> PlanMessage {
        self.queue(from, to).pop_front().expect("the step was ready")
    }

    /// A connection with unread messages: (from, to, how many).
    pub fn leftover(&self) -> Option<(usize, usize, usize)> {
        let at = self.queues.iter().position(|queue| !queue.is_empty())?;
        Some((at / self.nranks, at % self.nranks, self.queues[at].len()))
    }
}
