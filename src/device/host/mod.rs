//! Reductions and copies on the CPU.
//!
//! A [`Reduction`] is chosen once for a type and an operation and holds the kernels for this
//! processor; [`Reduction::run`] then costs a call through a pointer. Sources are reduced left to
//! right. f16, bf16 and the 8-bit floats are accumulated in f32 over all sources of a job and
//! rounded once, to nearest even; a NaN result has every bit but the sign set; `min` and `max`
//! propagate NaN and order -0 below +0; integers wrap, and their mean truncates towards zero. All
//! instruction sets give the same bits.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float_vectors;
#[cfg(target_arch = "aarch64")]
mod neon;
mod number_format;
mod portable;
mod reduce_loop;
mod select;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod simd_macros;
mod streaming_copy;
mod vector;

pub use select::InstructionSet;
pub use streaming_copy::{STREAMED_LEAST, copy, prepare, streaming_threshold, streams_far};

use crate::error::{Error, Result};
use crate::types::{DataType, ReduceOp};
use select::{Portable, ReduceKernels, Single, choose};

/// One reduction of several buffers into one result.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Where the result goes, the same bytes to all. A target may be a source (the same address);
    /// it never overlaps one otherwise.
    pub targets: &'a [*mut u8],
    /// What is reduced, left to right.
    pub sources: &'a [*const u8],
    /// Elements in each buffer.
    pub count: usize,
    /// Whether a mean is divided here.
    pub finish: bool,
    /// The source that a pre-multiplied sum multiplies by `scalar`; the product is rounded to the
    /// type before it is summed.
    pub scaled: Option<usize>,
    pub scalar: f64,
    /// The factors of all sources, where each is multiplied by its own; else empty.
    pub scalars: &'a [f64],
    /// How many leading targets are written past the cache.
    pub streaming: usize,
}

impl<'a> Job<'a> {
    /// A plain reduction: no division, no scaling, through the cache.
    pub fn new(targets: &'a [*mut u8], sources: &'a [*const u8], count: usize) -> Job<'a> {
        let (scaled, scalar, scalars) = (None, 1.0, &[][..]);
        Job { targets, sources, count, finish: false, scaled, scalar, scalars, streaming: 0 }
    }
}

/// A reduction of one type by one operation, ready to run on this processor.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    data_type: DataType,
    op: ReduceOp,
    /// What a mean's sum is divided by: the number of inputs, times `prescale` where there is one.
    divisor: f64,
    /// What a mean's inputs are multiplied by, where sums of some are rounded to the type on their
    /// way.
    prescale: Option<f64>,
    /// Bytes of an element, and elements as the kernels count them: bytes for bitwise operations.
    size: usize,
    units: usize,
    /// The widest vectors, sixteen bytes, one element.
    choices: [ReduceKernels; 3],
}

impl Reduction {
    /// `parts` is what a mean divides by.
    pub fn new(data_type: DataType, op: ReduceOp, parts: usize) -> Result<Reduction> {
        Reduction::with(InstructionSet::best(), data_type, op, parts)
    }

    /// As `new`, with the kernels of one instruction set, which this processor has; the results
    /// are the same.
    pub fn with(
        set: InstructionSet,
        data_type: DataType,
        op: ReduceOp,
        parts: usize,
    ) -> Result<Reduction> {
        if !op.supports(data_type) {
            return Err(Error::argument(format!("{op} is not defined on {data_type}")));
        }
        if parts == 0 {
            return Err(Error::argument(format!("{op} over 0 parts")));
        }
        let bitwise = matches!(op, ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor);
        let choices = [
            set.choose(data_type, op)?,
            choose::<Portable>(data_type, op),
            choose::<Single>(data_type, op),
        ];
        let size = data_type.size();
        let units = if bitwise { size } else { 1 };
        let divisor = parts as f64;
        Ok(Reduction { data_type, op, divisor, prescale: None, size, units, choices })
    }

    /// The same for a plan in which sums of some inputs are rounded to the type on their way: a
    /// mean of narrow floats is that of smaller inputs, so that no such sum is beyond the type.
    pub fn with_partial_sums(self) -> Reduction {
        let prescale = prescale_factor(self.data_type, self.op, self.divisor);
        Reduction { divisor: self.divisor * prescale.unwrap_or(1.0), prescale, ..self }
    }

    /// Whether inputs are multiplied when they are read: by the caller's scalar, or to be summed in
    /// parts.
    pub fn scales(&self) -> bool {
        self.op == ReduceOp::PreMulSum || self.prescale.is_some()
    }

    /// What they are multiplied by, where the caller's scalar is this.
    pub fn factor(&self, scalar: f64) -> f64 {
        self.prescale.unwrap_or(scalar)
    }

    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// Whether the result of one source that is not scaled may differ from it.
    pub fn changes_one(&self) -> bool {
        self.op == ReduceOp::Avg && self.divisor != 1.0 || self.data_type == DataType::Bool
    }

    /// Run a job: `target[i] = finish(source_0[i] op source_1[i] op ...)` for every target.
    ///
    /// One source that is neither scaled nor divided is copied bit for bit (truth values become 0
    /// or 1).
    ///
    /// # Safety
    /// There is a target and a source; every one is valid for `count` elements, at any alignment;
    /// buffers are equal or do not overlap, except that sources may overlap each other; nobody
    /// writes a source or touches a target meanwhile.
    #[inline]
    pub unsafe fn run(&self, job: &Job) {
        debug_assert!(!job.targets.is_empty() && !job.sources.is_empty());
        let divide = job.finish && self.op == ReduceOp::Avg && self.divisor != 1.0;
        let scale = (job.scaled.is_some() || !job.scalars.is_empty()) && self.scales();
        // SAFETY: the caller's promise, handed on.
        unsafe {
            if job.sources.len() == 1 && !divide && !scale && self.data_type != DataType::Bool {
                return self.copy(job);
            }
            let count = job.count * self.units;
            let divisor = if divide { self.divisor } else { 1.0 };
            let choices = &self.choices;
            let full = divide || scale;
            if job.streaming > 0 {
                return self.stream(job, count, full, divisor);
            }
            span(choices, job, 0, count, full, divisor);
        }
    }

    /// Up to where the first target is aligned, from there past the cache, and the rest. Targets
    /// that lie otherwise than the first are written through the cache.
    unsafe fn stream(&self, job: &Job, count: usize, full: bool, divisor: f64) {
        let [wide, narrower @ ..] = &self.choices;
        let unit = self.size / self.units;
        let missing_of = |target: &*mut u8| target.addr().wrapping_neg() % (wide.lanes * unit);
        let missing = missing_of(&job.targets[0]);
        let wanted = job.targets.iter().take(job.streaming);
        let alike = wanted.take_while(|target| missing_of(target) == missing).count();
        let streamed = Job { streaming: alike, ..*job };
        let cached = Job { streaming: 0, ..*job };
        // SAFETY: the caller's promise; elements before `lead` do not fill a vector, and from there
        // on the first target is aligned.
        unsafe {
            if !missing.is_multiple_of(unit) || count < 2 * wide.lanes {
                return span(&self.choices, &cached, 0, count, full, divisor);
            }
            let lead = missing / unit;
            let end = lead + (count - lead) / wide.lanes * wide.lanes;
            span(narrower, &cached, 0, lead, full, divisor);
            span(std::slice::from_ref(wide), &streamed, lead, end, full, divisor);
            streaming_copy::fence();
            span(narrower, &cached, end, count, full, divisor);
        }
    }

    /// The source's bytes to every target.
    unsafe fn copy(&self, job: &Job) {
        for (index, target) in job.targets.iter().enumerate() {
            let streaming = index < job.streaming;
            // SAFETY: the caller's promise, handed on.
            unsafe { copy(*target, job.sources[0], job.count * self.size, streaming) }
        }
    }
}

/// What inputs of a mean over so many are multiplied by where sums of some are rounded to the type:
/// the power of two for which no sum is larger than the largest input. Floats with the range of the
/// arithmetic itself overflow in any order.
pub fn prescale_factor(data_type: DataType, op: ReduceOp, parts: f64) -> Option<f64> {
    use DataType::{Float8e4m3, Float8e5m2, Float16};
    let is_narrow = matches!(data_type, Float16 | Float8e4m3 | Float8e5m2);
    (op == ReduceOp::Avg && is_narrow).then(|| parts.log2().ceil().exp2().recip())
}

/// Reduce elements `start..end`: whole vectors of each choice, the widest first.
#[inline(always)]
unsafe fn span(
    choices: &[ReduceKernels],
    job: &Job,
    mut start: usize,
    end: usize,
    full: bool,
    divisor: f64,
) {
    for choice in choices {
        // Lanes are a power of two.
        let stop = start + ((end - start) & !(choice.lanes - 1));
        if stop > start {
            let kernel = if full { choice.full } else { choice.plain };
            // SAFETY: the caller's promise, handed on, for whole vectors.
            unsafe { kernel(job, start, stop, divisor) };
            start = stop;
        }
    }
}

/// The instruction sets that reductions and copies use here, for a log line.
pub fn features() -> String {
    let names: Vec<_> = InstructionSet::present().map(InstructionSet::name).collect();
    names.join(" ")
}
