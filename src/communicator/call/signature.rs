//! The flight record in words: an operation packed into a record's fixed fields, and read back.

use super::fingerprint;
use crate::algorithm::Algorithm;
use crate::error::Operation;
use crate::executor::control_block::{ControlBlock, Life, Record};
use crate::plan::Collective;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{DataType, ReduceOp};
use std::fmt::Write;

/// Collectives that a new communicator runs for itself
/// (see [`calibrate`](crate::communicator::init)).
pub const SETUP_OPERATIONS: u64 = 2;

/// What a rank did or does, short of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSignature {
    /// `None` is a batch of point-to-point messages.
    pub collective: Option<Collective>,
    pub data_type: DataType,
    pub op: ReduceOp,
    pub algorithm: Algorithm,
    pub root: usize,
    pub count: usize,
}

/// The collective byte of a point-to-point batch.
const BATCH: u64 = 255;

impl CallSignature {
    /// Everything but the count, for [`ControlBlock::begin`].
    pub fn pack(&self) -> u64 {
        self.collective.map_or(BATCH, |collective| collective as u64)
            | (self.data_type as u64 & 0xff) << 8
            | (self.op as u64 & 0xff) << 16
            | (self.algorithm as u64 & 0xff) << 24
            | (self.root as u64) << 32
    }

    /// What [`CallSignature::pack`] packed; `None` where it cannot have.
    pub fn unpack(what: u64, count: u64) -> Option<CallSignature> {
        let collective = match what & 0xff {
            BATCH => None,
            byte => Some(*Collective::ALL.iter().find(|c| **c as u64 == byte)?),
        };
        let op_byte = what >> 16 & 0xff;
        let ops = ReduceOp::ALL.into_iter().chain([ReduceOp::PreMulSum]);
        Some(CallSignature {
            collective,
            data_type: DataType::from_raw((what >> 8 & 0xff) as i32)?,
            op: ops.into_iter().find(|op| *op as u64 == op_byte)?,
            algorithm: *Algorithm::ALL.iter().find(|a| **a as u64 == what >> 24 & 0xff)?,
            root: (what >> 32) as usize,
            count: count as usize,
        })
    }

    /// The call as its user would write it.
    pub fn text(&self) -> String {
        let Some(collective) = self.collective else {
            return format!("Send/Recv({} messages)", self.count);
        };
        if collective == Collective::Barrier {
            return "Barrier()".into();
        }
        let mut text =
            format!("{}(count={}, type={}", collective.name(), self.count, self.data_type);
        if collective.reduces() {
            let _ = write!(text, ", op={}", self.op);
        }
        if collective.has_root() {
            let _ = write!(text, ", root={}", self.root);
        }
        let _ = write!(text, ", algorithm={})", self.algorithm.name());
        text
    }

    /// The 64 bits that every message of the operation carries. Never 0.
    ///
    /// `layout` folds in what the fields above leave out (the counts of a `v` form).
    pub fn fingerprint(&self, layout: u64) -> u64 {
        fingerprint::of_words(&[self.pack(), self.count as u64, layout])
    }
}

/// A collective's number as its user counts: those of set-up are not the user's.
pub fn number(sequence: u64) -> u64 {
    sequence.saturating_sub(SETUP_OPERATIONS)
}

/// The operation in a record, as an error names it.
pub fn operation(record: &Record) -> Operation {
    let sequence = record.sequence.load(Relaxed).saturating_sub(1);
    match CallSignature::unpack(record.what.load(Relaxed), record.count.load(Relaxed)) {
        Some(descriptor) if descriptor.collective.is_none() => {
            Operation { call: descriptor.text(), sequence: Some(sequence) }
        }
        Some(descriptor) => Operation { call: descriptor.text(), sequence: Some(number(sequence)) },
        None => Operation { call: "an unknown call".into(), sequence: Some(number(sequence)) },
    }
}

/// The point-to-point batch that a rank is in, as text.
fn open_batch(control: &ControlBlock, rank: usize) -> Option<String> {
    let record = control.open_batch()?;
    let operation = operation(record);
    Some(match record.waiting_for() {
        Some(peer) => format!("rank {rank} is in {operation}, waiting for rank {peer}"),
        None => format!("rank {rank} is in {operation}"),
    })
}

/// What a rank is doing, in a sentence without its full stop.
pub fn state_of(control: &ControlBlock, rank: usize) -> String {
    let completed = control.completed();
    match control.life() {
        Life::Failed => return format!("rank {rank} has failed: {}", control.failure().1),
        Life::Left => {
            return format!("rank {rank} left after {} calls", number(completed));
        }
        Life::Working => {}
    }
    if completed < SETUP_OPERATIONS {
        return format!("rank {rank} is still at the making of the communicator");
    }
    if let Some(text) = open_batch(control, rank) {
        return text;
    }
    match control.record(completed) {
        Some(record) => {
            let operation = operation(record);
            match record.waiting_for() {
                Some(peer) => format!("rank {rank} is in {operation}, waiting for rank {peer}"),
                None => format!("rank {rank} is in {operation}"),
            }
        }
        None if number(completed) == 0 => format!("rank {rank} has not made a call yet"),
        None => match control.record(completed - 1) {
            Some(record) => {
                format!(
                    "rank {rank} has not made call #{}; its last was {}",
                    number(completed),
                    operation(record)
                )
            }
            None => format!("rank {rank} has completed {} calls", number(completed)),
        },
    }
}
