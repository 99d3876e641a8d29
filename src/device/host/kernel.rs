//! The one reduction kernel, generic over vector and operation.
//!
//! A block of accumulators stays in registers over all sources, so every source is read once and
//! every target written once. Ends that fill no vector are computed first, from untouched sources,
//! and stored last: vectors may then overlap and a target may be a source.

#![allow(unsafe_code)]

use super::Job;
use super::vector::{Operation, Vector};

/// `(job, count, parts)`: reduce `count` elements (at least one vector of them), then divide by
/// `parts` where that is more than 1.
pub type Kernel = unsafe fn(&Job, usize, usize);

/// Vectors in a block: four independent chains hide the latency of an addition (4 cycles on x86
/// cores of the last decade) and leave registers for the operands.
const BLOCK: usize = 4;

/// Reduce with the number of sources compiled in where it is small.
#[inline(always)]
pub unsafe fn reduce<V: Vector, O: Operation<V>>(job: &Job, count: usize, parts: usize) {
    // SAFETY: the caller's promise, handed on; `Fixed` is as long as the slice it copies.
    unsafe {
        match job.sources {
            [a, b] => pass::<V, O, _>(Fixed([*a, *b]), job, count, parts),
            [a, b, c] if V::LANES > 1 => pass::<V, O, _>(Fixed([*a, *b, *c]), job, count, parts),
            [a, b, c, d] if V::LANES > 1 => {
                pass::<V, O, _>(Fixed([*a, *b, *c, *d]), job, count, parts)
            }
            sources => pass::<V, O, _>(Any(sources), job, count, parts),
        }
    }
}

/// A list of sources whose length may be known to the compiler.
trait Sources: Copy {
    fn list(&self) -> &[*const u8];
}

#[derive(Clone, Copy)]
struct Fixed<const N: usize>([*const u8; N]);

impl<const N: usize> Sources for Fixed<N> {
    #[inline(always)]
    fn list(&self) -> &[*const u8] {
        &self.0
    }
}

#[derive(Clone, Copy)]
struct Any<'a>(&'a [*const u8]);

impl Sources for Any<'_> {
    #[inline(always)]
    fn list(&self) -> &[*const u8] {
        self.0
    }
}

/// `N` vectors of the result, from element `offset` on.
#[inline(always)]
unsafe fn block<V: Vector, O: Operation<V>, S: Sources, const N: usize>(
    sources: &S,
    offset: usize,
    job: &Job,
    parts: usize,
) -> [V; N] {
    let list = sources.list();
    let scaled = if O::FULL { job.scaled.unwrap_or(usize::MAX) } else { usize::MAX };
    // SAFETY: the caller asks for elements within the count, which every source holds.
    unsafe {
        let read = |index: usize, lane: usize| {
            let value = V::load(list[index].add((offset + lane * V::LANES) * V::SIZE));
            if O::FULL && index == scaled { O::prepare(value, job.scalar) } else { value }
        };
        let mut accumulators: [V; N] = std::array::from_fn(|lane| read(0, lane));
        for index in 1..list.len() {
            for (lane, accumulator) in accumulators.iter_mut().enumerate() {
                *accumulator = O::combine(*accumulator, read(index, lane));
            }
        }
        if O::FULL {
            accumulators = accumulators.map(|value| O::finish(value, parts));
        }
        accumulators
    }
}

/// Store vectors to every target, from element `offset` on.
#[inline(always)]
unsafe fn put<V: Vector, const N: usize>(
    values: [V; N],
    targets: &[*mut u8],
    offset: usize,
    streaming: bool,
) {
    // SAFETY: the caller stores elements within the count, which every target holds; `streaming`
    // is asked for only at offsets where the first target is aligned.
    unsafe {
        let at = |target: *mut u8, lane: usize| target.add((offset + lane * V::LANES) * V::SIZE);
        let (first, others) = targets.split_first().unwrap_unchecked();
        for (lane, value) in values.iter().enumerate() {
            if streaming {
                value.stream(at(*first, lane));
            } else {
                value.store(at(*first, lane));
            }
        }
        for target in others {
            for (lane, value) in values.iter().enumerate() {
                value.store(at(*target, lane));
            }
        }
    }
}

/// Elements before the first one at which streaming stores are aligned, where there is such a one.
fn elements_to_alignment<V: Vector>(target: *const u8) -> Option<usize> {
    let bytes = V::LANES * V::SIZE;
    let missing = target.addr().wrapping_neg() % bytes;
    missing.is_multiple_of(V::SIZE).then_some(missing / V::SIZE)
}

#[inline(always)]
unsafe fn pass<V: Vector, O: Operation<V>, S: Sources>(
    sources: S,
    job: &Job,
    count: usize,
    parts: usize,
) {
    let targets = job.targets;
    // SAFETY: every offset below is at most `count - LANES`, or leaves a whole block before `count`.
    unsafe {
        if V::LANES == 1 {
            for offset in 0..count {
                put(block::<V, O, S, 1>(&sources, offset, job, parts), targets, offset, false);
            }
            return;
        }
        let last = count - V::LANES;
        let tail = block::<V, O, S, 1>(&sources, last, job, parts);
        let lead = if job.streaming { elements_to_alignment::<V>(targets[0]) } else { None };
        let streaming = lead.is_some();
        let start = lead.unwrap_or(0);
        let mut offset = start;
        let head = block::<V, O, S, 1>(&sources, 0, job, parts);
        while offset + BLOCK * V::LANES <= count {
            let values = block::<V, O, S, BLOCK>(&sources, offset, job, parts);
            put(values, targets, offset, streaming);
            offset += BLOCK * V::LANES;
        }
        while offset < last {
            put(block::<V, O, S, 1>(&sources, offset, job, parts), targets, offset, streaming);
            offset += V::LANES;
        }
        if offset < count {
            put(tail, targets, last, false);
        }
        if start > 0 {
            put(head, targets, 0, false);
        }
        if streaming {
            super::memory::fence();
        }
    }
}
