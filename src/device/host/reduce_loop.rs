//! The one reduction kernel, generic over vector and operation.
//!
//! A block of accumulators stays in registers over all sources, so every source is read once and
//! every target written once, after the sources at that place were read: a target may be a source.
//! A kernel does whole vectors; what is left over goes to the kernel of a narrower vector.

#![allow(unsafe_code)]

use super::Job;
use super::vector::{ElementOp, Vector};

/// `(job, start, end, divisor)`: reduce elements `start..end`, whole vectors, then divide by
/// `divisor` where that is not 1. Streaming targets are aligned at `start`.
pub type ReduceLoop = unsafe fn(&Job, usize, usize, f64);

/// Vectors in a block: four independent chains hide the latency of an addition (4 cycles on x86
/// cores of the last decade) and leave registers for the operands.
const BLOCK: usize = 4;

/// Targets past the cache that are written a vector at a time: with two there is no difference.
const FEW_TARGETS: usize = 2;

/// Blocks, then single vectors.
#[inline(always)]
pub unsafe fn blocks<V: Vector, O: ElementOp<V>>(
    job: &Job,
    start: usize,
    end: usize,
    divisor: f64,
) {
    let mut offset = start;
    // SAFETY: the caller's promise, handed on, and no block passes `end`.
    unsafe {
        // Past the cache, wide stores to one target or two run better in step with the loads, so
        // single vectors are nearer to a plain loop's bandwidth than blocks
        // (`benches/arithmetic.rs` compares the two bandwidths). With more, memory that is given a
        // line for one after the other takes a tenth longer than with a block for each, and up to
        // twice as long where it is fast (`benches/results/targets-2026-11-25.txt`). Narrow
        // vectors have conversions to hide.
        let few = job.targets.len() <= FEW_TARGETS;
        if job.streaming > 0 && few && V::LANES * V::SIZE >= 32 {
            return singles::<V, O>(job, start, end, divisor);
        }
        if let (true, [first, second]) = (O::PAIRS, job.sources) {
            // Known to be two, the sources stay in registers: the step of every ring.
            let sources = [*first, *second];
            while offset + BLOCK * V::LANES <= end {
                block::<V, O, BLOCK>(job, &sources, offset, divisor);
                offset += BLOCK * V::LANES;
            }
        } else {
            while offset + BLOCK * V::LANES <= end {
                block::<V, O, BLOCK>(job, job.sources, offset, divisor);
                offset += BLOCK * V::LANES;
            }
        }
        singles::<V, O>(job, offset, end, divisor);
    }
}

/// One vector at a time.
#[inline(always)]
pub unsafe fn singles<V: Vector, O: ElementOp<V>>(
    job: &Job,
    start: usize,
    end: usize,
    divisor: f64,
) {
    let mut offset = start;
    // SAFETY: the caller's promise, handed on.
    unsafe {
        if let (true, [first, second]) = (O::PAIRS, job.sources) {
            let sources = [*first, *second];
            while offset < end {
                block::<V, O, 1>(job, &sources, offset, divisor);
                offset += V::LANES;
            }
        } else {
            while offset < end {
                block::<V, O, 1>(job, job.sources, offset, divisor);
                offset += V::LANES;
            }
        }
    }
}

/// Reduce `N` vectors from element `offset` on and store them to every target.
#[inline(always)]
unsafe fn block<V: Vector, O: ElementOp<V>, const N: usize>(
    job: &Job,
    sources: &[*const u8],
    offset: usize,
    divisor: f64,
) {
    let position = offset * V::SIZE;
    let stride = V::LANES * V::SIZE;
    // SAFETY: the caller's promise: all buffers hold these elements, there is a source and a
    // target, and the streaming targets are aligned here.
    unsafe {
        let factor = |index: usize| match job.scalars.get(index) {
            _ if !O::FULL => None,
            None => (job.scaled == Some(index)).then_some(job.scalar),
            own => own.copied(),
        };
        let first = sources.get_unchecked(0).add(position);
        let mut values = [V::load(first); N];
        let mut lane = 0;
        while lane < N {
            let value = V::load(first.add(lane * stride));
            values[lane] = factor(0).map_or(value, |factor| O::prepare(value, factor));
            lane += 1;
        }
        let mut index = 1;
        while index < sources.len() {
            let source = sources.get_unchecked(index).add(position);
            let mut lane = 0;
            while lane < N {
                let mut value = V::load(source.add(lane * stride));
                if let Some(factor) = factor(index) {
                    value = O::prepare(value, factor);
                }
                values[lane] = O::combine(values[lane], value);
                lane += 1;
            }
            index += 1;
        }
        if O::FULL {
            values = values.map(|value| O::finish(value, divisor));
        }
        let mut index = 0;
        while index < job.targets.len() {
            let target = job.targets.get_unchecked(index).add(position);
            let mut lane = 0;
            while lane < N {
                if V::STREAMS && index < job.streaming {
                    values[lane].stream(target.add(lane * stride));
                } else {
                    values[lane].store(target.add(lane * stride));
                }
                lane += 1;
            }
            index += 1;
        }
    }
}
