//! A reduction of several sources as a balanced tree, which a plan between hosts asks for: each sum
//! of two is rounded to the type, as if another rank had sent it.
//!
//! Tile by tile, so that the sums of some stay in the nearest cache, and through the cache: a tile
//! is shorter than what is written past it.
#![allow(unsafe_code)]

use crate::algorithm::left_half;
use crate::device::host::{Job, Reduction, copy};
use std::mem::MaybeUninit;

/// Bytes that go through the whole tree at once.
const TILE: usize = 2048;

/// Sums of some that are there at once: one for each doubling of ranks.
const MOST_SUMS: usize = 24;

/// Room for them, from a line of the cache on, so that vectors lie well.
#[repr(align(64))]
struct Sums([MaybeUninit<u8>; TILE * MOST_SUMS]);

/// As [`Reduction::run`], in the order of a balanced tree.
///
/// # Safety
/// As [`Reduction::run`]; elements have `element` bytes.
#[cold]
pub unsafe fn reduce_balanced(reduction: &Reduction, job: &Job, element: usize) {
    assert!(job.sources.len() < 1 << MOST_SUMS, "{} sources", job.sources.len());
    let mut sums = Sums([MaybeUninit::uninit(); TILE * MOST_SUMS]);
    let sums: *mut u8 = sums.0.as_mut_ptr().cast();
    let tile = TILE / element;
    for start in (0..job.count).step_by(tile) {
        let count = tile.min(job.count - start);
        let tree = Tree { reduction, job, element, offset: start * element, count };
        // SAFETY: the caller's promise, for elements from `start` on.
        unsafe { tree.finish(sums) };
    }
}

/// One tile of all sources.
struct Tree<'a> {
    reduction: &'a Reduction,
    job: &'a Job<'a>,
    element: usize,
    /// Bytes before it in every buffer, and its elements.
    offset: usize,
    count: usize,
}

impl Tree<'_> {
    /// The top, which goes to the targets.
    unsafe fn finish(&self, sums: *mut u8) {
        let job = self.job;
        let (halves, scaled) = self.halves((0, job.sources.len()), sums);
        // A target may be a source: of several each is written when all are read.
        let several = job.targets.len() > 1;
        let place = if several { sums } else { job.targets[0].wrapping_add(self.offset) };
        let targets = [place];
        let (finish, scalar) = (job.finish, job.scalar);
        let top = Job { finish, scaled, scalar, ..Job::new(&targets, &halves, self.count) };
        // SAFETY: the caller's promise; the halves are sources or sums that were just made, and one
        // of them may be the place itself.
        unsafe { self.reduction.run(&top) };
        for target in job.targets.iter().filter(|_| several) {
            let (target, bytes) = (target.wrapping_add(self.offset), self.count * self.element);
            // SAFETY: the sum was just made, and nobody else writes it.
            unsafe { copy(target, place, bytes, false) };
        }
    }

    /// Where the sum of `size` sources from `first` on lies: a lone one where it is.
    fn sum(&self, (first, size): (usize, usize), sums: *mut u8) -> *const u8 {
        if size == 1 {
            return self.job.sources[first].wrapping_add(self.offset);
        }
        let (halves, scaled) = self.halves((first, size), sums);
        let targets = [sums];
        let scalar = self.job.scalar;
        let job = Job { scaled, scalar, ..Job::new(&targets, &halves, self.count) };
        // SAFETY: a tile has room for the elements; it may be one of the two.
        unsafe { self.reduction.run(&job) };
        targets[0]
    }

    /// The two halves of a node, and which of them is the source that is scaled.
    fn halves(
        &self,
        (first, size): (usize, usize),
        sums: *mut u8,
    ) -> ([*const u8; 2], Option<usize>) {
        let left = left_half(size);
        // The left half's sum stays where sums begin.
        let halves = [
            self.sum((first, left), sums),
            self.sum((first + left, size - left), sums.wrapping_add(TILE)),
        ];
        let leaf = |at: usize, count: usize| count == 1 && self.job.scaled == Some(at);
        let scaled = match (leaf(first, left), leaf(first + left, size - left)) {
            (true, _) => Some(0),
            (_, true) => Some(1),
            _ => None,
        };
        (halves, scaled)
    }
}
