//! Reductions and copies of several buffers in as few launches as hold them.
//!
//! A piece is `targets <- reduce(sources)` on some elements, the same as one [`Job`] of the
//! processor, with the same bits. Pieces travel in the launch itself, so that a captured launch can
//! be replayed; what does not fit one launch goes into a second.
//!
//! [`Job`]: crate::device::host::Job
#![allow(unsafe_code)]

use super::abi;
use super::driver::{Address, RawStream};
use super::kernels::{Grid, KernelFamily, Kernels};
use crate::error::Result;
use crate::types::{DataType, ReduceOp};

/// Sources and targets that a piece may have together.
pub const MOST_ENDS: usize = abi::INLINE_ENDS;

/// Sources that may be scaled each by its own factor.
pub const MOST_SCALED: usize = abi::INLINE_SCALARS;

/// Elements of a tile of pieces of so many bytes for so many blocks, of `parts` sources.
pub(crate) fn tile(bytes: usize, blocks: u32, parts: usize, size: usize) -> u32 {
    let largest = if parts == 2 { PAIR_TILE } else { LARGEST_TILE };
    let share = bytes / blocks as usize;
    (share.next_power_of_two().clamp(SMALLEST_TILE, largest) / size) as u32
}

/// Bytes of a tile: a block's threads with sixteen bytes each, four deep, at most, so that the
/// loads of a tile are all under way at once. A power of two, since memory likes what is aligned to
/// it: tiles of 31 KiB, of which each block has as many as every other, take 4 % longer on an H100.
const LARGEST_TILE: usize = 32 << 10;
/// The same of two sources, of which a thread asks for those of the next place, too, which a tile
/// has to have: on an H200 10 % faster than a tile of one place.
const PAIR_TILE: usize = 64 << 10;
/// A line of the cache for each of a few warps: for eight ranks, blocks of 2 KiB take 1 us less
/// than blocks of 8 KiB.
const SMALLEST_TILE: usize = 2 << 10;

/// Threads that begin and end together; and the fewest of a block.
const WARP: usize = 32;
const LEAST_THREADS: usize = 128;

/// Pieces on their way into launches.
pub struct Fused<'a> {
    kernels: &'a Kernels,
    stream: RawStream,
    size: usize,
    data_type: DataType,
    arguments: abi::ReduceArgs,
    ends: usize,
    flags: u32,
    /// Of the largest piece.
    bytes: usize,
    /// Blocks of every launch, where those of all ranks meet.
    barrier_blocks: Option<u32>,
}

/// What copies move elements of so many bytes as: numbers of that width where all buffers are
/// aligned to it, else bytes. What lies differently from sixteen bytes to the next goes one by one,
/// and the wider the better.
pub(crate) fn copied_as(size: usize, mut ends: impl Iterator<Item = Address>) -> DataType {
    match size {
        _ if ends.any(|end| !end.is_multiple_of(size as Address)) => DataType::Uint8,
        2 => DataType::Uint16,
        4 => DataType::Uint32,
        8 => DataType::Uint64,
        _ => DataType::Uint8,
    }
}

impl<'a> Fused<'a> {
    /// Copies, of elements of a type. `bytes` is the largest piece's length.
    pub fn copying(
        kernels: &'a Kernels,
        stream: RawStream,
        data_type: DataType,
        bytes: usize,
    ) -> Fused<'a> {
        Fused::new(kernels, stream, data_type, ReduceOp::Sum, 1, bytes, abi::COPY)
    }

    /// Reductions whose value is complete: a mean is divided by `parts`; a pre-multiplied sum
    /// scales each source by its factor, as many as there are sources.
    pub fn reducing(
        kernels: &'a Kernels,
        stream: RawStream,
        (data_type, op): (DataType, ReduceOp),
        parts: usize,
        scalars: &[f64],
        bytes: usize,
    ) -> Fused<'a> {
        let flags = abi::FINISH;
        let mut fused = Fused::new(kernels, stream, data_type, op, parts, bytes, flags);
        let places = fused.arguments.inline_scalars.iter_mut();
        places.zip(scalars).for_each(|(place, scalar)| *place = *scalar);
        fused
    }

    fn new(
        kernels: &'a Kernels,
        stream: RawStream,
        data_type: DataType,
        op: ReduceOp,
        parts: usize,
        bytes: usize,
        flags: u32,
    ) -> Fused<'a> {
        let mut arguments = abi::ReduceArgs::default();
        let size = data_type.size();
        arguments.data_type = data_type as i32;
        arguments.op = op as i32;
        arguments.parts = parts as u64;
        arguments.tile = tile(bytes, kernels.device().multiprocessors, parts, size);
        let (ends, barrier_blocks) = (0, None);
        Fused { kernels, stream, size, data_type, arguments, ends, flags, bytes, barrier_blocks }
    }

    /// Let every launch begin and end with a barrier of the same blocks of all ranks, which add
    /// pieces of the same ends: a piece of a length of none is one, too.
    pub fn barrier(mut self, barrier: abi::Barrier, blocks: u32) -> Fused<'a> {
        self.arguments.call.barrier = barrier;
        self.arguments.tile = tile(self.bytes, blocks, self.arguments.parts as usize, self.size);
        self.barrier_blocks = Some(blocks);
        self
    }

    /// Add a piece. The context is current.
    pub fn add(&mut self, sources: &[Address], targets: &[Address], count: usize) -> Result<()> {
        assert!(sources.len() + targets.len() <= MOST_ENDS && !sources.is_empty());
        if (count == 0 && self.barrier_blocks.is_none()) || targets.is_empty() {
            return Ok(());
        }
        let call = self.arguments.call;
        let ends = sources.len() + targets.len();
        let is_full = call.npieces as usize == self.arguments.inline_pieces.len();
        if is_full || self.ends + ends > MOST_ENDS {
            self.launch()?;
        }
        let arguments = &mut self.arguments;
        let tiles = count.div_ceil(arguments.tile as usize);
        arguments.inline_pieces[arguments.call.npieces as usize] = abi::Piece {
            count: count as u64,
            first_tile: arguments.call.ntiles,
            first_end: self.ends as u32,
            nsources: sources.len() as u16,
            ntargets: targets.len() as u16,
            flags: self.flags,
        };
        let places = arguments.inline_ends[self.ends..].iter_mut();
        places.zip(sources.iter().chain(targets)).for_each(|(place, end)| *place = *end);
        arguments.call.npieces += 1;
        arguments.call.ntiles += tiles as u32;
        self.ends += ends;
        Ok(())
    }

    /// Launch what was added since the last time; a barrier also where that is nothing. The context
    /// is current.
    pub fn launch(&mut self) -> Result<()> {
        let tiles = self.arguments.call.ntiles;
        if let Some(blocks) = self.barrier_blocks {
            self.send(blocks)?;
        } else if tiles > 0 {
            self.send(tiles.min(self.kernels.device().multiprocessors))?;
        }
        self.arguments.call.npieces = 0;
        self.arguments.call.ntiles = 0;
        self.ends = 0;
        Ok(())
    }

    fn send(&self, blocks: u32) -> Result<()> {
        debug_assert!(self.size > 0);
        // Each has a vector of a tile at least.
        let vectors = (self.arguments.tile as usize * self.size).div_ceil(16);
        let threads = vectors.next_multiple_of(WARP).clamp(LEAST_THREADS, abi::THREADS) as u32;
        let (what, grid) =
            ((KernelFamily::Reduce, self.data_type), Grid { threads, ..Grid::of(blocks) });
        // SAFETY: this is the kernel's structure; whoever added addresses answers for them.
        unsafe { self.kernels.run(what, &self.arguments, grid, self.stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_move_what_all_buffers_are_aligned_to() {
        let of = |size, ends: &[Address]| copied_as(size, ends.iter().copied());
        let types = [DataType::Uint8, DataType::Uint16, DataType::Uint32, DataType::Uint64];
        for data_type in types {
            let size = data_type.size() as Address;
            // Nothing is nowhere.
            assert_eq!(of(data_type.size(), &[4096, 0, 3 * size]), data_type);
            if size > 1 {
                assert_eq!(of(data_type.size(), &[4096, 3 * size + size / 2]), DataType::Uint8);
            }
        }
    }
}
