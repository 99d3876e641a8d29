//! The reduction of one element, written as plainly as it can be and independently of the library.

use half::{bf16, f16};
use ringcomm::types::{DataType, ReduceOp};
use std::array::from_fn;
use std::sync::LazyLock;

/// What one element's reduction depends on besides its sources.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub data_type: DataType,
    pub op: ReduceOp,
    /// What to divide by, where the result is a mean and this is its last step.
    pub parts: Option<f64>,
    /// The source to multiply, and by what.
    pub scaled: Option<(usize, f64)>,
}

/// The bytes of the result, the low ones of the answer.
pub fn reduce(rule: &Rule, sources: &[u64]) -> u64 {
    match rule.data_type {
        DataType::Bool => truth(rule.op, sources),
        DataType::Float64 => double(rule, sources),
        data_type if data_type.is_float() => float(rule, sources),
        _ => integer(rule, sources),
    }
}

/// The NaN that every NaN result is.
fn nan(data_type: DataType) -> u64 {
    u64::MAX >> (65 - 8 * data_type.size())
}

fn truth(op: ReduceOp, sources: &[u64]) -> u64 {
    let mut values = sources.iter().map(|byte| *byte != 0);
    (match op {
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::Band => values.all(|value| value),
        ReduceOp::Bxor => values.filter(|value| *value).count() % 2 == 1,
        _ => values.any(|value| value),
    }) as u64
}

fn integer(rule: &Rule, sources: &[u64]) -> u64 {
    let signed = {
        use DataType::*;
        matches!(rule.data_type, Int8 | Int16 | Int32 | Int64)
    };
    let unused = 64 - 8 * rule.data_type.size() as u32;
    let wrap = |value: i128| match signed {
        true => (((value as i64) << unused) >> unused) as i128,
        false => (((value as u64) << unused) >> unused) as i128,
    };
    let total = sources.iter().enumerate().map(|(index, bits)| match rule.scaled {
        Some((scaled, scalar)) if scaled == index => {
            wrap(wrap(*bits as i128).wrapping_mul(scalar as i128))
        }
        _ => wrap(*bits as i128),
    });
    let total = total.reduce(|a, b| match rule.op {
        ReduceOp::Prod => wrap(a.wrapping_mul(b)),
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Band => a & b,
        ReduceOp::Bor => a | b,
        ReduceOp::Bxor => a ^ b,
        _ => wrap(a + b),
    });
    (total.unwrap() / rule.parts.unwrap_or(1.0) as i128) as u64
}

macro_rules! fold {
    ($float:ty, $op:expr, $values:expr) => {
        $values
            .reduce(|a: $float, b: $float| match $op {
                ReduceOp::Prod => a * b,
                ReduceOp::Max | ReduceOp::Min if a.is_nan() || b.is_nan() => <$float>::NAN,
                ReduceOp::Max => {
                    if a.total_cmp(&b).is_gt() {
                        a
                    } else {
                        b
                    }
                }
                ReduceOp::Min => {
                    if a.total_cmp(&b).is_lt() {
                        a
                    } else {
                        b
                    }
                }
                _ => a + b,
            })
            .unwrap()
    };
}

fn double(rule: &Rule, sources: &[u64]) -> u64 {
    if let ([only], None, None) = (sources, rule.parts, rule.scaled) {
        return *only;
    }
    let values = sources.iter().enumerate().map(|(index, bits)| match rule.scaled {
        Some((scaled, scalar)) if scaled == index => f64::from_bits(*bits) * scalar,
        _ => f64::from_bits(*bits),
    });
    let total = fold!(f64, rule.op, values);
    let total = rule.parts.map_or(total, |parts| total / parts);
    if total.is_nan() { nan(DataType::Float64) } else { total.to_bits() }
}

fn float(rule: &Rule, sources: &[u64]) -> u64 {
    if let ([only], None, None) = (sources, rule.parts, rule.scaled) {
        return *only;
    }
    let values = sources.iter().enumerate().map(|(index, bits)| {
        let value = decode(rule.data_type, *bits);
        match rule.scaled {
            Some((scaled, scalar)) if scaled == index => {
                decode(rule.data_type, encode(rule.data_type, value * scalar as f32))
            }
            _ => value,
        }
    });
    let total = fold!(f32, rule.op, values);
    encode(rule.data_type, rule.parts.map_or(total, |parts| total / parts as f32))
}

pub fn decode(data_type: DataType, bits: u64) -> f32 {
    match data_type {
        DataType::Float16 => f16::from_bits(bits as u16).to_f32(),
        DataType::Bfloat16 => bf16::from_bits(bits as u16).to_f32(),
        DataType::Float8e4m3 => E4M3[bits as u8 as usize],
        DataType::Float8e5m2 => E5M2[bits as u8 as usize],
        _ => f32::from_bits(bits as u32),
    }
}

static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| from_fn(|bits| tiny(bits as u64, 3, 7, 0x7f)));
static E5M2: LazyLock<[f32; 256]> =
    LazyLock::new(|| from_fn(|bits| tiny(bits as u64, 2, 15, 0x7d)));

/// An 8-bit float by its definition; codes from `first_nan` on are NaN, and before them e5m2 has
/// its infinity.
fn tiny(bits: u64, fraction_bits: u32, bias: i32, first_nan: u64) -> f32 {
    let magnitude = bits & 0x7f;
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = (magnitude >> fraction_bits) as i32;
    let fraction = (magnitude & ((1 << fraction_bits) - 1)) as f32 / (1 << fraction_bits) as f32;
    if magnitude >= first_nan {
        f32::NAN
    } else if fraction_bits == 2 && magnitude == 0x7c {
        sign * f32::INFINITY
    } else if exponent == 0 {
        sign * fraction * 2f32.powi(1 - bias)
    } else {
        sign * (1.0 + fraction) * 2f32.powi(exponent - bias)
    }
}

pub fn encode(data_type: DataType, value: f32) -> u64 {
    if value.is_nan() {
        return nan(data_type);
    }
    match data_type {
        DataType::Float16 => f16::from_f32(value).to_bits() as u64,
        DataType::Bfloat16 => bf16::from_f32(value).to_bits() as u64,
        DataType::Float8e4m3 => nearest(data_type, value, 0x7e),
        DataType::Float8e5m2 if value.is_infinite() => {
            if value > 0.0 {
                0x7c
            } else {
                0xfc
            }
        }
        DataType::Float8e5m2 => nearest(data_type, value, 0x7b),
        _ => value.to_bits() as u64,
    }
}

/// The finite code whose value is nearest, the even one of two.
fn nearest(data_type: DataType, value: f32, largest: u64) -> u64 {
    // Beyond twice the largest every distance would round to the same number.
    let target = (value.abs() as f64).min(2.0 * decode(data_type, largest) as f64);
    let decoded = |code: u64| decode(data_type, code) as f64;
    // Values ascend with their codes, so only the two around the target count.
    let (mut low, mut high) = (0, largest);
    while low < high {
        let middle = (low + high) / 2;
        (low, high) = if decoded(middle) < target { (middle + 1, high) } else { (low, middle) };
    }
    let distance = |code: &u64| (decoded(*code) - target).abs();
    let best = (low.saturating_sub(1)..=low)
        .min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
    best.unwrap() | (value.is_sign_negative() as u64) << 7
}
