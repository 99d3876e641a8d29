//! The host interpreter: runs a bound plan on this rank's cores, one slice after another, later
//! stages behind earlier ones.
//!
//! Per step: the messages of the peers it reads are waited for, the slots of the peers it writes
//! are reserved, one pass of the arithmetic reads every source and writes every target, then the
//! slots are posted and the messages freed. Nothing here allocates.
#![allow(unsafe_code)]

use super::balanced_reduction::reduce_balanced;
use super::compile_plan::{BoundStep, CompiledPlan, Piece};
use super::links::Links;
use super::progress_watch::ProgressWatch;
use crate::device::host::{Job, copy};
use crate::error::Result;
use crate::plan::End;
use crate::transport::fifo::Stamp;
use crate::transport::wait::WaitCheck;

/// The memory one call works on.
#[derive(Clone, Copy, Debug)]
pub struct CallBuffers {
    pub input: *const u8,
    pub output: *mut u8,
    pub scratch: *mut u8,
    /// The factor of a pre-multiplied sum.
    pub scalar: f64,
}

/// Room for the pointers of one step, kept between calls.
#[derive(Default)]
pub struct Pointers {
    targets: Vec<*mut u8>,
    /// How many of the targets, the first ones, are written past the cache.
    streamed: usize,
    sources: Vec<*const u8>,
    /// The same, moved on to one piece of a step with several.
    piece_targets: Vec<*mut u8>,
    piece_sources: Vec<*const u8>,
}

// SAFETY: the pointers are only used during the call that stored them.
unsafe impl Send for Pointers {}

impl Pointers {
    /// Room for steps with up to `nranks` peers at either end and the local buffers.
    pub fn new(nranks: usize) -> Pointers {
        let room = nranks + 3;
        Pointers {
            targets: Vec::with_capacity(room),
            streamed: 0,
            sources: Vec::with_capacity(room),
            piece_targets: Vec::with_capacity(room),
            piece_sources: Vec::with_capacity(room),
        }
    }

    #[inline]
    fn clear(&mut self) {
        self.sources.clear();
        self.targets.clear();
        self.streamed = 0;
    }

    #[inline]
    fn push_target(&mut self, target: *mut u8, streams: bool) {
        self.targets.push(target);
        if streams {
            let last = self.targets.len() - 1;
            self.targets.swap(self.streamed, last);
            self.streamed += 1;
        }
    }
}

/// Run `bound` once.
///
/// # Safety
/// `buffers` cover what the call that `bound` was made for says, and nothing else uses them.
pub unsafe fn run(
    bound: &CompiledPlan,
    buffers: &CallBuffers,
    links: &mut Links,
    pointers: &mut Pointers,
    stamp: &Stamp,
    watch: &dyn WaitCheck,
) -> Result<()> {
    let steps = || bound.steps.iter().map(|step| step.slices).sum();
    let progress = ProgressWatch::new(watch, &steps);
    let run = HostRun { bound, buffers, stamp, watch: &progress };
    if bound.is_whole && links.one_machine() {
        // Most small calls.
        for step in &bound.steps {
            // SAFETY: the caller's promise, and what `is_whole` says.
            unsafe { run_step::<true>(&run, step, 0, links, pointers)? };
            progress.step();
        }
        return Ok(());
    }
    for tick in 0..bound.ticks {
        for step in &bound.steps {
            // Before the step's first slice this wraps, which no step has as many slices as.
            let slice = tick.wrapping_sub(step.stage);
            if slice < step.slices {
                // SAFETY: the caller's promise, piece by piece.
                unsafe {
                    if links.one_machine() || !copy_step(&run, step, slice, links)? {
                        run_step::<false>(&run, step, slice, links, pointers)?;
                    }
                }
                progress.step();
            }
        }
    }
    if links.one_machine() { Ok(()) } else { links.flush(&progress) }
}

/// A step that copies one piece to or from other machines, without slots where there are none in
/// between; whether it was one.
#[cold]
unsafe fn copy_step(
    run: &HostRun,
    step: &BoundStep,
    slice: usize,
    links: &mut Links,
) -> Result<bool> {
    let ([piece], [source], true) = (&*step.pieces, &*step.sources, step.copies) else {
        return Ok(false);
    };
    let sliced = slice * run.bound.slice_bytes;
    let bytes = piece.slice(slice, run.bound.slice_bytes);
    let output = run.buffers.output.wrapping_add(piece.output + sliced);
    let keeps = step.targets.contains(&End::Output);
    // SAFETY: the piece lies inside the caller's buffers; what is lent from them is settled before
    // anything overwrites it, and flushed before the call ends.
    let source = unsafe {
        match *source {
            End::Peer(peer) if links.is_remote(peer) && keeps => {
                links.settle(output, bytes);
                links.receive_into(peer, run.stamp, output, bytes, run.watch)?;
                output.cast_const()
            }
            End::Input => run.buffers.input.wrapping_add(piece.input + sliced),
            End::Output => output.cast_const(),
            End::Peer(_) | End::Scratch => return Ok(false),
        }
    };
    for target in &step.targets {
        // SAFETY: as above.
        unsafe {
            match *target {
                End::Peer(peer) if links.is_remote(peer) => {
                    links.send_zero_copy(peer, run.stamp, source, bytes, run.watch)?;
                }
                End::Peer(peer) => {
                    let slot = links.reserve(peer, bytes, run.watch)?;
                    move_bytes(slot, source, bytes, links.streams(peer, bytes));
                    links.post(peer, run.stamp, bytes);
                }
                End::Output if std::ptr::eq(output, source) => {}
                End::Output => {
                    links.settle(output, bytes);
                    move_bytes(output, source, bytes, run.bound.streaming);
                }
                End::Scratch => {
                    let scratch = run.scratch(slice).wrapping_add(piece.scratch);
                    move_bytes(scratch, source, bytes, false);
                }
                End::Input => unreachable!("the prover refuses plans that write their input"),
            }
        }
    }
    Ok(true)
}

/// What every step of a call shares.
struct HostRun<'a> {
    bound: &'a CompiledPlan,
    buffers: &'a CallBuffers,
    stamp: &'a Stamp,
    watch: &'a dyn WaitCheck,
}

impl HostRun<'_> {
    /// The scratch that a slice has to itself: those under way at once differ by less than `lives`.
    fn scratch(&self, slice: usize) -> *mut u8 {
        self.buffers.scratch.wrapping_add(slice % self.bound.lives * self.bound.scratch_share)
    }
}

/// The local ends of a step with several pieces start at the buffers themselves.
const BASE: Piece = Piece { input: 0, output: 0, scratch: 0, bytes: 0 };

/// One slice of a step; of a plan that is `WHOLE`, the step itself, between ranks of one machine.
#[inline]
unsafe fn run_step<const WHOLE: bool>(
    run: &HostRun,
    step: &BoundStep,
    slice: usize,
    links: &mut Links,
    pointers: &mut Pointers,
) -> Result<()> {
    let slice_bytes = run.bound.slice_bytes;
    let (only, sliced, bytes) = match &*step.pieces {
        [piece] if WHOLE => (piece, 0, piece.bytes),
        [piece] => (piece, slice * slice_bytes, piece.slice(slice, slice_bytes)),
        pieces => (&BASE, 0, pieces.iter().map(|piece| piece.slice(slice, slice_bytes)).sum()),
    };
    pointers.clear();
    for source in &step.sources {
        let pointer = match *source {
            End::Input => run.buffers.input.wrapping_add(only.input + sliced),
            End::Output => run.buffers.output.wrapping_add(only.output + sliced),
            End::Scratch => run.scratch(slice).wrapping_add(only.scratch),
            End::Peer(peer) => links.receive(peer, run.stamp, bytes, run.watch)?,
        };
        pointers.sources.push(pointer);
    }
    let lends = !WHOLE && !links.one_machine() && lends_output(run, step, links);
    // Of several pieces each finds its targets by their order.
    let may_reorder = WHOLE || step.pieces.len() == 1 || step.targets.len() == 1;
    for target in &step.targets {
        let (pointer, streams) = match *target {
            End::Input => unreachable!("the prover refuses plans that write their input"),
            End::Output => {
                if !WHOLE && !links.one_machine() {
                    settle(run, step, slice, links);
                }
                let output = run.buffers.output.wrapping_add(only.output + sliced);
                (output, run.bound.streaming)
            }
            End::Scratch => (run.scratch(slice).wrapping_add(only.scratch), false),
            End::Peer(peer) if lends && links.is_remote(peer) => continue,
            End::Peer(peer) => (links.reserve(peer, bytes, run.watch)?, links.streams(peer, bytes)),
        };
        pointers.push_target(pointer, streams && may_reorder);
    }
    // SAFETY: pointers follow the pieces, which lie inside the caller's buffers and the slots.
    unsafe {
        if WHOLE || step.pieces.len() == 1 {
            let Pointers { targets, streamed, sources, .. } = pointers;
            move_piece(run, step, bytes, (targets, *streamed), sources);
        } else {
            move_pieces(run, step, slice, pointers);
        }
    }
    for target in &step.targets {
        match *target {
            End::Peer(peer) if lends && links.is_remote(peer) => {
                let output = run.buffers.output.wrapping_add(only.output + sliced);
                // SAFETY: just written, settled before it is overwritten, flushed at the end.
                unsafe { links.send_zero_copy(peer, run.stamp, output, bytes, run.watch)? };
            }
            End::Peer(peer) => links.post(peer, run.stamp, bytes),
            _ => {}
        }
    }
    for source in &step.sources {
        if let End::Peer(peer) = *source {
            links.free(peer);
        }
    }
    Ok(())
}

/// Whether what a step writes to its output leaves for other machines from there, while it is in
/// the cache, and not through a slot as well.
fn lends_output(run: &HostRun, step: &BoundStep, links: &Links) -> bool {
    let is_kept = step.pieces.len() == 1 && step.targets.contains(&End::Output);
    is_kept && !run.bound.streaming && links.is_zero_copy()
}

/// Take back what is lent of the output that a step is about to write.
#[cold]
fn settle(run: &HostRun, step: &BoundStep, slice: usize, links: &mut Links) {
    let slice_bytes = run.bound.slice_bytes;
    for piece in &step.pieces {
        let output = run.buffers.output.wrapping_add(piece.output + slice * slice_bytes);
        links.settle(output, piece.slice(slice, slice_bytes));
    }
}

/// Move every piece of a step; `pointers` hold the base of each end.
#[cold]
unsafe fn move_pieces(run: &HostRun, step: &BoundStep, slice: usize, pointers: &mut Pointers) {
    let slice_bytes = run.bound.slice_bytes;
    let mut packed = 0;
    for piece in &step.pieces {
        let bytes = piece.slice(slice, slice_bytes);
        let at = |end: End| offset(end, piece, slice * slice_bytes, packed);
        pointers.piece_sources.clear();
        for (source, base) in step.sources.iter().zip(&pointers.sources) {
            pointers.piece_sources.push(base.wrapping_add(at(*source)));
        }
        pointers.piece_targets.clear();
        for (target, base) in step.targets.iter().zip(&pointers.targets) {
            pointers.piece_targets.push(base.wrapping_add(at(*target)));
        }
        let Pointers { piece_targets, streamed, piece_sources, .. } = pointers;
        // SAFETY: as `run` promises.
        unsafe { move_piece(run, step, bytes, (piece_targets, *streamed), piece_sources) };
        packed += bytes;
    }
}

/// `targets <- reduce(sources)` for `bytes` bytes, so many of the targets past the cache.
#[inline(always)]
unsafe fn move_piece(
    run: &HostRun,
    step: &BoundStep,
    bytes: usize,
    (targets, streaming): (&[*mut u8], usize),
    sources: &[*const u8],
) {
    if bytes == 0 {
        return;
    }
    match &run.bound.reduction {
        Some(reduction) if !step.copies => {
            let job = Job {
                finish: step.finish,
                scaled: step.scaled,
                scalar: reduction.factor(run.buffers.scalar),
                streaming,
                ..Job::new(targets, sources, bytes >> run.bound.element_shift)
            };
            // SAFETY: as `run` promises.
            unsafe {
                match step.balanced {
                    true => reduce_balanced(reduction, &job, run.bound.element),
                    false => reduction.run(&job),
                }
            };
        }
        _ => {
            for (index, target) in targets.iter().enumerate() {
                // SAFETY: as `run` promises.
                unsafe { move_bytes(*target, sources[0], bytes, index < streaming) };
            }
        }
    }
}

/// Bytes from the base of an end to a piece's slice.
#[inline]
fn offset(end: End, piece: &Piece, sliced: usize, packed: usize) -> usize {
    match end {
        End::Input => piece.input + sliced,
        End::Output => piece.output + sliced,
        End::Scratch => piece.scratch,
        End::Peer(_) => packed,
    }
}

/// Copy unless the block already lies where it should (in place).
///
/// # Safety
/// Both are valid for `bytes` bytes and, where they are not equal, do not overlap.
#[inline]
pub unsafe fn move_bytes(target: *mut u8, source: *const u8, bytes: usize, streaming: bool) {
    if !std::ptr::eq(target, source) {
        // SAFETY: the caller's.
        unsafe { copy(target, source, bytes, streaming) };
    }
}
