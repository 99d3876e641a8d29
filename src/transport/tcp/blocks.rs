//! The memory of slots: of the blocks that are free, the one that was freed last is taken first,
//! since the caches still have it.
//!
//! A reader that keeps up so receives every message into the same block, and a sender whose kernel
//! takes what it posts writes every one to the same: with blocks in turns, messages would go
//! through as many bytes of cache as all slots have.

use crate::transport::fifo::Geometry;

/// Where blocks begin: at a line, as what is written past the cache does.
const ALIGNMENT: usize = 64;

/// As many blocks as a connection has slots.
pub struct Blocks {
    /// Zeroed by the kernel when a page is first used.
    memory: Vec<u8>,
    stride: usize,
    free: Vec<usize>,
}

impl Blocks {
    /// Blocks as long as a slot and `behind` bytes.
    pub fn new(geometry: Geometry, behind: usize) -> Blocks {
        let stride = (geometry.slot_bytes + behind).next_multiple_of(ALIGNMENT);
        Blocks {
            memory: vec![0; geometry.depth * stride + ALIGNMENT],
            stride,
            free: (0..geometry.depth).rev().collect(),
        }
    }

    /// A block of the caller's until it is given back; nobody takes more than there are.
    pub fn take(&mut self) -> usize {
        self.free.pop().expect("as many blocks as slots")
    }

    pub fn give(&mut self, block: usize) {
        self.free.push(block);
    }

    pub fn address(&self, block: usize) -> *mut u8 {
        let first = self.memory.as_ptr().align_offset(ALIGNMENT);
        self.memory.as_ptr().cast_mut().wrapping_add(first + block * self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_last_is_taken_first() {
        let mut blocks = Blocks::new(Geometry { depth: 3, slot_bytes: 64 }, 0);
        let (first, second) = (blocks.take(), blocks.take());
        blocks.give(second);
        blocks.give(first);
        assert_eq!((blocks.take(), blocks.take()), (first, second));
        assert!(![first, second].contains(&blocks.take()));
    }

    #[test]
    fn blocks_begin_at_lines_and_do_not_overlap() {
        let mut blocks = Blocks::new(Geometry { depth: 4, slot_bytes: 100 }, 16);
        let mut at: Vec<usize> = (0..4).map(|_| blocks.take()).collect();
        at.iter_mut().for_each(|block| *block = blocks.address(*block).addr());
        at.sort_unstable();
        assert!(at.iter().all(|address| address.is_multiple_of(ALIGNMENT)));
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= 116));
        let memory = blocks.memory.as_ptr_range();
        assert!(memory.start.addr() <= at[0] && at[3] + 116 <= memory.end.addr());
    }
}
