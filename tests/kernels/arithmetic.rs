//! Every type and operation, at odd counts, alignments and numbers of ends, against the CPU path.

use crate::abi;
use crate::data::{Guarded, Random, Rule, difference, on_the_host};
use crate::library::{Args, Kernels, kernels, kind};
use crate::sweeps::sweeps;
use ringcomm::types::{DataType, ReduceOp};

const OPS: [ReduceOp; 9] = {
    use ReduceOp::*;
    [Sum, Prod, Max, Min, Avg, Band, Bor, Bxor, PreMulSum]
};
const COUNTS: [usize; 13] = [0, 1, 2, 3, 7, 15, 16, 17, 31, 64, 127, 1000, 4099];

/// How a case is run: what must not change its result.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// Bytes off alignment, and whether all ends have the same.
    shift: usize,
    alike: bool,
    targets: usize,
    in_place: Option<usize>,
    /// Vectors in a tile.
    tile: usize,
    blocks: u32,
    /// Tables in memory, not in the launch.
    tables: bool,
}

impl Manner {
    fn number(turn: usize, nsources: usize) -> Manner {
        Manner {
            shift: [0, 8, 1, 0, 4, 2, 12, 0, 3][turn % 9],
            alike: turn % 4 != 1,
            targets: [1, 2, 1, 3][turn / 2 % 4],
            in_place: turn.is_multiple_of(5).then_some(turn / 5 % nsources),
            tile: [1, 64, 7, 1024][turn / 3 % 4],
            blocks: [1, 3, 2][turn % 3],
            tables: turn % 7 == 2 || nsources > abi::INLINE_SCALARS,
        }
    }
}

/// Fill in what a launch says of one piece; returns the tables that it points to.
fn describe(rule: &Rule, manner: &Manner, ends: &[u64], nsources: usize, count: usize) -> Launch {
    let mut args = abi::ReduceArgs::zeroed();
    let tile = manner.tile * 16 / rule.data_type.size();
    let piece = abi::Piece {
        count: count as u64,
        nsources: nsources as u16,
        ntargets: (ends.len() - nsources) as u16,
        flags: if rule.finish { abi::FINISH } else { 0 },
        ..Default::default()
    };
    let mut scalars = vec![1.0; nsources];
    if let Some((index, scalar)) = rule.scaled {
        scalars[index] = scalar;
    }
    args.data_type = rule.data_type as i32;
    args.op = rule.op as i32;
    args.parts = rule.parts as u64;
    args.tile = tile as u32;
    args.call.npieces = 1;
    args.call.ntiles = count.div_ceil(tile) as u32;
    let mut launch = Launch { args, _ends: ends.to_vec(), _scalars: scalars, _pieces: vec![piece] };
    launch.fill(manner.tables);
    launch
}

/// A launch and the tables that it points to.
struct Launch {
    args: Box<abi::ReduceArgs>,
    _ends: Vec<u64>,
    _scalars: Vec<f64>,
    _pieces: Vec<abi::Piece>,
}

impl Launch {
    fn fill(&mut self, tables: bool) {
        if tables {
            self.args.ends = self._ends.as_ptr() as u64;
            self.args.scalars = self._scalars.as_ptr() as u64;
            self.args.pieces = self._pieces.as_ptr() as u64;
        } else {
            self.args.inline_ends[..self._ends.len()].copy_from_slice(&self._ends);
            self.args.inline_scalars[..self._scalars.len()].copy_from_slice(&self._scalars);
            self.args.inline_pieces[..self._pieces.len()].copy_from_slice(&self._pieces);
        }
    }
}

fn run(kernels: &Kernels, rule: &Rule, manner: &Manner, sources: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let length = sources[0].len();
    let shift = |index: usize| match manner.alike {
        true => manner.shift,
        false => (manner.shift + 5 * index) % 16,
    };
    let mut inputs: Vec<_> =
        (0..sources.len()).map(|index| Guarded::with(&sources[index], shift(index))).collect();
    let mut outputs: Vec<_> =
        (0..manner.targets).map(|index| Guarded::new(length, shift(index + 1))).collect();
    let mut ends: Vec<u64> = inputs.iter_mut().chain(&mut outputs).map(Guarded::address).collect();
    if let Some(source) = manner.in_place {
        ends[sources.len()] = ends[source];
    }
    let count = length / rule.data_type.size();
    let launch = describe(rule, manner, &ends, sources.len(), count);
    let symbol = format!("ringcomm_reduce_{}", kind(rule.data_type));
    kernels.launch(&symbol, manner.blocks, 1, &*launch.args);
    let mut results: Vec<_> = outputs.iter().map(|output| output.content().to_vec()).collect();
    for (index, input) in inputs.iter().enumerate() {
        if manner.in_place == Some(index) {
            results[0] = input.content().to_vec();
        } else {
            assert!(input.content() == sources[index], "wrote source {index}: {rule:?} {manner:?}");
        }
    }
    results
}

fn check(kernels: &Kernels, rule: &Rule, sources: &[Vec<u8>], turn: &mut usize) {
    let wanted = on_the_host(rule, sources);
    for _ in 0..2 {
        *turn += 1;
        let manner = Manner::number(*turn, sources.len());
        for (target, got) in run(kernels, rule, &manner, sources).iter().enumerate() {
            if let Some(text) = difference(got, &wanted, rule.data_type.size()) {
                panic!("{rule:?} {manner:?} {} sources, target {target}, {text}", sources.len());
            }
        }
    }
}

/// All operations of one type.
fn sweep(data_type: DataType) {
    let Some(kernels) = kernels() else { return };
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ data_type as u64);
    let mut turn = data_type as usize;
    for op in OPS.into_iter().filter(|op| op.supports(data_type)) {
        for nsources in [1, 2, 3, 4, 9, 17] {
            for count in COUNTS {
                let sources: Vec<_> =
                    (0..nsources).map(|_| random.elements(data_type, count)).collect();
                let scalar = [2.0, -3.0, 0.5, 7.0, 1e30, -1e30, f64::NAN][count % 7];
                let scales = op == ReduceOp::PreMulSum && count % 5 != 3;
                let rule = Rule {
                    parts: [1, 2, 3, 4, 7, 8, 1 << 33][(nsources + count) % 7],
                    finish: op == ReduceOp::Avg && count % 3 != 1,
                    scaled: scales.then_some((count % nsources, scalar)),
                    ..Rule::new(data_type, op)
                };
                check(kernels, &rule, &sources, &mut turn);
            }
        }
    }
}

sweeps!();

/// Every code of a type against partners.
fn pairs(data_type: DataType, partners: &[u64]) {
    let Some(kernels) = kernels() else { return };
    let size = data_type.size();
    let column = |bits: &dyn Fn(u64) -> u64| -> Vec<u8> {
        let codes = 0..1u64 << (8 * size);
        codes.flat_map(|code| bits(code).to_le_bytes().into_iter().take(size)).collect()
    };
    let mut turn = 0;
    for partner in partners {
        let sources = [column(&|code| code), column(&|_| *partner)];
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            check(kernels, &Rule::new(data_type, op), &sources, &mut turn);
        }
        let mean = Rule { parts: 3, finish: true, ..Rule::new(data_type, ReduceOp::Avg) };
        check(kernels, &mean, &sources, &mut turn);
        let scaled = Some((0, *partner as f64 / 3.0));
        let rule = Rule { scaled, ..Rule::new(data_type, ReduceOp::PreMulSum) };
        check(kernels, &rule, &sources, &mut turn);
    }
}

#[test]
fn all_pairs_of_8_bit_floats() {
    let all: Vec<u64> = (0..256).collect();
    pairs(DataType::Float8e4m3, &all);
    pairs(DataType::Float8e5m2, &all);
}

#[test]
fn all_16_bit_floats_with_awkward_partners() {
    // Zeros (exact round trips of every code), one, the extremes, denormals, halfway cases.
    pairs(DataType::Float16, &[0x8000, 0, 0x3c00, 0x3555, 0x0001, 0x7bff, 0x1001, 0x7c00]);
    pairs(DataType::Bfloat16, &[0x8000, 0, 0x3f80, 0x3eab, 0x0001, 0x7f7f, 0x3b81, 0x7f80]);
}

#[test]
fn each_source_has_its_own_factor() {
    let Some(kernels) = kernels() else { return };
    let mut random = Random(11);
    for data_type in [DataType::Float16, DataType::Float8e5m2, DataType::Int32, DataType::Float64] {
        let sources: Vec<_> = (0..4).map(|_| random.elements(data_type, 333)).collect();
        let scalars = [0.3, -2.0, 5.5, 1.0];
        let premultiplied = Rule::new(data_type, ReduceOp::PreMulSum);
        let products: Vec<_> = (0..4)
            .map(|index| {
                let rule = Rule { scaled: Some((0, scalars[index])), ..premultiplied };
                on_the_host(&rule, &sources[index..=index])
            })
            .collect();
        let wanted = on_the_host(&Rule::new(data_type, ReduceOp::Sum), &products);
        let mut inputs: Vec<_> = sources.iter().map(|source| Guarded::with(source, 0)).collect();
        let mut output = Guarded::new(wanted.len(), 0);
        let mut ends: Vec<u64> = inputs.iter_mut().map(Guarded::address).collect();
        ends.push(output.address());
        let manner = Manner::number(4, 4);
        let mut launch = describe(&premultiplied, &manner, &ends, 4, 333);
        launch._scalars = scalars.to_vec();
        launch.fill(false);
        kernels.launch(&format!("ringcomm_reduce_{}", kind(data_type)), 1, 1, &*launch.args);
        assert_eq!(difference(output.content(), &wanted, data_type.size()), None, "{data_type}");
    }
}

/// As many vectors as a block has threads, and one fewer and more, of sources in several turns.
#[test]
fn a_vector_for_each_thread_has_all_sources() {
    let Some(kernels) = kernels() else { return };
    const THREADS: u32 = 4;
    let mut random = Random(29);
    for data_type in [DataType::Float8e4m3, DataType::Bfloat16, DataType::Float32, DataType::Int8] {
        let lanes = 16 / data_type.size();
        for nsources in [2, 3, 7, 8, 9, 12, 13, 16, 17, 20] {
            for count in [lanes, 3 * lanes, 4 * lanes, 4 * lanes + 1, 5 * lanes] {
                let sources: Vec<_> =
                    (0..nsources).map(|_| random.elements(data_type, count)).collect();
                let rule = Rule::new(data_type, ReduceOp::Sum);
                let mut inputs: Vec<_> =
                    sources.iter().map(|source| Guarded::with(source, 0)).collect();
                let mut output = Guarded::new(sources[0].len(), 0);
                let mut ends: Vec<u64> = inputs.iter_mut().map(Guarded::address).collect();
                ends.push(output.address());
                let manner = Manner { tables: true, tile: 1024, ..Manner::number(4, nsources) };
                let launch = describe(&rule, &manner, &ends, nsources, count);
                let symbol = format!("ringcomm_reduce_{}", kind(data_type));
                kernels.threads(THREADS);
                kernels.launch_with(&symbol, [1, 1, THREADS], &*launch.args);
                let wanted = on_the_host(&rule, &sources);
                let told = difference(output.content(), &wanted, data_type.size());
                assert_eq!(told, None, "{data_type} {nsources} sources of {count}");
            }
        }
    }
}

#[test]
fn a_copy_keeps_every_bit() {
    let Some(kernels) = kernels() else { return };
    let mut random = Random(3);
    for data_type in DataType::ALL {
        for (count, from, to) in [(1000, 0, 0), (1000, 3, 3), (77, 1, 6), (1, 0, 0)] {
            let content = random.elements(data_type, count);
            let (mut source, mut target) =
                (Guarded::with(&content, from), Guarded::new(content.len(), to));
            let rule = Rule::new(data_type, ReduceOp::Sum);
            let ends = [source.address(), target.address()];
            let mut launch = describe(&rule, &Manner::number(0, 1), &ends, 1, count);
            launch._pieces[0].flags = abi::COPY;
            launch.fill(false);
            kernels.launch(&format!("ringcomm_reduce_{}", kind(data_type)), 2, 1, &*launch.args);
            assert!(target.content() == content, "{data_type} {count} {from} {to}");
        }
    }
}
