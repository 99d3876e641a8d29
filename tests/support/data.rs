//! Inputs, each a pure function of its place, so that every rank knows what the others hold.

use super::oracle::encode;
use ringcomm::types::{DataType, ReduceOp};

/// SplitMix64.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// What kind of numbers a reduction gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Every partial result can be represented, so any order of reduction gives the same bits.
    Exact,
    /// Rounding, NaN with payloads, infinities, denormals, signed zeros: the order shows.
    Special,
}

/// The bits of element `index` of the input of `rank`.
pub fn element(
    data: Data,
    data_type: DataType,
    op: ReduceOp,
    seed: u64,
    rank: usize,
    index: usize,
) -> u64 {
    let place = (rank as u64) << 40 | index as u64;
    let random = mix(seed ^ mix(place.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    if data_type == DataType::Bool {
        return random & 3;
    }
    let mask = u64::MAX >> (64 - 8 * data_type.size());
    if !data_type.is_float() {
        return random & mask;
    }
    match (data, op) {
        (Data::Special, _) | (_, ReduceOp::Max | ReduceOp::Min) => special(data_type, random),
        // At most half the ranks of a place are not zero: sums stay within what fp8 counts exactly.
        (_, ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum) => {
            let value = if (rank + index).is_multiple_of(2) { random % 3 } else { 1 };
            bits(data_type, value as f32 - 1.0)
        }
        _ => {
            let magnitude = if (rank + index).is_multiple_of(3) { 2.0 } else { 1.0 };
            bits(data_type, if random & 1 == 0 { magnitude } else { -magnitude })
        }
    }
}

/// A number of the type, exactly representable.
pub fn bits(data_type: DataType, value: f32) -> u64 {
    match data_type {
        DataType::Float64 => f64::from(value).to_bits(),
        data_type if data_type.is_float() => encode(data_type, value),
        data_type => value as i64 as u64 & (u64::MAX >> (64 - 8 * data_type.size())),
    }
}

fn special(data_type: DataType, random: u64) -> u64 {
    let moderate = (random >> 20) as i32 as f64 / 3.0;
    match data_type {
        DataType::Float32 => {
            const RARE: [u32; 8] = [
                0x7f80_0000,
                0xff80_0000,
                0x7fc0_1234,
                0xffa0_0001,
                0x8000_0000,
                0x0000_0001,
                0x807f_ffff,
                0x7f7f_ffff,
            ];
            match random % 64 {
                rare @ 0..8 => u64::from(RARE[rare as usize]),
                8..16 => random >> 32,
                _ => u64::from((moderate as f32).to_bits()),
            }
        }
        DataType::Float64 => {
            const RARE: [u64; 8] = [
                0x7ff0_0000_0000_0000,
                0xfff0_0000_0000_0000,
                0x7ff8_0000_dead_beef,
                0xfff4_0000_0000_0001,
                0x8000_0000_0000_0000,
                1,
                0x800f_ffff_ffff_ffff,
                0x7fef_ffff_ffff_ffff,
            ];
            match random % 64 {
                rare @ 0..8 => RARE[rare as usize],
                8..16 => random,
                _ => (moderate * 1e-3).to_bits(),
            }
        }
        // Half of the 16-bit values are moderate, so that sums round instead of overflowing.
        DataType::Float16 if random & 1 == 0 => encode(data_type, moderate as f32 * 1e-8),
        DataType::Bfloat16 if random & 1 == 0 => encode(data_type, moderate as f32),
        _ => random >> 8 & (u64::MAX >> (64 - 8 * data_type.size())),
    }
}
