//! Binding: a plan and a call's layout become steps with byte offsets, ready to run many times.
//!
//! Nothing here depends on the buffers' addresses, so a bound plan is made once per shape and kept.
//! Slices: every chunk is cut into pieces of at most `slice_bytes`, so that the pieces of one step
//! together fit a connection slot; slice `i` of a step is the `i`-th piece of each of its chunks.

use super::chunk_layout::Layout;
use crate::device::host::{Reduction, streaming_threshold};
use crate::error::{Error, Result};
use crate::plan::{End, Plan, Span};

/// Where one chunk of a step lies, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    pub input: usize,
    pub output: usize,
    pub scratch: usize,
    pub bytes: usize,
}

impl Piece {
    /// Bytes of slice `slice`, where slices are `slice_bytes` long.
    #[inline]
    pub fn slice(&self, slice: usize, slice_bytes: usize) -> usize {
        self.bytes.saturating_sub(slice * slice_bytes).min(slice_bytes)
    }
}

#[derive(Clone, Debug)]
pub struct BoundStep {
    pub pieces: Box<[Piece]>,
    pub targets: Box<[End]>,
    pub sources: Box<[End]>,
    /// How many slices the step has: 1 for an empty chunk, so that its message still travels.
    pub slices: usize,
    pub finish: bool,
    /// Sources are reduced as a balanced tree.
    pub balanced: bool,
    /// Which source a pre-multiplied sum scales.
    pub scaled: Option<usize>,
    /// A lone source is copied to the targets unchanged.
    pub copies: bool,
    /// How many slices behind the first the step runs (see [`crate::plan::Step::stage`]).
    pub stage: usize,
}

/// A plan bound to one shape of call.
#[derive(Clone, Debug)]
pub struct CompiledPlan {
    pub steps: Box<[BoundStep]>,
    pub slices: usize,
    /// Every step is one slice of one piece, and none is behind another.
    pub is_whole: bool,
    /// Rounds of the executor: the slices, and what the last stage is behind.
    pub ticks: usize,
    pub slice_bytes: usize,
    /// Scratch for all slices that are under way at once.
    pub scratch_bytes: usize,
    /// Slices that are under way at once, and how much of the scratch each has.
    pub lives: usize,
    pub scratch_share: usize,
    pub element: usize,
    /// The bytes of an element as a power of two: a division takes longer than a small step's rest.
    pub element_shift: u32,
    /// The outputs do not fit the cache: write them past it.
    pub streaming: bool,
    pub reduction: Option<Reduction>,
}

/// What binding needs to know beside the plan.
pub struct CompileShape<'a> {
    pub layout: &'a Layout,
    /// Bytes of an element.
    pub element: usize,
    pub reduction: Option<Reduction>,
    /// Bytes of a connection slot.
    pub slot_bytes: usize,
    /// Connections are deep enough to run plans in stages.
    pub pipelined: bool,
    pub cut: Cut,
}

impl CompileShape<'_> {
    /// Whether the order in which inputs are reduced shows in the result.
    fn has_order(&self) -> bool {
        self.reduction.is_some_and(|one| !one.op().is_associative(one.data_type()))
    }
}

/// What decides how messages are cut into slices. Both ends of a connection must cut alike, so it
/// is about the plans of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Chunks of the widest step.
    widest: usize,
    /// Bytes of the longest.
    pub whole: usize,
}

impl Cut {
    pub fn new(plans: impl Iterator<Item = Plan>, layout: &Layout, element: usize) -> Cut {
        let mut cut = Cut { widest: 1, whole: 0 };
        for plan in plans {
            for step in &plan.steps {
                cut.widest = cut.widest.max(step.span.len);
                cut.whole = cut.whole.max(span_bytes(step.span, layout, element));
            }
        }
        cut
    }
}

impl CompiledPlan {
    /// A plan without steps.
    pub fn empty(element: usize, slice_bytes: usize) -> CompiledPlan {
        CompiledPlan {
            steps: Box::new([]),
            slices: 0,
            is_whole: true,
            ticks: 0,
            slice_bytes,
            scratch_bytes: 0,
            lives: 1,
            scratch_share: 0,
            element,
            element_shift: element.trailing_zeros(),
            streaming: false,
            reduction: None,
        }
    }

    pub fn new(plan: &Plan, shape: CompileShape) -> Result<CompiledPlan> {
        let Cut { widest, whole } = shape.cut;
        // When every message fits a slot there is one slice, however the chunks are spread.
        let slice_bytes = if whole <= shape.slot_bytes {
            whole.max(shape.element)
        } else {
            shape.slot_bytes / widest / shape.element * shape.element
        };
        if slice_bytes == 0 {
            return Err(Error::argument(format!(
                "{widest} chunks share a slot of {} bytes; raise RINGCOMM_BUFFSIZE",
                shape.slot_bytes
            )));
        }
        let scratch = ScratchMap::new(plan, &shape, slice_bytes, whole <= shape.slot_bytes);
        let lives = if shape.pipelined { plan.stages() } else { 1 };
        let mut steps = Vec::with_capacity(plan.steps.len());
        let mut output_bytes = 0;
        for step in &plan.steps {
            let pieces = pieces(plan.rank, step, &shape, &scratch, slice_bytes)?;
            if step.targets.contains(&End::Output) {
                output_bytes += pieces.iter().map(|piece| piece.bytes).sum::<usize>();
            }
            let longest = pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
            let input = step.sources.iter().position(|source| *source == End::Input);
            let scaled = input.filter(|_| shape.reduction.is_some_and(|one| one.scales()));
            let finishes = |reduction: Reduction| step.finish && reduction.changes_one();
            steps.push(BoundStep {
                slices: longest.div_ceil(slice_bytes).max(1),
                pieces,
                targets: output_last(&step.targets),
                sources: step.sources.clone().into(),
                finish: step.finish,
                balanced: step.balanced && step.sources.len() > 2 && shape.has_order(),
                scaled,
                stage: if shape.pipelined { step.stage } else { 0 },
                copies: step.sources.len() == 1
                    && scaled.is_none()
                    && !shape.reduction.is_some_and(finishes),
            });
        }
        let ticks = steps.iter().map(|step| step.slices + step.stage).max().unwrap_or(0);
        Ok(CompiledPlan {
            is_whole: ticks == 1 && steps.iter().all(|step| step.pieces.len() == 1),
            ticks,
            slices: steps.iter().map(|step| step.slices).max().unwrap_or(1),
            steps: steps.into(),
            slice_bytes,
            scratch_bytes: scratch.bytes * lives,
            lives,
            scratch_share: scratch.bytes,
            element: shape.element,
            element_shift: shape.element.trailing_zeros(),
            // Every rank of the machine has an output like this one, and as large an input.
            streaming: output_bytes * plan.nranks > streaming_threshold(),
            reduction: shape.reduction,
        })
    }
}

/// The same targets in an order for writing past the cache: slots begin at a line, an output
/// perhaps not, and only what begins like the first target is written so.
fn output_last(targets: &[End]) -> Box<[End]> {
    let mut targets: Box<[End]> = targets.into();
    targets.sort_by_key(|target| *target == End::Output);
    targets
}

fn span_bytes(span: Span, layout: &Layout, element: usize) -> usize {
    span.chunks().map(|chunk| layout.count(chunk) * element).sum()
}

/// Where each chunk's current slice lies in scratch memory.
struct ScratchMap {
    offsets: Vec<usize>,
    bytes: usize,
}

impl ScratchMap {
    fn new(plan: &Plan, shape: &CompileShape, slice_bytes: usize, one_slice: bool) -> ScratchMap {
        let used = |step: &&crate::plan::Step| {
            step.targets.contains(&End::Scratch) || step.sources.contains(&End::Scratch)
        };
        let mut needed = vec![false; plan.nchunks];
        for step in plan.steps.iter().filter(used) {
            step.span.chunks().for_each(|chunk| needed[chunk] = true);
        }
        let mut bytes = 0;
        let offsets = needed
            .into_iter()
            .enumerate()
            .map(|(chunk, needed)| {
                let offset = bytes;
                if needed {
                    let whole = shape.layout.count(chunk) * shape.element;
                    bytes += if one_slice { whole } else { slice_bytes.min(whole) };
                }
                offset
            })
            .collect();
        ScratchMap { offsets, bytes }
    }
}

/// The chunks of a step, neighbours merged where they touch in every buffer that the step uses.
fn pieces(
    rank: usize,
    step: &crate::plan::Step,
    shape: &CompileShape,
    scratch: &ScratchMap,
    slice_bytes: usize,
) -> Result<Box<[Piece]>> {
    let uses = |end: End| step.targets.contains(&end) || step.sources.contains(&end);
    let (input, output, scratched) = (uses(End::Input), uses(End::Output), uses(End::Scratch));
    let mut merged: Vec<Piece> = Vec::new();
    for chunk in step.span.chunks() {
        let offset = |used: bool, at: Option<usize>| match (used, at) {
            (false, _) => Ok(0),
            (true, Some(elements)) => Ok(elements * shape.element),
            (true, None) => {
                Err(Error::Internal(format!("rank {rank} does not hold chunk {chunk}")))
            }
        };
        let piece = Piece {
            input: offset(input, shape.layout.input(rank, chunk))?,
            output: offset(output, shape.layout.output(rank, chunk))?,
            scratch: if scratched { scratch.offsets[chunk] } else { 0 },
            bytes: shape.layout.count(chunk) * shape.element,
        };
        let touches = |last: &Piece| {
            last.bytes + piece.bytes <= slice_bytes
                && (!input || last.input + last.bytes == piece.input)
                && (!output || last.output + last.bytes == piece.output)
                && (!scratched || last.scratch + last.bytes == piece.scratch)
        };
        match merged.last_mut() {
            Some(last) if touches(last) => last.bytes += piece.bytes,
            _ => merged.push(piece),
        }
    }
    Ok(merged.into())
}
