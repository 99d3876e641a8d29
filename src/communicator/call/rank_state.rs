//! What a rank is doing, in words: its control page and flight record as error texts tell them.

use super::signature::CallSignature;
use crate::error::Operation;
use crate::executor::control_block::{ControlBlock, Life, Record};
use crate::sync::atomic::Ordering::Relaxed;

/// Numbers of collectives in which the ranks of a new communicator choose a network engine, if
/// there is one to choose.
pub const CHOOSING_OPERATIONS: u64 = 2;

/// Numbers of collectives that a new communicator runs for itself
/// (see [`calibrate`](crate::communicator::init)).
pub const SETUP_OPERATIONS: u64 = CHOOSING_OPERATIONS + 3;

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
