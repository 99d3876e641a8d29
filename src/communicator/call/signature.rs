//! What a call is, packed into a flight record's fixed fields, and read back; its fingerprint.

use super::fingerprint;
use crate::algorithm::Algorithm;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::fmt::Write;

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
