//! Symbolic memory: what one rank's buffers hold during one slice.
//!
//! Cells are real: in place, an output cell is the input cell that it lies on, so an overwritten
//! input is gone here as it would be there. Slices never share a cell, so a rank needs the cells of
//! one slice at a time.

use super::{Fault, Placement};
use crate::plan::{Collective, End};

/// A symbolic value: which inputs it contains and how it was formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// One bit per rank; no bits means unset.
    pub set: u64,
    /// Hash of the ordered, grouped expression over (rank, chunk) leaves.
    pub expression: u64,
    pub finished: bool,
}

impl Value {
    pub const UNSET: Value = Value { set: 0, expression: 0, finished: false };

    /// Rank's own input of a chunk.
    pub fn input(rank: usize, chunk: usize) -> Value {
        let leaf = scramble((rank as u64) << 32 | chunk as u64 | 1 << 63);
        Value { set: 1 << rank, expression: leaf, finished: false }
    }

    /// The accumulator of a reduction that starts with this value.
    pub fn opened(self) -> Value {
        Value { expression: scramble(self.expression ^ OPEN), ..self }
    }

    /// Add the next operand, or say why that is wrong.
    pub fn reduce(&mut self, next: Value, chunk: usize) -> Result<(), Fault> {
        if self.finished || next.finished {
            return Err(Fault::Refinished { chunk });
        }
        if self.set & next.set != 0 {
            return Err(Fault::Twice { chunk });
        }
        self.set |= next.set;
        self.expression = scramble(self.expression.rotate_left(23) ^ next.expression);
        Ok(())
    }
}

/// One step over all `values` from left to right.
pub(super) fn in_order(values: &[Value], chunk: usize) -> Result<Value, Fault> {
    let (first, others) = values.split_first().expect("there is a value");
    if others.is_empty() {
        return Ok(*first);
    }
    let mut total = first.opened();
    others.iter().try_for_each(|value| total.reduce(*value, chunk))?;
    Ok(total)
}

/// One step over all `values` as a balanced tree.
pub(super) fn balanced(values: &[Value], chunk: usize) -> Result<Value, Fault> {
    if let [only] = values {
        return Ok(*only);
    }
    let (left, right) = values.split_at(values.len().div_ceil(2));
    let mut total = balanced(left, chunk)?.opened();
    total.reduce(balanced(right, chunk)?, chunk)?;
    Ok(total)
}

/// Tells the opening of a reduction from its operands: ((a b) c) differs from (a b c). Any odd word
/// of mixed bits would do; these are the digits of the golden ratio.
const OPEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of splitmix64: every bit of the argument changes half of the result's.
fn scramble(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// One rank's buffers.
pub(super) struct RankMemory {
    collective: Collective,
    rank: usize,
    nranks: usize,
    root: usize,
    nchunks: usize,
    placement: Placement,
    /// The input, and the output too when in place.
    input: Vec<Value>,
    output: Vec<Value>,
    /// Allocated at its first use: most plans have none.
    scratch: Vec<Value>,
}

impl RankMemory {
    pub fn new(
        collective: Collective,
        rank: usize,
        nranks: usize,
        root: usize,
        nchunks: usize,
        placement: Placement,
    ) -> RankMemory {
        let (input, output, scratch) = Default::default();
        let mut memory = RankMemory {
            collective,
            rank,
            nranks,
            root,
            nchunks,
            placement,
            input,
            output,
            scratch,
        };
        memory.start_slice();
        memory
    }

    /// Fresh buffers: inputs set, outputs and scratch not.
    pub fn start_slice(&mut self) {
        let blocks = match self.collective {
            Collective::AllToAll => self.nranks,
            _ => self.nchunks,
        };
        self.input.clear();
        self.input.resize(blocks, Value::UNSET);
        self.output.clear();
        if self.placement == Placement::OutOfPlace {
            self.output.resize(blocks, Value::UNSET);
        }
        self.scratch.clear();
        for block in 0..blocks {
            let chunk = match self.collective {
                Collective::AllToAll => self.rank * self.nranks + block,
                _ => block,
            };
            if self.holds(chunk) {
                self.input[block] = Value::input(self.rank, chunk);
            }
        }
    }

    fn holds(&self, chunk: usize) -> bool {
        self.collective.input_holds(self.rank, self.nranks, self.root, chunk)
    }

    pub fn wants(&self, chunk: usize) -> bool {
        self.collective.output_wants(self.rank, self.nranks, self.root, chunk)
    }

    fn output_cell(&mut self, chunk: usize) -> &mut Value {
        let cell = match self.collective {
            Collective::AllToAll => chunk / self.nranks,
            _ => chunk,
        };
        match self.placement {
            Placement::OutOfPlace => &mut self.output[cell],
            Placement::InPlace => &mut self.input[cell],
        }
    }

    fn scratch_cell(&mut self, chunk: usize) -> &mut Value {
        if self.scratch.is_empty() {
            self.scratch.resize(self.nchunks, Value::UNSET);
        }
        &mut self.scratch[chunk]
    }

    /// Read a chunk of a local end.
    pub fn read(&mut self, source: End, chunk: usize) -> Result<Value, Fault> {
        let value = match source {
            End::Input => {
                let cell = match self.collective {
                    Collective::AllToAll => chunk % self.nranks,
                    _ => chunk,
                };
                let there =
                    self.holds(chunk) && { self.input[cell] == Value::input(self.rank, chunk) };
                return if there { Ok(self.input[cell]) } else { Err(Fault::InputGone { chunk }) };
            }
            End::Output if self.wants(chunk) => *self.output_cell(chunk),
            End::Output => Value::UNSET,
            End::Scratch => *self.scratch_cell(chunk),
            End::Peer(_) => unreachable!("a connection is not memory"),
        };
        if value.set == 0 { Err(Fault::Unset { source, chunk }) } else { Ok(value) }
    }

    /// Write a chunk of a local end.
    pub fn write(&mut self, target: End, chunk: usize, value: Value) -> Result<(), Fault> {
        match target {
            End::Output if !self.wants(chunk) => return Err(Fault::NotWanted { chunk }),
            End::Output => *self.output_cell(chunk) = value,
            End::Scratch => *self.scratch_cell(chunk) = value,
            End::Input | End::Peer(_) => unreachable!("checked before the run"),
        }
        Ok(())
    }

    /// What an output chunk holds, unset or not.
    pub fn output(&mut self, chunk: usize) -> Value {
        *self.output_cell(chunk)
    }
}
