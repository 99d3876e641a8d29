//! Every plan through the interpreter of the device, against the same plan done step by step with
//! the CPU path's arithmetic.

use crate::abi;
use crate::data::{Guarded, Random, Rule, difference};
use crate::library::{Args, Kernels, kernels, kind};
use crate::reference::{Memory, reference};
use crate::wires::{Control, Wires};
use ringcomm::algorithm::{Algorithm, plan, serial_order};
use ringcomm::device::host::{Reduction, prescale_factor};
use ringcomm::executor::chunk_layout::Layout;
use ringcomm::executor::compile_plan::{CompileShape, CompiledPlan, Cut};
use ringcomm::executor::device_p2p::Programs;
use ringcomm::plan::Collective;
use ringcomm::plan::partition::Partition;
use ringcomm::types::{DataType, ReduceOp};

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub collective: Collective,
    pub algorithm: Algorithm,
    pub nranks: usize,
    pub root: usize,
    pub count: usize,
    pub rule: Rule,
    pub depth: usize,
    pub slot_bytes: usize,
    pub channels: usize,
    /// Bytes off alignment of every buffer.
    pub shift: usize,
    /// Threads that really run in a block.
    pub threads: u32,
}

/// The programs of a rank's channels as the device reads them.
fn tables(channels: &[CompiledPlan]) -> Vec<u64> {
    let programs = Programs::of(channels.to_vec());
    let mut table = vec![0u64; programs.bytes() / size_of::<u64>()];
    let base = table.as_mut_ptr() as u64;
    // SAFETY: the table's own bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(base as *mut u8, programs.bytes()) };
    programs.write(base, bytes);
    table
}

impl Case {
    /// The bound plan of a rank's channel, which has its part of every whole vector.
    fn bind(&self, rank: usize, channel: usize) -> Option<CompiledPlan> {
        let Case { collective, algorithm, nranks, root, rule, .. } = *self;
        let of = |rank| plan(algorithm, collective, rank, nranks, root);
        let own = of(rank)?;
        let extent = Partition::new(self.count, self.channels).extent(channel);
        let layout = Layout::new(collective, rank, nranks, own.nchunks, extent.count, None);
        let element = rule.data_type.size();
        let reduction = Reduction::new(rule.data_type, rule.op, nranks).unwrap();
        let reduction =
            if self.has_partial_sums() { reduction.with_partial_sums() } else { reduction };
        let mut bound = CompiledPlan::new(
            &own,
            CompileShape {
                layout: &layout,
                element,
                reduction: collective.reduces().then_some(reduction),
                slot_bytes: self.slot_bytes,
                pipelined: self.depth >= ringcomm::plan::PIPELINE_DEPTH,
                cut: Cut::new((0..nranks).filter_map(of), &layout, element),
            },
        )
        .unwrap();
        for piece in bound.steps.iter_mut().flat_map(|step| &mut step.pieces) {
            piece.input += extent.offset * element;
            piece.output += extent.offset * element;
        }
        Some(bound)
    }

    /// Whether sums of some inputs are rounded to the type on their way.
    fn has_partial_sums(&self) -> bool {
        !serial_order(self.algorithm, self.collective)
    }

    /// Every rank's plans, by channel.
    fn bounds(&self) -> Option<Vec<Vec<CompiledPlan>>> {
        let channels = |rank| (0..self.channels).map(|channel| self.bind(rank, channel)).collect();
        (0..self.nranks).map(channels).collect()
    }

    fn memories(&self, bounds: &[Vec<CompiledPlan>], random: &mut Random) -> Vec<Memory> {
        let (count, rule) = (self.nranks * self.count, self.rule);
        let prescale = prescale_factor(rule.data_type, rule.op, self.nranks as f64);
        let memory = |rank: usize| Memory {
            input: random.elements(self.rule.data_type, count),
            output: vec![0x5a; count * self.rule.data_type.size()],
            scratch: bounds[rank].iter().map(|bound| vec![0; bound.scratch_bytes]).collect(),
            scalar: match rule.op {
                ReduceOp::Avg => prescale.filter(|_| self.has_partial_sums()).unwrap_or(1.0),
                _ => [0.5, -3.0, 2.0, 7.0][rank % 4],
            },
        };
        (0..self.nranks).map(memory).collect()
    }

    /// What the device makes of it.
    fn run(
        &self,
        kernels: &Kernels,
        bounds: &[Vec<CompiledPlan>],
        memories: &[Memory],
    ) -> Vec<Vec<u8>> {
        let mut wires = Wires::new(self.nranks, self.channels, self.depth, self.slot_bytes);
        let controls: Vec<_> = (0..self.nranks).map(|_| Control::new()).collect();
        let mut buffers: Vec<_> = memories
            .iter()
            .map(|memory| {
                let scratch: usize = memory.scratch.iter().map(Vec::len).sum();
                [&memory.input, &memory.output, &vec![0; scratch]]
                    .map(|content| Guarded::with(content, self.shift))
            })
            .collect();
        let programs: Vec<Vec<u64>> = bounds.iter().map(|rank| tables(rank)).collect();
        let calls: Vec<_> = (0..self.nranks)
            .map(|rank| {
                let [input, output, scratch] = &mut buffers[rank];
                abi::PlanCall {
                    input: input.address(),
                    output: output.address(),
                    scratch: scratch.address(),
                    scalar: memories[rank].scalar,
                    programs: programs[rank].as_ptr() as u64,
                    watch: controls[rank].watch(rank, 0),
                    ..wires.call(rank)
                }
            })
            .collect();
        // Twice where that changes nothing: positions go on.
        self.launch(kernels, &calls);
        self.launch(kernels, &calls);
        assert!(controls.iter().all(|control| control.report().reason == 0), "{self:?}");
        buffers.iter().map(|[_, output, _]| output.content().to_vec()).collect()
    }

    fn launch(&self, kernels: &Kernels, calls: &[abi::PlanCall]) {
        let mut args = abi::PlanArgs::zeroed();
        args.data_type = self.rule.data_type as i32;
        args.op = self.rule.op as i32;
        args.parts = self.nranks as u64;
        let symbol = format!("ringcomm_plan_{}", kind(self.rule.data_type));
        kernels.threads(self.threads);
        let channels = self.channels as u32;
        if self.count.is_multiple_of(2) {
            // As on one device, in one cooperative launch.
            args.calls = calls.as_ptr() as u64;
            kernels.launch_with(&symbol, [channels, calls.len() as u32, self.threads], &*args);
            return;
        }
        // As on a device each.
        std::thread::scope(|scope| {
            for call in calls {
                let (mut args, symbol) = (args.clone(), &symbol);
                args.call = *call;
                scope.spawn(move || {
                    kernels.launch_with(symbol, [channels, 1, self.threads], &*args);
                });
            }
        });
    }
}

fn check(kernels: &Kernels, case: &Case, random: &mut Random) -> bool {
    let Some(bounds) = case.bounds() else { return false };
    let mut memories = case.memories(&bounds, random);
    let got = case.run(kernels, &bounds, &memories);
    reference(
        &bounds,
        &mut memories,
        &Rule { parts: case.nranks, partial_sums: case.has_partial_sums(), ..case.rule },
    );
    for (rank, memory) in memories.iter().enumerate() {
        let difference = difference(&got[rank], &memory.output, case.rule.data_type.size());
        assert_eq!(difference, None, "rank {rank} of {case:?}");
    }
    true
}

/// Every collective and algorithm; types, operations, sizes and geometries change as cases go by.
fn sweep(nranks: usize) {
    let Some(kernels) = kernels() else { return };
    let ops = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PreMulSum, ReduceOp::Max, ReduceOp::Prod];
    let (mut random, mut turn, mut ran) = (Random(nranks as u64), nranks, 0);
    for collective in Collective::ALL {
        for algorithm in Algorithm::ALL {
            for count in [0, 1, 66, 501] {
                turn += 1;
                let data_type = DataType::ALL[turn % DataType::ALL.len()];
                let op = ops[turn / 3 % ops.len()];
                let op = if op.supports(data_type) { op } else { ReduceOp::Min };
                let whole = matches!(
                    collective,
                    Collective::AllReduce | Collective::Broadcast | Collective::Reduce
                );
                let case = Case {
                    collective,
                    algorithm,
                    nranks,
                    root: if collective.has_root() { turn % nranks } else { 0 },
                    count,
                    rule: Rule::new(data_type, op),
                    depth: [2, 4, 3][turn % 3],
                    slot_bytes: [256, 640, 4096][turn / 2 % 3],
                    channels: if whole { [1, 3][turn % 2] } else { 1 },
                    shift: [0, 0, 8, 5][turn % 4],
                    threads: [1, 3][turn / 5 % 2],
                };
                ran += usize::from(check(kernels, &case, &mut random));
            }
        }
    }
    assert!(ran > 80, "only {ran} plans");
}

#[test]
fn every_plan_of_two_ranks() {
    sweep(2);
}

#[test]
fn every_plan_of_three_ranks() {
    sweep(3);
}

#[test]
fn every_plan_of_five_ranks() {
    sweep(5);
}

#[test]
fn every_type_and_operation_around_the_ring() {
    let Some(kernels) = kernels() else { return };
    let mut random = Random(99);
    for data_type in DataType::ALL {
        let ops = ReduceOp::ALL.into_iter().chain([ReduceOp::PreMulSum]);
        for op in ops.filter(|op| op.supports(data_type)) {
            let case = Case {
                collective: Collective::AllReduce,
                algorithm: Algorithm::Ring,
                nranks: 3,
                root: 0,
                count: 777,
                rule: Rule::new(data_type, op),
                depth: 4,
                slot_bytes: 512,
                channels: 2,
                shift: 0,
                threads: 1,
            };
            assert!(check(kernels, &case, &mut random));
        }
    }
}
