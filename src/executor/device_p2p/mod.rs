//! Ranks on a device each: kernels that wait for each other's kernels, by flags in device memory.
//!
//! Every rank has a *ground*, memory of its device that all others reach: flags, an inbox for small
//! messages, slots of connections. A [`KernelLauncher`] is one rank's end: it knows where all
//! grounds are as its own device addresses them, not how they came to be reachable, and launches
//! its rank's part of a collective. Every wait in a kernel ends: with the message, with
//! [`AbortBlock::stop`], or after the deadline, and then [`AbortBlock::ending`] says where.
//!
//! A kernel that waits occupies its device, so nothing that it waits for may be behind it: each
//! rank has a device of its own, the kernels of one collective are launched on all devices in one
//! go, and those of two collectives in the same order on every device. Or all ranks share one
//! device, and their kernels are rows of one cooperative launch ([`cooperative`]).

mod abort_block;
pub mod cooperative;
mod device_tables;
mod kernel_args;
mod kernel_launcher;
mod plan_programs;
mod sizing;

pub use abort_block::{AbortBlock, Ending};
pub use kernel_launcher::{KernelLauncher, Tabled};
pub use plan_programs::Programs;
pub use sizing::P2pSizing;

use super::device_work::RankBuffers;
use crate::algorithm::{Algorithm, serial_order};
use crate::device::cuda::copied_as;
use crate::device::host::prescale_factor;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};

/// How kernels do a collective. The same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelPath {
    /// Everybody's input into everybody's inbox, in one step.
    OneShot,
    /// Each rank its part of every block, in all ranks' buffers, between two barriers.
    Pieces,
    /// A plan through slots.
    Plan(Algorithm),
}

/// A collective, as kernels are told of it. The same on every rank, but for addresses.
#[derive(Clone, Copy, Debug)]
pub struct KernelWork<'a> {
    pub way: KernelPath,
    pub collective: Collective,
    pub root: usize,
    /// Elements of the vector, or of a block.
    pub count: usize,
    pub data_type: DataType,
    pub op: ReduceOp,
    /// Every rank's buffers, as this rank's device addresses them; only [`KernelPath::Pieces`]
    /// looks at those of others.
    pub places: &'a [RankBuffers],
    /// Every rank's factor of a pre-multiplied sum; as with places.
    pub scalars: &'a [f64],
}

impl KernelWork<'_> {
    /// What a plan multiplies this rank's input by.
    fn factor(&self, rank: usize) -> f64 {
        match self.way {
            _ if self.op != ReduceOp::Avg => self.scalars[rank],
            KernelPath::Plan(algorithm) if !serial_order(algorithm, self.collective) => {
                prescale_factor(self.data_type, self.op, self.places.len() as f64).unwrap_or(1.0)
            }
            _ => 1.0,
        }
    }

    /// What pieces of the ranks' buffers move elements as: copies what all are aligned to.
    pub fn moved_as(&self) -> DataType {
        if self.collective.reduces() {
            return self.data_type;
        }
        let ends = self.places.iter().flat_map(|place| [place.input, place.output]);
        copied_as(self.data_type.size(), ends)
    }

    /// Bytes of the vector, or of the blocks of all ranks.
    fn bytes(&self) -> usize {
        let blocks = match self.collective {
            Collective::Barrier => 0,
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
            _ => self.places.len(),
        };
        blocks.saturating_mul(self.count).saturating_mul(self.data_type.size())
    }
}
