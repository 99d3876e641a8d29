//! The memory of slots: of the blocks that are free, the one that was freed last is taken first,
//! since the caches still have it.
//!
//! A reader that keeps up so receives every message into the same block, and a sender whose kernel
//! takes what it posts writes every one to the same: with blocks in turns, messages would go
//! through as many bytes of cache as all slots have.

use crate::error::Result;
use crate::transport::fifo::FifoShape;
use crate::transport::segment::Segment;

/// Where blocks begin: at a line, as what is written past the cache does.
const ALIGNMENT: usize = 64;

/// As many blocks as a connection has slots.
///
/// The memory is mapped, not the allocator's: to give it back gives all of its pages back, and the
/// next to be made takes no more of them than it uses.
pub struct SlotPool {
    /// None where there was no memory.
    memory: Option<Segment>,
    stride: usize,
    /// Blocks, free or not.
    count: usize,
    free: Vec<usize>,
    /// The memory stays mapped for good.
    is_kept: bool,
}

impl SlotPool {
    /// Blocks as long as a slot and `behind` bytes.
    pub fn new(geometry: FifoShape, behind: usize) -> Result<SlotPool> {
        let stride = (geometry.slot_bytes + behind).next_multiple_of(ALIGNMENT);
        let memory = Some(Segment::anonymous(geometry.depth * stride)?);
        let (count, free) = (geometry.depth, (0..geometry.depth).rev().collect());
        Ok(SlotPool { memory, stride, count, free, is_kept: false })
    }

    /// No block, of a connection that never gets to use one.
    pub fn none() -> SlotPool {
        SlotPool { memory: None, stride: 0, count: 0, free: Vec::new(), is_kept: false }
    }

    pub fn are_there(&self) -> bool {
        self.memory.is_some()
    }

    /// Keep the memory for good.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Blocks, free or not.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes from a block to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Where all blocks are.
    pub fn memory(&self) -> Option<(*mut u8, usize)> {
        self.memory.as_ref().map(|memory| (memory.address(), memory.bytes()))
    }

    /// A block of the caller's until it is given back; nobody takes more than there are.
    pub fn take(&mut self) -> usize {
        self.free.pop().expect("as many blocks as slots")
    }

    pub fn give(&mut self, block: usize) {
        self.free.push(block);
    }

    pub fn address(&self, block: usize) -> *mut u8 {
        // A page's beginning is a line's.
        let memory = self.memory.as_ref().expect("who has a block has memory");
        memory.address().wrapping_add(block * self.stride)
    }
}

impl Drop for SlotPool {
    fn drop(&mut self) {
        if self.is_kept {
            std::mem::forget(self.memory.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_last_is_taken_first() {
        let mut blocks = SlotPool::new(FifoShape { depth: 3, slot_bytes: 64 }, 0).unwrap();
        let (first, second) = (blocks.take(), blocks.take());
        blocks.give(second);
        blocks.give(first);
        assert_eq!((blocks.take(), blocks.take()), (first, second));
        assert!(![first, second].contains(&blocks.take()));
    }

    #[test]
    fn blocks_begin_at_lines_and_do_not_overlap() {
        let mut blocks = SlotPool::new(FifoShape { depth: 4, slot_bytes: 100 }, 16).unwrap();
        let mut at: Vec<usize> = (0..4).map(|_| blocks.take()).collect();
        at.iter_mut().for_each(|block| *block = blocks.address(*block).addr());
        at.sort_unstable();
        assert!(at.iter().all(|address| address.is_multiple_of(ALIGNMENT)));
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= 116));
        let memory = blocks.memory.as_ref().unwrap();
        let start = memory.address().addr();
        assert!(start <= at[0] && at[3] + 116 <= start + memory.bytes());
    }
}
