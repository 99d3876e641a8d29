//! The host interpreter: runs a bound plan on this rank's cores, one slice after another.
//!
//! Per step: the messages of the peers it reads are waited for, the slots of the peers it writes are
//! reserved, one pass of the arithmetic reads every source and writes every target, then the slots
//! are posted and the messages freed. Nothing here allocates.
#![allow(unsafe_code)]

use super::bind::{Bound, BoundStep, Piece};
use super::links::Links;
use crate::device::host::{Job, copy};
use crate::error::Result;
use crate::plan::End;
use crate::transport::fifo::Stamp;
use crate::transport::wait::Watch;

/// The memory one call works on.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
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
            sources: Vec::with_capacity(room),
            piece_targets: Vec::with_capacity(room),
            piece_sources: Vec::with_capacity(room),
        }
    }
}

/// Run `bound` once.
///
/// # Safety
/// `buffers` cover what the call that `bound` was made for says, and nothing else uses them.
pub unsafe fn run(
    bound: &Bound,
    buffers: &Buffers,
    links: &mut Links,
    pointers: &mut Pointers,
    stamp: &Stamp,
    watch: &dyn Watch,
) -> Result<()> {
    for slice in 0..bound.slices {
        for step in &bound.steps {
            if slice < step.slices {
                // SAFETY: the caller's promise, piece by piece.
                unsafe { run_step(bound, step, slice, buffers, links, pointers, stamp, watch)? };
            }
        }
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)]
#[inline]
unsafe fn run_step(
    bound: &Bound,
    step: &BoundStep,
    slice: usize,
    buffers: &Buffers,
    links: &mut Links,
    pointers: &mut Pointers,
    stamp: &Stamp,
    watch: &dyn Watch,
) -> Result<()> {
    let bytes: usize = step.pieces.iter().map(|piece| piece.slice(slice, bound.slice_bytes)).sum();
    pointers.sources.clear();
    for source in &step.sources {
        pointers.sources.push(match *source {
            End::Input => buffers.input,
            End::Output => buffers.output,
            End::Scratch => buffers.scratch,
            End::Peer(peer) => links.receive(peer, stamp, bytes, watch)?,
        });
    }
    pointers.targets.clear();
    for target in &step.targets {
        pointers.targets.push(match *target {
            End::Input => unreachable!("the prover refuses plans that write their input"),
            End::Output => buffers.output,
            End::Scratch => buffers.scratch,
            End::Peer(peer) => links.reserve(peer, bytes, watch)?,
        });
    }
    // SAFETY: pointers follow the pieces, which lie inside the caller's buffers and the slots.
    unsafe { move_pieces(bound, step, slice, pointers, buffers.scalar) };
    for target in &step.targets {
        if let End::Peer(peer) = *target {
            links.post(peer, stamp, bytes);
        }
    }
    for source in &step.sources {
        if let End::Peer(peer) = *source {
            links.free(peer);
        }
    }
    Ok(())
}

/// Move every piece of a step; `pointers` hold the base of each end.
#[inline]
unsafe fn move_pieces(
    bound: &Bound,
    step: &BoundStep,
    slice: usize,
    pointers: &mut Pointers,
    scalar: f64,
) {
    let mut packed = 0;
    for piece in &step.pieces {
        let bytes = piece.slice(slice, bound.slice_bytes);
        if bytes == 0 {
            continue;
        }
        let at = |end: End| offset(end, piece, slice * bound.slice_bytes, packed);
        pointers.piece_sources.clear();
        for (source, base) in step.sources.iter().zip(&pointers.sources) {
            pointers.piece_sources.push(base.wrapping_add(at(*source)));
        }
        pointers.piece_targets.clear();
        for (target, base) in step.targets.iter().zip(&pointers.targets) {
            pointers.piece_targets.push(base.wrapping_add(at(*target)));
        }
        let streaming = bound.streaming && step.targets[0] == End::Output;
        if step.copies {
            for (index, target) in pointers.piece_targets.iter().enumerate() {
                // SAFETY: as `run` promises.
                unsafe {
                    move_bytes(*target, pointers.piece_sources[0], bytes, streaming && index == 0)
                };
            }
        } else if let Some(reduction) = &bound.reduction {
            let job = Job {
                targets: &pointers.piece_targets,
                sources: &pointers.piece_sources,
                count: bytes / bound.element,
                finish: step.finish,
                scaled: step.scaled,
                scalar,
                streaming,
            };
            // SAFETY: as `run` promises.
            unsafe { reduction.run(&job) };
        }
        packed += bytes;
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
#[inline]
pub unsafe fn move_bytes(target: *mut u8, source: *const u8, bytes: usize, streaming: bool) {
    if !std::ptr::eq(target, source) {
        // SAFETY: the caller's.
        unsafe { copy(target, source, bytes, streaming) };
    }
}
