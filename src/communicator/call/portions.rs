//! A long call through memory of a fixed size: cut into portions, each a call of its own.
//!
//! A portion has the same elements of every block. Packed one after another, a rank's runs of them
//! are the buffers of the same collective on fewer elements. How a call is cut follows from what
//! its ranks know alike, whose memory it goes through is no part of that: ranks of the host cut as
//! ranks on devices do. No element changes its block, nor its part of the vector where the order of
//! a sum depends on that, so the bits are those of the whole call.
#![allow(unsafe_code)]

use super::{Call, Extents, Order, VectorCounts};
use crate::error::Result;
use crate::plan::Collective;
use crate::plan::partition::{Extent, Partition};

/// Which of its rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Input,
    Output,
}

/// How much of a call in host memory is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallExtent {
    Whole,
    /// The portion of this number, which is packed.
    Portion(usize),
}

/// Runs a call, or a part of one, whose buffers are in host memory.
pub type RunOnHost<'a> = dyn FnMut(&Call, CallExtent) -> Result<()> + 'a;

/// How a call is cut on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portions {
    rank: usize,
    nranks: usize,
    /// Parts of a whole vector, of each of which every portion has a share.
    parts: usize,
    /// Elements of each block in a portion.
    share: usize,
    /// How many there are. One where the buffers are only too far from being packed.
    pub number: usize,
}

/// A run of bytes of a portion: where it is in the buffer, and where it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRun {
    pub offset: usize,
    pub at: usize,
    pub bytes: usize,
}

/// The output of a portion begins at a line of its own.
pub const LINE: usize = 64;

/// The least memory of a portion for each rank, so that all blocks have a share in it: two blocks
/// of a line for each, and as many parts of a vector as the plans with the most channels have.
const LEAST: usize = 1 << 10;

/// Bytes of a portion where ranks have so much for their connections, which all of them know.
pub fn portion_bytes(buff_size: usize, nranks: usize) -> usize {
    buff_size.max(LEAST * nranks.max(4)) / LINE * LINE
}

impl Portions {
    /// How a call is cut for memory that holds two portions of so many bytes; `None` where all of
    /// it fits as it lies.
    pub fn of(
        call: &Call,
        extents: &Extents,
        (rank, nranks): (usize, usize),
        parts: usize,
        bytes: usize,
    ) -> Option<Portions> {
        if call.collective == Collective::Barrier {
            return None;
        }
        let size = call.data_type.size();
        let fits = |bytes_needed: usize| bytes_needed <= 2 * bytes - LINE;
        let blocks = most_blocks(call.collective, nranks, parts);
        let share = (bytes - LINE) / blocks;
        let share = if share < LINE { share } else { share / LINE * LINE };
        let share = share / size;
        assert!(share > 0, "memory for portions holds an element of every block");
        let portions = |share, number| Portions { rank, nranks, parts, share, number };
        let Some(vector) = call.vector else {
            let longest = call.count.div_ceil(parts);
            let all = longest.saturating_mul(blocks).saturating_mul(size);
            return (!fits(all)).then(|| portions(share, longest.div_ceil(share)));
        };
        let (share, number) = if call.runs_as_messages() {
            // Only two ranks know of a block, so that is all that they can go by.
            let lists = [&vector.send_counts, &vector.recv_counts];
            let longest = lists.into_iter().flatten().chain([&call.count]).max();
            (share, longest.map_or(1, |longest| longest.div_ceil(share).max(1)))
        } else {
            let counts = &vector.recv_counts;
            let longest = counts.iter().max().copied().unwrap_or(0);
            let sum = counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count));
            let all = sum.saturating_add(longest).saturating_mul(size);
            // One portion has both portions' memory to itself, and all of every block.
            if fits(all) { (longest.max(1), 1) } else { (share, longest.div_ceil(share)) }
        };
        // What lies between a rank's blocks is nobody else's affair.
        let lies_close = fits(extents.input.saturating_add(extents.output));
        (number > 1 || !lies_close).then(|| portions(share, number))
    }

    /// Blocks of one of this rank's buffers.
    pub fn blocks(&self, call: &Call, side: Side) -> usize {
        use Collective::*;
        let is_root = self.rank == call.root;
        match (call.collective, side) {
            (Barrier, _) => 0,
            (Broadcast | Scatter, Side::Input) | (Reduce | Gather, Side::Output) if !is_root => 0,
            (AllReduce | Broadcast | Reduce, _) => self.parts,
            (AllGather | Gather, Side::Input) | (ReduceScatter | Scatter, Side::Output) => 1,
            _ => self.nranks,
        }
    }

    fn block(&self, call: &Call, side: Side, index: usize) -> Extent {
        use Collective::*;
        match (call.collective, side, call.vector) {
            (AllReduce | Broadcast | Reduce | Barrier, ..) => {
                Partition::new(call.count, self.parts).extent(index)
            }
            (AllGather | Gather, Side::Input, _) | (ReduceScatter | Scatter, Side::Output, _) => {
                Extent { offset: 0, count: call.count }
            }
            (.., None) => Extent { offset: index * call.count, count: call.count },
            (ReduceScatter, _, Some(v)) => {
                Extent { offset: v.recv_counts[..index].iter().sum(), count: v.recv_counts[index] }
            }
            (_, Side::Input, Some(v)) => {
                Extent { offset: v.send_displacements[index], count: v.send_counts[index] }
            }
            (_, Side::Output, Some(v)) => {
                Extent { offset: v.recv_displacements[index], count: v.recv_counts[index] }
            }
        }
    }

    /// What portion `index` has of a block.
    fn taken(&self, index: usize, block: Extent) -> Extent {
        let before = index.saturating_mul(self.share).min(block.count);
        Extent { offset: block.offset + before, count: (block.count - before).min(self.share) }
    }

    /// The runs of a portion in one buffer, as they are packed.
    pub fn runs<'a>(
        &'a self,
        call: &'a Call,
        side: Side,
        index: usize,
    ) -> impl Iterator<Item = ByteRun> + 'a {
        let size = call.data_type.size();
        let taken = move |block| self.taken(index, self.block(call, side, block));
        let all = (0..self.blocks(call, side)).map(taken);
        let packed = move |at: &mut usize, extent: Extent| {
            let run = ByteRun { offset: extent.offset * size, at: *at, bytes: extent.count * size };
            *at += run.bytes;
            Some(run)
        };
        all.scan(0, packed).filter(|run| run.bytes > 0)
    }

    /// Where the output of a portion begins that is packed in memory of its own.
    pub fn start_of_output(&self, call: &Call, index: usize) -> usize {
        let input = self.runs(call, Side::Input, index).map(|run| run.bytes).sum::<usize>();
        input.next_multiple_of(LINE)
    }

    /// The counts of a portion of a `v` form, whose blocks are packed.
    pub fn lists(&self, call: &Call, index: usize) -> Option<VectorCounts> {
        let vector = call.vector?;
        let take = |counts: &[usize]| -> Vec<usize> {
            let block = |count: &usize| Extent { offset: 0, count: *count };
            counts.iter().map(|count| self.taken(index, block(count)).count).collect()
        };
        let pack = |counts: &[usize]| {
            let before =
                |sum: &mut usize, count: &usize| Some(std::mem::replace(sum, *sum + count));
            counts.iter().scan(0, before).collect()
        };
        let (send_counts, recv_counts) = (take(&vector.send_counts), take(&vector.recv_counts));
        let (send_displacements, recv_displacements) = (pack(&send_counts), pack(&recv_counts));
        Some(VectorCounts { send_counts, send_displacements, recv_counts, recv_displacements })
    }

    /// A portion as a call of its own, with the buffers and the `lists` of a `v` form that it has.
    pub fn call<'a>(
        &self,
        call: &Call,
        index: usize,
        (send, recv): (*const u8, *mut u8),
        lists: Option<&'a VectorCounts>,
    ) -> Call<'a> {
        use Collective::{AllReduce, Broadcast, Reduce};
        let own = Extent { offset: 0, count: call.count };
        let count = match call.collective {
            AllReduce | Broadcast | Reduce => {
                let partition = Partition::new(call.count, self.parts);
                let taken = |part| self.taken(index, partition.extent(part)).count;
                (0..self.parts).map(taken).sum()
            }
            _ => self.taken(index, own).count,
        };
        Call { send, recv, count, vector: lists, order: Order::default(), meanwhile: None, ..*call }
    }

    /// Pack a portion's input.
    ///
    /// # Safety
    /// The input is the call's, in host memory; `target` has room for the portion's part of it.
    pub unsafe fn pack(&self, call: &Call, index: usize, target: *mut u8) {
        for run in self.runs(call, Side::Input, index) {
            let (to, from) = (target.wrapping_add(run.at), call.send.wrapping_add(run.offset));
            // SAFETY: the caller's promise; the two are no one's memory alike.
            unsafe { std::ptr::copy_nonoverlapping(from, to, run.bytes) };
        }
    }

    /// Put a portion's output where the call wants it.
    ///
    /// # Safety
    /// The output is the call's, in host memory; `source` is the portion's part of it, packed.
    pub unsafe fn unpack(&self, call: &Call, index: usize, source: *const u8) {
        for run in self.runs(call, Side::Output, index) {
            let (to, from) = (call.recv.wrapping_add(run.offset), source.wrapping_add(run.at));
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from, to, run.bytes) };
        }
    }
}

/// The most blocks that a rank of a call has in both buffers together.
fn most_blocks(collective: Collective, nranks: usize, parts: usize) -> usize {
    use Collective::*;
    match collective {
        AllReduce | Broadcast | Reduce | Barrier => 2 * parts,
        AllGather | ReduceScatter | Gather | Scatter => nranks + 1,
        AllToAll => 2 * nranks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DataType;

    fn cut(
        call: &Call,
        rank: usize,
        nranks: usize,
        parts: usize,
        bytes: usize,
    ) -> Option<Portions> {
        let extents = call.extents(rank, nranks).unwrap();
        Portions::of(call, &extents, (rank, nranks), parts, bytes)
    }

    /// Every element of a side is in one portion, and all portions fit.
    fn check(call: &Call, rank: usize, nranks: usize, parts: usize, bytes: usize) {
        let portions = cut(call, rank, nranks, parts, bytes).expect("a long call");
        let size = call.data_type.size();
        for side in [Side::Input, Side::Output] {
            let blocks =
                (0..portions.blocks(call, side)).map(|one| portions.block(call, side, one));
            let mut want: Vec<usize> =
                blocks.flat_map(|block| block.offset..block.offset + block.count).collect();
            let runs = |index| portions.runs(call, side, index).collect::<Vec<_>>();
            let mut got = Vec::new();
            for run in (0..portions.number).flat_map(runs) {
                assert!(run.offset % size == 0 && run.bytes % size == 0);
                got.extend(run.offset / size..(run.offset + run.bytes) / size);
            }
            want.sort_unstable();
            got.sort_unstable();
            assert_eq!(got, want, "{call:?} {side:?}");
        }
        for index in 0..portions.number {
            let lists = portions.lists(call, index);
            let none = (std::ptr::null(), std::ptr::null_mut());
            let part = portions.call(call, index, none, lists.as_ref());
            let extents = part.extents(rank, nranks).unwrap();
            let packed =
                |side| portions.runs(call, side, index).map(|run| run.bytes).sum::<usize>();
            assert_eq!(
                (packed(Side::Input), packed(Side::Output)),
                (extents.input, extents.output)
            );
            let start = portions.start_of_output(call, index);
            let room = if portions.number == 1 { 2 * bytes } else { bytes };
            assert!(start >= extents.input && start + extents.output <= room);
            // Where a portion is cut again, its ranks might not agree on how.
            assert_eq!(cut(&part, rank, nranks, parts, bytes), None);
        }
    }

    #[test]
    fn portions_cover_every_collective_and_fit() {
        for (nranks, count, bytes) in [(1, 5000, 4096), (2, 3001, 4096), (5, 2003, 5120)] {
            for collective in Collective::ALL {
                if collective == Collective::Barrier {
                    continue;
                }
                for data_type in [DataType::Int8, DataType::Float32, DataType::Float64] {
                    let count = 8 * count / data_type.size();
                    let call = Call { root: nranks - 1, count, ..Call::new(collective, data_type) };
                    (0..nranks).for_each(|rank| check(&call, rank, nranks, 1, bytes));
                    if collective == Collective::AllReduce {
                        check(&call, 0, nranks, nranks, bytes);
                    }
                }
            }
        }
    }

    #[test]
    fn portions_cover_v_forms_with_holes_and_empty_blocks() {
        use Collective::*;
        let counts = vec![0, 4000, 17, 1300];
        let far = vec![0, 100, 9000, 5000];
        for collective in [AllGather, ReduceScatter, Gather, Scatter, AllToAll] {
            for (rank, count) in counts.iter().enumerate() {
                let mut vector = VectorCounts::default();
                if !matches!(collective, Scatter) {
                    vector.recv_counts = counts.clone();
                    vector.recv_displacements = far.clone();
                }
                if matches!(collective, Scatter | AllToAll) {
                    vector.send_counts = counts.clone();
                    vector.send_displacements = far.clone();
                }
                if collective == AllToAll {
                    vector.send_counts[rank] = vector.recv_counts[rank];
                }
                let call = Call {
                    root: 1,
                    count: *count,
                    vector: Some(&vector),
                    ..Call::new(collective, DataType::Float32)
                };
                check(&call, rank, 4, 1, 4096);
            }
        }
    }

    #[test]
    fn blocks_that_fit_where_they_are_packed_are_whole_portions() {
        let recv_counts = vec![500, 500];
        let recv_displacements = vec![0, 3000];
        let vector = VectorCounts { recv_counts, recv_displacements, ..VectorCounts::default() };
        let call = Call {
            count: 500,
            vector: Some(&vector),
            ..Call::new(Collective::AllGather, DataType::Float32)
        };
        (0..2).for_each(|rank| check(&call, rank, 2, 1, 4096));
        assert_eq!(cut(&call, 0, 2, 1, 4096).unwrap().number, 1);
        // Another rank's lie close, and it makes the whole call.
        let close = VectorCounts { recv_displacements: vec![0, 500], ..vector.clone() };
        assert_eq!(cut(&Call { vector: Some(&close), ..call }, 0, 2, 1, 4096), None);
    }

    /// Whether an element of a vector changes its part is whether its sum changes its order.
    #[test]
    fn an_element_stays_in_its_part_of_the_vector() {
        let (nranks, count) = (3, 10_007);
        let call = Call { count, ..Call::new(Collective::AllReduce, DataType::Float32) };
        let portions = cut(&call, 0, nranks, nranks, 4096).unwrap();
        let whole = Partition::new(count, nranks);
        for index in 0..portions.number {
            let none = (std::ptr::null(), std::ptr::null_mut());
            let part = portions.call(&call, index, none, None);
            let packed = Partition::new(part.count, nranks);
            for run in portions.runs(&call, Side::Input, index) {
                for element in 0..run.bytes / 4 {
                    let holds = |extent: Extent, at: usize| {
                        (extent.offset..extent.offset + extent.count).contains(&at)
                    };
                    let of = |partition: &Partition, at: usize| {
                        (0..nranks).position(|one| holds(partition.extent(one), at))
                    };
                    let (before, after) = (run.offset / 4 + element, run.at / 4 + element);
                    assert_eq!(of(&whole, before), of(&packed, after));
                }
            }
        }
    }

    #[test]
    fn what_fits_is_whole_and_how_it_is_cut_does_not_depend_on_the_rank() {
        let call = |count| Call { count, ..Call::new(Collective::Broadcast, DataType::Int8) };
        assert_eq!(cut(&call(4096 - 32), 0, 2, 1, 4096), None);
        let [root, leaf] = [0, 1].map(|rank| cut(&call(4096 - 31), rank, 2, 1, 4096).unwrap());
        assert_eq!((root.share, root.number), (leaf.share, leaf.number));
        assert_eq!((root.share, root.number), (1984, 3));
    }
}
