//! Plans as the interpreter on a device reads them: a program for each channel.
//!
//! A channel has its part of the vector, or of every block, and connections of its own; so the
//! channels of a rank never wait for each other.

use super::KernelWork;
use super::sizing::{DEPTH, P2pSizing};
use crate::algorithm::{self, Algorithm, serial_order};
use crate::device::cuda::{Address, abi};
use crate::device::host::Reduction;
use crate::error::Result;
use crate::executor::chunk_layout::Layout;
use crate::executor::compile_plan::{BoundStep, CompileShape, CompiledPlan, Cut};
use crate::executor::device_work::grain;
use crate::plan::partition::Partition;
use crate::plan::{Collective, End, PIPELINE_DEPTH};

/// A chunk of a channel has so many bytes before another channel is of use: 512 threads with two
/// bytes each. Fewer leave most of a block without work, and every channel has its flags.
const USEFUL_CHUNK: usize = 1 << 10;

/// The bound plans of one rank, by channel.
pub struct Programs {
    bounds: Vec<CompiledPlan>,
}

impl Programs {
    /// Bind `rank`'s plans; `None` where the algorithm does not do the collective, or the
    /// interpreter has no room for its steps.
    pub fn bind(
        work: &KernelWork,
        algorithm: Algorithm,
        rank: usize,
        geometry: &P2pSizing,
    ) -> Result<Option<Programs>> {
        let nranks = geometry.nranks;
        let plan_of = |rank| algorithm::plan(algorithm, work.collective, rank, nranks, work.root);
        let Some(plans) = (0..nranks).map(plan_of).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let reduces = work.collective.reduces();
        let reduction = match reduces {
            true => Some(Reduction::new(work.data_type, work.op, nranks)?),
            false => None,
        };
        let partial_sums = !serial_order(algorithm, work.collective);
        let reduction =
            reduction.map(|one| if partial_sums { one.with_partial_sums() } else { one });
        let element = work.data_type.size();
        let channels = channels(work, geometry);
        // Slots begin at a line: what is cut elsewhere has no alignment with them in common, and
        // goes element by element.
        let grain = grain(element);
        let bound = |channel| {
            let part = Partition::in_grains(work.count, channels, grain).extent(channel);
            let nchunks = plans[rank].nchunks;
            let layout = Layout::new(work.collective, rank, nranks, nchunks, part.count, None);
            let layout = layout.in_grains(grain).within(part.offset, work.count);
            let shape = CompileShape {
                layout: &layout,
                element,
                reduction,
                slot_bytes: geometry.slot_bytes,
                pipelined: DEPTH >= PIPELINE_DEPTH,
                cut: Cut::new(plans.iter().cloned(), &layout, element),
            };
            CompiledPlan::new(&plans[rank], shape)
        };
        let bounds = (0..channels).map(bound).collect::<Result<Vec<CompiledPlan>>>()?;
        let programs = Programs::of(bounds);
        Ok(programs.fits(geometry).then_some(programs))
    }

    /// Programs of plans that were bound elsewhere.
    pub fn of(bounds: Vec<CompiledPlan>) -> Programs {
        Programs { bounds }
    }

    fn fits(&self, geometry: &P2pSizing) -> bool {
        let ends = |step: &BoundStep| step.sources.len() + step.targets.len();
        let mut steps = self.bounds.iter().flat_map(|bound| &bound.steps);
        geometry.nranks <= abi::PLAN_PEERS
            && steps.all(|step| ends(step) <= abi::STEP_ENDS)
            && self.bounds.iter().map(|bound| bound.scratch_bytes).sum::<usize>()
                <= geometry.scratch_bytes
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        let of = |bound: &CompiledPlan| {
            let step = |step: &BoundStep| {
                let ends = step.sources.len() + step.targets.len();
                size_of::<abi::Step>()
                    + ends * size_of::<abi::End>()
                    + step.pieces.len() * size_of::<abi::Span>()
            };
            size_of::<abi::Program>() + bound.steps.iter().map(step).sum::<usize>()
        };
        self.bounds.iter().map(of).sum()
    }

    /// Write the tables, which will lie at `base`: the programs first.
    pub fn write(&self, base: Address, place: &mut [u8]) {
        let mut heads = Vec::new();
        let mut rest = Vec::new();
        let begin = base + (self.bounds.len() * size_of::<abi::Program>()) as Address;
        let mut scratch = 0;
        for bound in &self.bounds {
            let at = |rest: &Vec<u8>| begin + rest.len() as Address;
            let tables = ProgramTables::new(bound);
            let steps = at(&rest);
            tables.steps.iter().for_each(|step| append(&mut rest, step));
            let ends = at(&rest);
            tables.ends.iter().for_each(|end| append(&mut rest, end));
            let spans = at(&rest);
            tables.spans.iter().for_each(|span| append(&mut rest, span));
            let program = abi::Program {
                steps,
                ends,
                spans,
                nsteps: tables.steps.len() as u32,
                ticks: bound.ticks as u32,
                slice_bytes: bound.slice_bytes as u64,
                scratch,
                scratch_share: bound.scratch_share as u64,
                lives: bound.lives as u32,
                unused: 0,
            };
            append(&mut heads, &program);
            scratch += bound.scratch_bytes as u64;
        }
        heads.append(&mut rest);
        place.copy_from_slice(&heads);
    }
}

/// Channels of a call: as many as have chunks worth their flags.
pub(super) fn channels(work: &KernelWork, geometry: &P2pSizing) -> usize {
    let chunks = work.bytes() / geometry.nranks.max(1);
    match work.collective {
        Collective::Barrier => 1,
        _ => (chunks / USEFUL_CHUNK).clamp(1, geometry.channels),
    }
}

/// Add the bytes of a structure of the kernels'.
pub(super) fn append<T: Copy>(bytes: &mut Vec<u8>, one: &T) {
    bytes.extend_from_slice(super::kernel_args::bytes_of(std::slice::from_ref(one)));
}

/// A bound plan in the structures of the kernels.
struct ProgramTables {
    steps: Vec<abi::Step>,
    ends: Vec<abi::End>,
    spans: Vec<abi::Span>,
}

impl ProgramTables {
    fn new(bound: &CompiledPlan) -> ProgramTables {
        let mut tables = ProgramTables { steps: Vec::new(), ends: Vec::new(), spans: Vec::new() };
        for step in &bound.steps {
            let finish = if step.finish { abi::FINISH } else { 0 };
            tables.steps.push(abi::Step {
                first_span: tables.spans.len() as u32,
                nspans: step.pieces.len() as u32,
                first_end: tables.ends.len() as u32,
                nsources: step.sources.len() as u16,
                ntargets: step.targets.len() as u16,
                slices: step.slices as u32,
                stage: step.stage as u32,
                scaled: step.scaled.map_or(abi::NONE, |index| index as u32),
                flags: finish | if step.copies { abi::COPY } else { 0 },
            });
            let ends = step.sources.iter().chain(&step.targets);
            tables.ends.extend(ends.map(|end| end_of(*end)));
            tables.spans.extend(step.pieces.iter().map(|piece| abi::Span {
                input: piece.input as u64,
                output: piece.output as u64,
                scratch: piece.scratch as u64,
                bytes: piece.bytes as u64,
            }));
        }
        tables
    }
}

fn end_of(end: End) -> abi::End {
    match end {
        End::Input => abi::End { place: abi::INPUT, peer: 0 },
        End::Output => abi::End { place: abi::OUTPUT, peer: 0 },
        End::Scratch => abi::End { place: abi::SCRATCH, peer: 0 },
        End::Peer(peer) => abi::End { place: abi::PEER, peer: peer as u32 },
    }
}
