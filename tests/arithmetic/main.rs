//! Every type, operation, number of sources, count and alignment, on every instruction set that the
//! processor has, against an oracle of one line per operation.

mod fenced;
mod oracle;
mod sweeps;

use fenced::Fenced;
use oracle::Rule;
use ringcomm::device::host::{self, InstructionSet, Job, Reduction, prescale_factor};
use ringcomm::types::{DataType, ReduceOp};
use sweeps::{Random, sweeps};

const OPS: [ReduceOp; 9] = {
    use ReduceOp::*;
    [Sum, Prod, Max, Min, Avg, Band, Bor, Bxor, PreMulSum]
};
const COUNTS: [usize; 15] = [0, 1, 2, 3, 7, 15, 16, 17, 31, 63, 64, 65, 127, 1000, 4099];
const GUARD: u8 = 0xa5;
/// Wider than the widest vector.
const MARGIN: usize = 192;

impl Random {
    /// An element: often any bits at all, often something special, else a number near 1.
    fn element(&mut self, data_type: DataType) -> u64 {
        let any = self.next();
        let bits = 8 * data_type.size() as u32;
        // Sign, exponent and fraction of the floats, from the upper end.
        let (exponent, fraction) = match data_type {
            DataType::Float64 => (0x3ff, 52),
            DataType::Float32 => (127, 23),
            DataType::Bfloat16 => (127, 7),
            DataType::Float16 => (15, 10),
            DataType::Float8e4m3 => (7, 3),
            _ => (15, 2),
        };
        let ones = u64::MAX >> (65 - bits);
        let infinity = ones & !((1 << fraction) - 1);
        let value = match self.next() % 16 {
            0..=4 => any,
            5 => 0,
            6 => 1 << (bits - 1),
            7 if data_type.is_float() => infinity | (any & (1 << (bits - 1))),
            8 if data_type.is_float() => infinity | any,
            9 => any & ((1 << fraction) - 1),
            10 => ones,
            11 => any % 5,
            _ if data_type.is_float() => {
                (exponent << fraction) ^ (any & ((2 << fraction) - 1)) ^ (any & (1 << (bits - 1)))
            }
            _ => any,
        };
        value & (u64::MAX >> (64 - bits))
    }
}

/// Where a buffer lies in its memory.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// So many bytes off a vector's alignment.
    Shifted(usize),
    /// Behind its last byte there is no memory.
    Last,
    /// Before its first byte there is none.
    First,
}

/// A buffer with guard bytes around it, where it has memory there.
struct Guarded {
    bytes: Fenced,
    start: usize,
    length: usize,
}

impl Guarded {
    fn new(length: usize, place: Place) -> Guarded {
        let mut bytes = Fenced::new(length + 2 * MARGIN);
        bytes.fill(GUARD);
        let start = match place {
            Place::Shifted(shift) => 64 + shift,
            Place::Last => bytes.len() - length,
            Place::First => 0,
        };
        Guarded { bytes, start, length }
    }

    fn with(content: &[u8], place: Place) -> Guarded {
        let mut buffer = Guarded::new(content.len(), place);
        let range = buffer.start..buffer.start + content.len();
        buffer.bytes[range].copy_from_slice(content);
        buffer
    }

    fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    /// The content; the guards must be whole.
    fn content(&self) -> &[u8] {
        let (before, rest) = self.bytes.split_at(self.start);
        let (content, after) = rest.split_at(self.length);
        assert!(before.iter().chain(after).all(|byte| *byte == GUARD), "wrote outside the target");
        content
    }
}

fn bytes_of(data_type: DataType, elements: &[u64]) -> Vec<u8> {
    let size = data_type.size();
    elements.iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect()
}

/// How a case is run: what must not change its result.
#[derive(Clone, Copy, Debug)]
struct Manner {
    set: InstructionSet,
    place: Place,
    targets: usize,
    in_place: Option<usize>,
    streaming: bool,
}

impl Manner {
    /// Where one of several buffers lies.
    fn place(&self, shifts: impl FnOnce(usize) -> usize) -> Place {
        match self.place {
            Place::Shifted(shift) => Place::Shifted(shifts(shift) % 64),
            edge => edge,
        }
    }
}

fn run(rule: &Rule, manner: &Manner, sources: &[Vec<u8>]) -> Vec<Vec<u8>> {
    // A mean of inputs that are multiplied.
    let prescale = rule.scaled.filter(|_| rule.op == ReduceOp::Avg).map(|(_, factor)| factor);
    let parts = (rule.parts.unwrap_or(3.0) / prescale.unwrap_or(1.0)) as usize;
    let reduction = Reduction::with(manner.set, rule.data_type, rule.op, parts).unwrap();
    let reduction = if prescale.is_some() { reduction.with_partial_sums() } else { reduction };
    let length = sources[0].len();
    let mut inputs: Vec<_> = sources
        .iter()
        .enumerate()
        .map(|(index, source)| Guarded::with(source, manner.place(|shift| shift * (index + 1))))
        .collect();
    let mut outputs: Vec<_> = (0..manner.targets)
        .map(|index| Guarded::new(length, manner.place(|shift| shift + 8 * index)))
        .collect();
    let reads: Vec<*const u8> =
        inputs.iter_mut().map(|input| input.pointer().cast_const()).collect();
    let mut writes: Vec<*mut u8> = outputs.iter_mut().map(Guarded::pointer).collect();
    if let Some(source) = manner.in_place {
        writes[0] = reads[source].cast_mut();
    }
    let job = Job {
        finish: rule.parts.is_some(),
        scaled: rule.scaled.map(|(index, _)| index),
        scalar: rule.scaled.map_or(0.0, |(_, scalar)| scalar),
        streaming: usize::from(manner.streaming),
        ..Job::new(&writes, &reads, length / rule.data_type.size())
    };
    // SAFETY: every buffer holds `count` elements and outlives the call.
    unsafe { reduction.run(&job) };
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

/// Run in several manners, which follow each other through all their combinations as cases go by.
fn check(rule: &Rule, sources: &[Vec<u64>], turn: &mut usize) {
    let elements: Vec<u64> = (0..sources[0].len())
        .map(|index| {
            let column: Vec<u64> = sources.iter().map(|source| source[index]).collect();
            oracle::reduce(rule, &column)
        })
        .collect();
    let wanted = bytes_of(rule.data_type, &elements);
    let inputs: Vec<_> = sources.iter().map(|source| bytes_of(rule.data_type, source)).collect();
    for set in InstructionSet::present() {
        for _ in 0..2 {
            *turn += 1;
            let manner = Manner {
                set,
                place: match *turn % 11 {
                    0 | 4 | 8 => Place::Last,
                    2 | 6 => Place::First,
                    _ => Place::Shifted([0, 1, 8, 4, 0, 33, 2, 16][*turn % 8]),
                },
                targets: [1, 1, 3][*turn % 3],
                in_place: turn.is_multiple_of(5).then_some(*turn / 5 % sources.len()),
                streaming: *turn % 7 < 3,
            };
            for (target, got) in run(rule, &manner, &inputs).iter().enumerate() {
                let size = rule.data_type.size();
                if let Some(byte) = (0..wanted.len()).find(|byte| got[*byte] != wanted[*byte]) {
                    let index = byte / size;
                    let column: Vec<_> =
                        sources.iter().map(|s| format!("{:#x}", s[index])).collect();
                    let got = &got[index * size..][..size];
                    panic!(
                        "{rule:?} {manner:?} target {target} element {index} of {}: \
                         sources {column:?} got {got:x?} wanted {:#x}",
                        elements.len(),
                        elements[index],
                    );
                }
            }
        }
    }
}

/// All operations of one type.
fn sweep(data_type: DataType) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ data_type as u64);
    let mut turn = data_type as usize;
    for op in OPS.into_iter().filter(|op| op.supports(data_type)) {
        for nsources in [1, 2, 3, 4, 5, 8, 17] {
            for count in COUNTS {
                let mut column = || (0..count).map(|_| random.element(data_type)).collect();
                let sources: Vec<Vec<u64>> = (0..nsources).map(|_| column()).collect();
                let parts = (nsources + count % 2) as f64;
                let parts = (op == ReduceOp::Avg && count % 3 != 1).then_some(parts);
                let scaled = (op == ReduceOp::PreMulSum && count % 5 != 3)
                    .then_some((count % nsources, [2.0, -3.0, 0.5, 7.0][count % 4]));
                let prescale = parts.filter(|_| count / 2 % 2 == 1).and_then(|parts| {
                    Some((count % nsources, prescale_factor(data_type, op, parts)?))
                });
                let parts = parts.map(|parts| parts * prescale.map_or(1.0, |(_, factor)| factor));
                let scaled = scaled.or(prescale);
                check(&Rule { data_type, op, parts, scaled }, &sources, &mut turn);
            }
        }
    }
}

sweeps!();

/// Each code against each of a set of partners: `[a, b]` columns.
fn pairs(data_type: DataType, partners: &[u64]) {
    let codes = 1u64 << (8 * data_type.size());
    let mut turn = 0;
    for partner in partners {
        let sources = [(0..codes).collect(), vec![*partner; codes as usize]];
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            check(&Rule { data_type, op, parts: None, scaled: None }, &sources, &mut turn);
        }
        let (parts, scaled) =
            (Some(3.0), Some((0, f64::from(oracle::decode(data_type, *partner)))));
        check(&Rule { data_type, op: ReduceOp::Avg, parts, scaled: None }, &sources, &mut turn);
        let op = ReduceOp::PreMulSum;
        check(&Rule { data_type, op, parts: None, scaled }, &sources, &mut turn);
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
fn a_copy_moves_every_byte_and_no_other() {
    let mut random = Random(7);
    for bytes in [0, 1, 7, 63, 64, 65, 4095, 4096, 4097, 5000, 70_001] {
        let content: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        let shifts = [(0, 0), (1, 0), (0, 1), (33, 17), (63, 63)];
        let places = shifts.map(|(from, to)| (Place::Shifted(from), Place::Shifted(to)));
        let edges = [Place::Last, Place::First].map(|edge| (edge, edge));
        for (from, to) in places.into_iter().chain(edges) {
            for streaming in [false, true] {
                let mut source = Guarded::with(&content, from);
                let mut target = Guarded::new(bytes, to);
                // SAFETY: both hold `bytes` bytes.
                unsafe { host::copy(target.pointer(), source.pointer(), bytes, streaming) };
                assert!(target.content() == content, "{bytes} {from:?} {to:?} {streaming}");
                // SAFETY: a copy onto itself is allowed.
                unsafe { host::copy(target.pointer(), target.pointer(), bytes, streaming) };
                assert!(target.content() == content, "{bytes} {to:?} onto itself {streaming}");
            }
        }
    }
}

#[test]
fn thousands_of_sources() {
    let columns: Vec<Vec<u64>> = (0..3000).map(|index| vec![index % 11; 67]).collect();
    let rule = Rule { data_type: DataType::Int16, op: ReduceOp::Sum, parts: None, scaled: None };
    check(&rule, &columns, &mut 0);
}

/// Without this, a processor whose vectors are never chosen would pass everything above.
#[test]
fn vectors_run_where_the_processor_has_them() {
    #[cfg(target_arch = "x86_64")]
    let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    let has = cfg!(target_arch = "aarch64");
    assert_eq!(InstructionSet::best() != InstructionSet::Portable, has, "{}", host::features());
}

#[test]
fn what_is_not_defined_is_refused_by_name() {
    for data_type in DataType::ALL {
        for op in OPS {
            match Reduction::new(data_type, op, 2) {
                Ok(_) => assert!(op.supports(data_type), "{op} on {data_type} was accepted"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!op.supports(data_type), "{text}");
                    assert!(text.contains(op.name()) && text.contains(data_type.name()), "{text}");
                }
            }
        }
    }
    assert!(Reduction::new(DataType::Int8, ReduceOp::Avg, 0).is_err());
}
