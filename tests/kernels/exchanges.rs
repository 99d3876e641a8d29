//! The exchanges beside plans: one-shot, two-shot between barriers; and how waits end.

use crate::abi;
use crate::data::{Guarded, Random, Rule, difference, on_the_host};
use crate::library::{Args, Kernels, kernels, kind};
use crate::wires::{Control, Wires};
use ringcomm::types::{DataType, ReduceOp};

/// The inboxes of all ranks, and what their exchanges keep between launches.
struct Inboxes {
    lines: usize,
    inboxes: Vec<Vec<abi::Line>>,
    addresses: Vec<u64>,
    epochs: Vec<abi::Epoch>,
    controls: Vec<Control>,
}

impl Inboxes {
    fn new(nranks: usize, lines: usize, epoch: u32) -> Inboxes {
        let inboxes = vec![vec![abi::Line::default(); 2 * nranks * lines]; nranks];
        Inboxes {
            lines,
            addresses: inboxes.iter().map(|inbox| inbox.as_ptr() as u64).collect(),
            inboxes,
            epochs: vec![abi::Epoch { epoch, ..Default::default() }; nranks],
            controls: (0..nranks).map(|_| Control::new()).collect(),
        }
    }

    fn call(&self, rank: usize, timeout_ns: u64) -> abi::OneshotCall {
        abi::OneshotCall {
            inboxes: self.addresses.as_ptr() as u64,
            epoch: &raw const self.epochs[rank] as u64,
            lines: self.lines as u64,
            nranks: self.inboxes.len() as u32,
            watch: self.controls[rank].watch(rank, timeout_ns),
            ..Default::default()
        }
    }
}

struct Small {
    rule: Rule,
    gathers: bool,
    blocks: u32,
    threads: u32,
    shift: usize,
    in_place: bool,
}

impl Small {
    /// One exchange of all ranks, in one launch; their outputs.
    fn run(&self, kernels: &Kernels, inboxes: &Inboxes, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (nranks, length) = (inputs.len(), inputs[0].len());
        let blocks = if self.gathers { nranks } else { 1 };
        let mut outputs: Vec<_> =
            (0..nranks).map(|_| Guarded::new(length * blocks, self.shift)).collect();
        let mut sources: Vec<_> = inputs.iter().map(|input| Guarded::with(input, 0)).collect();
        if self.in_place {
            outputs = inputs.iter().map(|input| Guarded::with(input, self.shift)).collect();
        }
        let calls: Vec<_> = (0..nranks)
            .map(|rank| {
                let output = outputs[rank].address();
                abi::OneshotCall {
                    input: if self.in_place { output } else { sources[rank].address() },
                    output,
                    count: (length / self.rule.data_type.size()) as u64,
                    scalar: scalar(rank),
                    ..inboxes.call(rank, 0)
                }
            })
            .collect();
        let mut args = abi::OneshotArgs::zeroed();
        args.data_type = self.rule.data_type as i32;
        args.op = self.rule.op as i32;
        args.parts = nranks as u64;
        args.collective = if self.gathers { abi::ALL_GATHER } else { abi::ALL_REDUCE };
        args.calls = calls.as_ptr() as u64;
        kernels.threads(self.threads);
        let symbol = format!("ringcomm_oneshot_{}", kind(self.rule.data_type));
        kernels.launch_with(&symbol, [self.blocks, nranks as u32, self.threads], &*args);
        outputs.iter().map(|output| output.content().to_vec()).collect()
    }

    fn wanted(&self, inputs: &[Vec<u8>]) -> Vec<u8> {
        if self.gathers {
            return inputs.concat();
        }
        let rule = Rule { parts: inputs.len(), finish: true, ..self.rule };
        if rule.op != ReduceOp::PreMulSum {
            return on_the_host(&rule, inputs);
        }
        let product = |rank: usize| {
            let rule = Rule { scaled: Some((0, scalar(rank))), finish: false, ..rule };
            on_the_host(&rule, &inputs[rank..=rank])
        };
        let products: Vec<_> = (0..inputs.len()).map(product).collect();
        on_the_host(&Rule { op: ReduceOp::Sum, ..rule }, &products)
    }
}

fn scalar(rank: usize) -> f64 {
    [0.5, -3.0, 2.0, 7.0][rank % 4]
}

fn exchange_small(nranks: usize, epoch: u32) {
    let Some(kernels) = kernels() else { return };
    let mut random = Random(nranks as u64 + 7);
    let inboxes = Inboxes::new(nranks, 300, epoch);
    let mut turn = 0;
    for data_type in DataType::ALL {
        let ops = ReduceOp::ALL.into_iter().chain([ReduceOp::PreMulSum]);
        for op in ops.filter(|op| op.supports(data_type)) {
            turn += 1;
            let count = [1, 33, 8, 7, 250][turn % 5];
            let small = Small {
                rule: Rule::new(data_type, op),
                gathers: turn % 6 == 0,
                blocks: [1, 2][turn % 2],
                threads: [1, 3][turn / 2 % 2],
                shift: [0, 8, 3][turn % 3],
                in_place: turn % 5 == 1 && turn % 6 != 0,
            };
            let inputs: Vec<_> = (0..nranks).map(|_| random.elements(data_type, count)).collect();
            let wanted = small.wanted(&inputs);
            for (rank, got) in small.run(kernels, &inboxes, &inputs).iter().enumerate() {
                let difference = difference(got, &wanted, data_type.size());
                assert_eq!(difference, None, "{data_type} {op} {count} rank {rank} of {nranks}");
            }
        }
    }
    for epoch in &inboxes.epochs {
        // SAFETY: valid memory; the kernels that wrote it have ended.
        let now = unsafe { (&raw const epoch.epoch).read_volatile() };
        assert!(now == inboxes.epochs[0].epoch && epoch.arrived == 0);
    }
}

#[test]
fn one_shot_of_every_type_and_operation() {
    for nranks in [1, 2, 3, 9] {
        exchange_small(nranks, 0);
    }
}

/// Both halves are cleared on the way, and numbers begin again without being 0.
#[test]
fn one_shot_past_where_numbers_come_round() {
    exchange_small(3, (1 << 30) - 20);
    exchange_small(2, u32::MAX - 20);
}

/// A line of an exchange of long ago, with the number of one to come, must be gone by then.
#[test]
fn one_shot_forgets_old_lines_in_time() {
    let Some(kernels) = kernels() else { return };
    let small = Small {
        rule: Rule::new(DataType::Uint8, ReduceOp::Sum),
        gathers: false,
        blocks: 2,
        threads: 1,
        shift: 0,
        in_place: false,
    };
    let mut inboxes = Inboxes::new(2, 64, (1 << 30) - 2);
    for line in inboxes.inboxes.iter_mut().flatten() {
        *line = abi::Line { low: 1, low_flag: 7, high: 1, high_flag: 7 };
    }
    for _ in 0..4 {
        small.run(kernels, &inboxes, &[vec![1; 8], vec![2; 8]]);
    }
    for (rank, inbox) in inboxes.inboxes.iter().enumerate() {
        for (at, line) in inbox.iter().enumerate() {
            // SAFETY: valid memory; the kernels that wrote it have ended.
            let flag = unsafe { (&raw const line.low_flag).read_volatile() };
            let from_itself = at / 64 % 2 == rank;
            assert!(flag != 7 || from_itself, "rank {rank} still has line {at}");
        }
    }
}

/// The flags and epochs of ranks that meet.
struct Barriers {
    flags: Vec<Vec<abi::Flag>>,
    addresses: Vec<u64>,
    epochs: Vec<Vec<u64>>,
    controls: Vec<Control>,
}

impl Barriers {
    fn new(nranks: usize) -> Barriers {
        let flags = vec![vec![abi::Flag::default(); abi::BARRIER_BLOCKS * nranks]; nranks];
        Barriers {
            addresses: flags.iter().map(|flags| flags.as_ptr() as u64).collect(),
            flags,
            epochs: vec![vec![0; abi::BARRIER_BLOCKS]; nranks],
            controls: (0..nranks).map(|_| Control::new()).collect(),
        }
    }

    fn barrier(&self, rank: usize, timeout_ns: u64) -> abi::Barrier {
        abi::Barrier {
            flags: self.addresses.as_ptr() as u64,
            epochs: self.epochs[rank].as_ptr() as u64,
            nranks: self.flags.len() as u32,
            unused: 0,
            watch: self.controls[rank].watch(rank, timeout_ns),
        }
    }
}

/// Each rank reduces its part from all inputs and writes it to all outputs.
#[test]
fn two_shot_between_barriers() {
    let Some(kernels) = kernels() else { return };
    let mut random = Random(5);
    for (nranks, data_type) in
        [(2, DataType::Float32), (3, DataType::Bfloat16), (4, DataType::Int8)]
    {
        let (count, tile) = (1000, 64);
        let part = count / nranks;
        let barriers = Barriers::new(nranks);
        let sources: Vec<_> = (0..nranks).map(|_| random.elements(data_type, count)).collect();
        let rule = Rule { parts: nranks, finish: true, ..Rule::new(data_type, ReduceOp::Avg) };
        let wanted = on_the_host(&rule, &sources);
        let mut inputs: Vec<_> = sources.iter().map(|source| Guarded::with(source, 0)).collect();
        let mut outputs: Vec<_> = (0..nranks).map(|_| Guarded::new(wanted.len(), 0)).collect();
        let (mut pieces, mut ends, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for rank in 0..nranks {
            let own = if rank + 1 == nranks { count - rank * part } else { part };
            let offset = (rank * part * data_type.size()) as u64;
            calls.push(abi::ReduceCall {
                first_piece: rank as u32,
                npieces: 1,
                ntiles: own.div_ceil(tile) as u32,
                unused: 0,
                barrier: barriers.barrier(rank, 0),
            });
            pieces.push(abi::Piece {
                count: own as u64,
                first_tile: 0,
                first_end: ends.len() as u32,
                nsources: nranks as u16,
                ntargets: nranks as u16,
                flags: abi::FINISH,
            });
            let all = inputs.iter_mut().chain(&mut outputs);
            ends.extend(all.map(|buffer| buffer.address() + offset));
        }
        let mut args = abi::ReduceArgs::zeroed();
        (args.data_type, args.op) = (data_type as i32, ReduceOp::Avg as i32);
        (args.parts, args.tile) = (nranks as u64, tile as u32);
        args.pieces = pieces.as_ptr() as u64;
        args.ends = ends.as_ptr() as u64;
        args.calls = calls.as_ptr() as u64;
        let symbol = format!("ringcomm_reduce_{}", kind(data_type));
        for threads in [1, 2, 4] {
            kernels.threads(threads);
            kernels.launch_with(&symbol, [3, nranks as u32, threads], &*args);
            for output in &outputs {
                assert_eq!(difference(output.content(), &wanted, data_type.size()), None);
            }
        }
        // SAFETY: valid memory; the kernels that wrote it have ended.
        let met = unsafe { barriers.epochs[0].as_ptr().read_volatile() };
        assert_eq!(met, 6, "two barriers a launch");
    }
}

/// A ring of two in which rank 1 never comes: where rank 0 gives up, and why.
fn alone(kernels: &Kernels, timeout_ns: u64, act: impl FnOnce(&Control) + Send) -> abi::Report {
    let mut wires = Wires::new(2, 1, 2, 128);
    let control = Control::new();
    let steps = [abi::Step {
        nspans: 1,
        nsources: 1,
        ntargets: 1,
        slices: 1,
        scaled: abi::NONE,
        flags: abi::COPY,
        ..Default::default()
    }];
    let ends = [abi::End { place: abi::PEER, peer: 1 }, abi::End { place: abi::OUTPUT, peer: 0 }];
    let spans = [abi::Span { bytes: 64, ..Default::default() }];
    let program = abi::Program {
        steps: steps.as_ptr() as u64,
        ends: ends.as_ptr() as u64,
        spans: spans.as_ptr() as u64,
        nsteps: 1,
        ticks: 1,
        slice_bytes: 128,
        lives: 1,
        ..Default::default()
    };
    let mut output = Guarded::new(64, 0);
    let mut args = abi::PlanArgs::zeroed();
    args.call = abi::PlanCall {
        output: output.address(),
        programs: &raw const program as u64,
        watch: control.watch(0, timeout_ns),
        ..wires.call(0)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| act(&control));
        kernels.launch("ringcomm_plan_w1", 1, 1, &*args);
    });
    assert!(output.content().iter().all(|byte| *byte == 0xa5), "nothing came");
    control.report()
}

#[test]
fn a_dead_peer_ends_the_kernel_with_a_report() {
    let Some(kernels) = kernels() else { return };
    let report = alone(kernels, 1_000_000, |_| ());
    assert_eq!((report.reason, report.waiting), (abi::LATE, abi::FOR_MESSAGE));
    assert_eq!((report.rank, report.peer, report.wanted, report.found), (0, 1, 1, 0));
    let report = alone(kernels, 0, Control::abort);
    assert_eq!((report.reason, report.waiting), (abi::ABORTED, abi::FOR_MESSAGE));
}

#[test]
fn barriers_and_exchanges_end_without_their_peers_too() {
    let Some(kernels) = kernels() else { return };
    let barriers = Barriers::new(2);
    let mut args = abi::ReduceArgs::zeroed();
    args.tile = 16;
    args.call.barrier = barriers.barrier(1, 1_000_000);
    kernels.launch("ringcomm_reduce_w4", 2, 1, &*args);
    let report = barriers.controls[1].report();
    assert_eq!((report.reason, report.waiting), (abi::LATE, abi::FOR_BARRIER));
    assert_eq!((report.rank, report.peer), (1, 0));

    let inboxes = Inboxes::new(3, 8, 0);
    let mut args = abi::OneshotArgs::zeroed();
    let (mut input, mut output) = (Guarded::with(&[1; 8], 0), Guarded::new(8, 0));
    args.call = abi::OneshotCall {
        input: input.address(),
        output: output.address(),
        count: 8,
        ..inboxes.call(0, 1_000_000)
    };
    kernels.launch("ringcomm_oneshot_w1", 1, 1, &*args);
    let report = inboxes.controls[0].report();
    assert_eq!((report.reason, report.waiting), (abi::LATE, abi::FOR_LINES));
    assert!(output.content().iter().all(|byte| *byte == 0xa5));
}
