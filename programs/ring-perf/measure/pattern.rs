//! The data that is sent, and what must come of it.
//!
//! A rank's input repeats every [`PERIOD`] elements: a prime, so that a block put in a wrong place
//! shows, and few enough that the oracle may take its time and that checking a large result reads
//! little but the result itself. Two variants take turns from call to call, so that what an earlier
//! call left behind is never right.
//!
//! Where any order of reduction gives the same bits, or only one order is possible (two ranks) or
//! promised (the serial one, on one host and by a deterministic communicator), floats are drawn
//! from all magnitudes and rounding shows who was added to whom. Elsewhere the inputs are small
//! multiples of a power of two whose sums are exact in every order. Both are strewn with NaNs, with
//! infinities in types wider than 8 bits, and with denormals, of which exact products have none.

use super::oracle;
use ringcomm::device::host::prescale_factor;
use ringcomm::types::{DataType, ReduceOp};

/// A prime near 1,000: long against any vector or cache line, short against L1 in every type.
pub const PERIOD: usize = 1021;

/// Inputs that take turns.
pub const VARIANTS: usize = 2;

/// How float inputs are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// Any bits at all: nothing is reduced.
    Bits,
    /// Values of all magnitudes, whose sums depend on the order.
    Ordered,
    /// Values whose sums are exact in any order.
    Exact,
}

/// The inputs of all ranks and the reduced results, one period of each, twice in a row so that a
/// period that begins anywhere is one slice.
pub struct Pattern {
    inputs: Vec<Vec<u8>>,
    reduced: Vec<Vec<u8>>,
    nranks: usize,
}

/// The factor of `rank` in a pre-multiplied sum: a power of two, exact in every type.
pub fn scalar(rank: usize) -> f64 {
    if rank.is_multiple_of(2) { 1.0 } else { 2.0 }
}

impl Pattern {
    pub fn new(data_type: DataType, op: Option<ReduceOp>, nranks: usize, serial: bool) -> Pattern {
        let draw = draw(data_type, op, nranks, serial);
        let scalars: Vec<f64> = (0..nranks).map(scalar).collect();
        let (mut inputs, mut reduced) = (Vec::new(), Vec::new());
        for variant in 0..VARIANTS {
            let element = |rank, index| generate(draw, data_type, op, nranks, rank, variant, index);
            for rank in 0..nranks {
                inputs.push(pack(data_type, |index| element(rank, index)));
            }
            if let Some(op) = op {
                reduced.push(pack(data_type, |index| {
                    let all: Vec<u64> = (0..nranks).map(|rank| element(rank, index)).collect();
                    oracle::reduce(data_type, op, &all, &scalars)
                }));
            }
        }
        Pattern { inputs, reduced, nranks }
    }

    /// What `rank` sends.
    pub fn input(&self, variant: usize, rank: usize) -> &[u8] {
        &self.inputs[variant * self.nranks + rank]
    }

    /// As [`Pattern::input`], for a comparison.
    pub fn input_mut(&mut self, variant: usize, rank: usize) -> &mut [u8] {
        &mut self.inputs[variant * self.nranks + rank]
    }

    /// What all of it reduces to. A comparison may learn the payload of a NaN.
    pub fn reduced_mut(&mut self, variant: usize) -> &mut [u8] {
        &mut self.reduced[variant]
    }
}

/// Two periods of elements as bytes.
fn pack(data_type: DataType, element: impl Fn(usize) -> u64) -> Vec<u8> {
    let size = data_type.size();
    let mut bytes = Vec::with_capacity(2 * PERIOD * size);
    for index in 0..PERIOD {
        bytes.extend_from_slice(&element(index).to_ne_bytes()[..size]);
    }
    bytes.extend_from_within(..);
    bytes
}

fn draw(data_type: DataType, op: Option<ReduceOp>, nranks: usize, serial: bool) -> Draw {
    let Some(op) = op else { return Draw::Bits };
    // What passes the largest number of an 8-bit type shows no order: terms below 8, some of them
    // doubled, up to 448; three factors of 8.
    let most = match (data_type, op) {
        (DataType::Float8e4m3 | DataType::Float8e5m2, ReduceOp::Prod) => 2,
        (DataType::Float8e4m3, _) => 28,
        _ => usize::MAX,
    };
    if op.is_associative(data_type) || nranks <= 2 || (serial && nranks <= most) {
        Draw::Ordered
    } else {
        Draw::Exact
    }
}

/// A well mixed number from a place (the finaliser of splitmix64 over a running sum).
fn mix(seed: [usize; 3]) -> u64 {
    seed.into_iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, part| {
        let mut z = (state ^ part as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn generate(
    draw: Draw,
    data_type: DataType,
    op: Option<ReduceOp>,
    nranks: usize,
    rank: usize,
    variant: usize,
    index: usize,
) -> u64 {
    let own = mix([variant, index, rank + 1]);
    let shared = mix([variant, index, 0]);
    let Some(op) = op.filter(|_| draw != Draw::Bits) else {
        return own & oracle::mask(data_type);
    };
    if data_type == DataType::Bool {
        return [0, 1, 1, 0, 2, 255][(own % 6) as usize];
    }
    if !data_type.is_float() {
        return own & oracle::mask(data_type);
    }
    if let Some(special) = special(data_type, nranks, rank, index, shared) {
        return special;
    }
    match (draw, op) {
        (Draw::Exact, ReduceOp::Prod) => exact_factor(data_type, nranks, rank, own, shared),
        (Draw::Exact, _) => exact_term(data_type, op, nranks, rank, own, shared),
        _ => ordered(data_type, op, index, own),
    }
}

/// Infinities and NaNs at some indices, on one or two of the ranks.
fn special(
    data_type: DataType,
    nranks: usize,
    rank: usize,
    index: usize,
    shared: u64,
) -> Option<u64> {
    let (exponent, fraction) = oracle::fields(data_type);
    let sign = 1u64 << (exponent + fraction);
    let infinity = ((1u64 << exponent) - 1) << fraction;
    let quiet_nan = match data_type {
        DataType::Float8e4m3 => 0x7f,
        _ => infinity | 1 << (fraction - 1),
    };
    let chosen = (shared >> 8) as usize % nranks;
    let other = (chosen + 1) % nranks;
    // 8-bit floats saturate or overflow by convention, so infinity is left to the wider ones. The
    // primes keep the kinds apart and give each some thirty places in a period.
    let wide = data_type.size() > 1;
    match (index % 29, index % 31, index % 37) {
        (7, _, _) if rank == chosen => Some(quiet_nan),
        (_, 11, _) if wide && rank == chosen => Some(infinity),
        (_, _, 13) if wide && rank == chosen => Some(infinity),
        (_, _, 13) if wide && rank == other => Some(infinity | sign),
        _ => None,
    }
}

/// A float of random sign, fraction and a moderate exponent; every eleventh is denormal.
fn ordered(data_type: DataType, op: ReduceOp, index: usize, own: u64) -> u64 {
    let (exponent, fraction) = oracle::fields(data_type);
    let bias = (1u64 << (exponent - 1)) - 1;
    // Products of two and sums of many must not overflow what has few exponents.
    let reach: u64 = match data_type {
        DataType::Float8e4m3 | DataType::Float8e5m2 => 3,
        DataType::Float16 => 7,
        _ if op == ReduceOp::Prod => 8,
        _ => 20,
    };
    let sign = (own >> 63) << (exponent + fraction);
    let low = own & ((1 << fraction) - 1);
    // `| 1`: zero has two signs, and which one a minimum keeps is nobody's promise.
    if index % 11 == 5 {
        return sign | low | 1;
    }
    sign | (bias - reach + (own >> 56 & 0x7f) % (2 * reach)) << fraction | low
}

/// `k * unit`, with the sum of all |k| below half the type's precision (a pre-multiplied sum
/// doubles them), so that no order of adding rounds.
fn exact_term(
    data_type: DataType,
    op: ReduceOp,
    nranks: usize,
    rank: usize,
    own: u64,
    shared: u64,
) -> u64 {
    let (_, fraction) = oracle::fields(data_type);
    // 2^20 distinct multiples are plenty where the type has more.
    let room = 1usize << fraction.min(20);
    let sparse = nranks.div_ceil(room);
    if !(rank + shared as usize % sparse).is_multiple_of(sparse) {
        return 0;
    }
    let most = (room / nranks).max(1) as i64;
    let multiple = (own % (2 * most as u64 + 1)) as i64 - most;
    // A fourth of the places are multiples of the smallest denormal, but where an average makes
    // inputs smaller.
    let exponent = [0, -1, 1][(shared >> 20) as usize % 3];
    let prescale = prescale_factor(data_type, op, nranks as f64).is_some();
    let denormal = (shared >> 30).is_multiple_of(4) && !prescale;
    small_multiple(data_type, multiple, exponent, denormal)
}

/// 1, 2, 1/2 or their negatives; few enough are not ±1 that the product stays in range.
fn exact_factor(data_type: DataType, nranks: usize, rank: usize, own: u64, shared: u64) -> u64 {
    // Three doublings keep every type, e4m3 down to 2^-6 included, far from its limits.
    let active = (rank + nranks - shared as usize % nranks) % nranks < 3;
    let exponent = if active { (own >> 8) as i64 % 3 - 1 } else { 0 };
    small_multiple(data_type, if own & 1 == 0 { 1 } else { -1 }, exponent as i32, false)
}

/// The bits of `multiple * 2^exponent`, or of so many smallest denormals.
fn small_multiple(data_type: DataType, multiple: i64, exponent: i32, denormal: bool) -> u64 {
    let (exponent_bits, fraction) = oracle::fields(data_type);
    let magnitude = multiple.unsigned_abs();
    let sign = u64::from(multiple < 0) << (exponent_bits + fraction);
    if magnitude == 0 {
        return 0;
    }
    if denormal {
        // The bits of a denormal count its units, and past the last one the normals go on counting.
        return sign | magnitude.min((1 << fraction) - 1);
    }
    let top = magnitude.ilog2();
    let bias = (1i64 << (exponent_bits - 1)) - 1;
    let field = (bias + i64::from(top) + i64::from(exponent)) as u64;
    sign | field << fraction | (magnitude << (fraction - top)) & ((1 << fraction) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the order, the exact draw gives the same bits.
    #[test]
    fn exact_sums_do_not_depend_on_the_order() {
        for data_type in DataType::ALL.into_iter().filter(|data_type| data_type.is_float()) {
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg] {
                for nranks in [3, 8, 33] {
                    for index in 0..PERIOD {
                        let element = |rank| {
                            generate(Draw::Exact, data_type, Some(op), nranks, rank, 1, index)
                        };
                        let forth: Vec<u64> = (0..nranks).map(element).collect();
                        let back: Vec<u64> = forth.iter().rev().copied().collect();
                        let a = oracle::reduce(data_type, op, &forth, &[]);
                        let b = oracle::reduce(data_type, op, &back, &[]);
                        let nan = oracle::is_nan(data_type, a) && oracle::is_nan(data_type, b);
                        assert!(a == b || nan, "{data_type} {op} {nranks} {index}: {a:x} {b:x}");
                    }
                }
            }
        }
    }

    /// The ordered draw must tell orders apart, or it proves nothing.
    #[test]
    fn ordered_sums_show_a_changed_order() {
        let element = |rank, index| {
            generate(Draw::Ordered, DataType::Float32, Some(ReduceOp::Sum), 3, rank, 0, index)
        };
        let differs = |index: &usize| {
            let all: Vec<u64> = (0..3).map(|rank| element(rank, *index)).collect();
            let turned = [all[1], all[2], all[0]];
            let sum = |all: &[u64]| oracle::reduce(DataType::Float32, ReduceOp::Sum, all, &[]);
            sum(&all) != sum(&turned)
        };
        assert!((0..PERIOD).filter(differs).count() > PERIOD / 10);
    }

    #[test]
    fn every_float_shows_a_changed_order_where_the_order_is_promised() {
        for data_type in DataType::ALL.into_iter().filter(|data_type| data_type.is_float()) {
            let op = ReduceOp::Sum;
            let draw = draw(data_type, Some(op), 3, true);
            assert_eq!(draw, Draw::Ordered, "{data_type}");
            let differs = |index: &usize| {
                let element = |rank| generate(draw, data_type, Some(op), 3, rank, 0, *index);
                let all = [0, 1, 2].map(element);
                let turned = [all[1], all[2], all[0]];
                let sum = |all: &[u64]| oracle::reduce(data_type, op, all, &[]);
                sum(&all) != sum(&turned)
            };
            let shown = (0..PERIOD).filter(differs).count();
            // Three 8-bit floats add up exactly in single precision: there is no order to show.
            assert!(shown > 0 || data_type.size() < 4, "{data_type}: {shown}");
        }
        assert_eq!(draw(DataType::Float32, Some(ReduceOp::Sum), 3, false), Draw::Exact);
    }

    /// How many NaNs, infinities, negative infinities and denormals three ranks send in a period.
    fn specials(draw: Draw, data_type: DataType, op: ReduceOp) -> [usize; 4] {
        let (exponent, fraction) = oracle::fields(data_type);
        let infinity = ((1u64 << exponent) - 1) << fraction;
        let negative = infinity | 1 << (exponent + fraction);
        let mut found = [0; 4];
        for rank in 0..3 {
            for index in 0..PERIOD {
                let bits = generate(draw, data_type, Some(op), 3, rank, 0, index);
                let is_denormal = bits & infinity == 0 && bits & ((1 << fraction) - 1) != 0;
                let is_nan = oracle::is_nan(data_type, bits);
                let kinds = [is_nan, bits == infinity, bits == negative, is_denormal];
                for (count, is_one) in found.iter_mut().zip(kinds) {
                    *count += usize::from(is_one);
                }
            }
        }
        found
    }

    #[test]
    fn every_float_sends_every_kind_of_special_value() {
        use {Draw::*, ReduceOp::*};
        for data_type in DataType::ALL.into_iter().filter(|data_type| data_type.is_float()) {
            for (draw, op) in [(Ordered, Sum), (Ordered, Prod), (Exact, Sum), (Exact, Prod)] {
                let found = specials(draw, data_type, op);
                let wide = data_type.size() > 1;
                // What the header of this file says is there, and what is not.
                let there = [true, wide, wide, (draw, op) != (Exact, Prod)];
                for (count, is_there) in found.into_iter().zip(there) {
                    let enough = if is_there { count >= 20 } else { count == 0 };
                    assert!(enough, "{data_type} {draw:?} {op}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn the_variants_and_the_ranks_differ() {
        let mut pattern = Pattern::new(DataType::Float32, Some(ReduceOp::Sum), 2, false);
        assert_ne!(pattern.input(0, 0), pattern.input(1, 0));
        assert_ne!(pattern.input(0, 0), pattern.input(0, 1));
        let reduced = pattern.reduced_mut(0).to_vec();
        assert_ne!(reduced, pattern.reduced_mut(1));
    }
}
