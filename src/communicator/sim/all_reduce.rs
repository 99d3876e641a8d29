//! One all-reduce on the virtual network: a real plan, a number for every chunk, and messages over
//! the connections that the control planes have made.

use crate::algorithm::{Algorithm, plan};
use crate::bootstrap::sim::net::Line;
use crate::bootstrap::tcp::{Framed, Keys};
use crate::plan::{Collective, End, Plan, Span, Step};
use std::collections::VecDeque;
use std::time::Instant;

/// What is known of why a connection has ended.
pub enum Loss {
    /// It has just been found.
    Found,
    /// The peer was asked, and may take until then to answer.
    Asked {
        until: Instant,
    },
    Explained,
}

/// The connection with a peer.
#[derive(Default)]
pub struct Wire {
    framed: Option<Framed<Line>>,
    /// It was asked for, or has come.
    pub is_known: bool,
    pub loss: Option<Loss>,
    outgoing: VecDeque<Vec<u8>>,
    incoming: VecDeque<Vec<u8>>,
}

impl Wire {
    /// One that is made anew does not replace the one that broke: of what had gone over that nobody
    /// knows how much has come.
    pub fn connected(&mut self, line: Line, keys: &Keys) {
        if self.loss.is_none() {
            self.framed = Some(Framed::new(line, keys));
        }
        self.is_known = true;
    }

    /// Something waits to be sent on it.
    pub fn is_wanted(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Move what can be moved.
    pub fn advance(&mut self) {
        let Some(framed) = &mut self.framed else { return };
        let mut outcome = framed.push();
        while let Ok(true) = outcome {
            let Some(message) = self.outgoing.pop_front() else { break };
            framed.begin(&message);
            outcome = framed.push();
        }
        let mut is_broken = outcome.is_err();
        while !is_broken {
            match framed.pull() {
                Ok(Some(message)) => self.incoming.push_back(message),
                Ok(None) => break,
                Err(_) => is_broken = true,
            }
        }
        if is_broken {
            self.framed = None;
            self.loss.get_or_insert(Loss::Found);
        }
    }

    /// Whether it has ended, and nobody can say better why.
    pub fn is_over(&self, now: Instant) -> bool {
        match self.loss {
            Some(Loss::Asked { until }) => now >= until,
            Some(Loss::Explained) => true,
            Some(Loss::Found) | None => false,
        }
    }
}

pub struct Operation {
    plan: Plan,
    sequence: u64,
    at: usize,
    input: Vec<u64>,
    output: Vec<u64>,
    scratch: Vec<u64>,
}

/// How far an operation came.
pub enum Progress {
    /// It needs a message of this rank, or has one for it.
    Waits(usize),
    Done(Vec<u64>),
}

impl Operation {
    /// Of the algorithms that do it the one that the number chooses; `mine` is what this rank adds
    /// to a chunk.
    pub fn new(
        rank: usize,
        nranks: usize,
        sequence: u64,
        choice: u64,
        mine: impl Fn(usize) -> u64,
    ) -> Operation {
        let all = Algorithm::ALL.iter();
        let plans = all.filter_map(|one| plan(*one, Collective::AllReduce, rank, nranks, 0));
        let mut plans: Vec<Plan> = plans.collect();
        let plan = plans.swap_remove(choice as usize % plans.len());
        let input: Vec<u64> = (0..plan.nchunks).map(mine).collect();
        let empty = vec![0; plan.nchunks];
        Operation { plan, sequence, at: 0, input, output: empty.clone(), scratch: empty }
    }

    /// Do what can be done.
    pub fn advance(&mut self, wires: &mut [Wire]) -> Result<Progress, String> {
        while let Some(step) = self.plan.steps.get(self.at).cloned() {
            let missing = step.sources.iter().find_map(|source| match source {
                End::Peer(peer) if wires[*peer].incoming.is_empty() => Some(*peer),
                _ => None,
            });
            if let Some(peer) = missing {
                return Ok(Progress::Waits(peer));
            }
            self.take(&step, wires)?;
            self.at += 1;
        }
        // A call ends when all that it sent is written, also to who has not called yet.
        wires.iter_mut().for_each(Wire::advance);
        if let Some(peer) = wires.iter().position(Wire::is_wanted) {
            return Ok(Progress::Waits(peer));
        }
        Ok(Progress::Done(self.output.clone()))
    }

    fn take(&mut self, step: &Step, wires: &mut [Wire]) -> Result<(), String> {
        let Step { span, sources, targets, .. } = step;
        let mut sum = vec![0u64; span.len];
        for source in sources {
            let values = match source {
                End::Input => self.input[span.chunks()].to_vec(),
                End::Output => self.output[span.chunks()].to_vec(),
                End::Scratch => self.scratch[span.chunks()].to_vec(),
                End::Peer(peer) => {
                    let message = wires[*peer].incoming.pop_front().expect("it has come");
                    self.read(&message, *span)?
                }
            };
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
        }
        for target in targets {
            match target {
                End::Input => return Err("a plan writes to its input".into()),
                End::Output => self.output[span.chunks()].copy_from_slice(&sum),
                End::Scratch => self.scratch[span.chunks()].copy_from_slice(&sum),
                End::Peer(peer) => {
                    let words = [self.sequence].into_iter().chain(sum.iter().copied());
                    let message = words.flat_map(u64::to_le_bytes).collect();
                    wires[*peer].outgoing.push_back(message);
                }
            }
        }
        Ok(())
    }

    fn read(&self, message: &[u8], span: Span) -> Result<Vec<u64>, String> {
        let words = message.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let words: Vec<u64> = words.collect();
        match words.split_first() {
            Some((sequence, values)) if *sequence == self.sequence && values.len() == span.len => {
                Ok(values.to_vec())
            }
            _ => Err(format!("a message of another operation than {}: {words:?}", self.sequence)),
        }
    }
}
