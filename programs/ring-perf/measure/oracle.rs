//! The oracle's arithmetic: one element at a time, in rank order, as plainly as it can be said.
//!
//! Elements are their raw bits in a `u64`. Nothing here is shared with the library, so that an
//! error there cannot hide behind the same error here.

use half::{bf16, f16};
use ringcomm::types::{DataType, ReduceOp};

/// Fold the ranks' elements, first to last. `scalars` are the factors of a pre-multiplied sum.
///
/// The narrow floats are folded in single precision and rounded once.
pub fn reduce(data_type: DataType, op: ReduceOp, elements: &[u64], scalars: &[f64]) -> u64 {
    match data_type {
        DataType::Bool => u64::from(fold_bool(op, elements)),
        DataType::Float64 => fold(
            elements.iter().map(|bits| f64::from_bits(*bits)),
            scalars.iter().copied(),
            op,
            elements.len() as f64,
        )
        .to_bits(),
        _ if data_type.is_float() => {
            let values = elements.iter().map(|bits| decode(data_type, *bits));
            let scalars = scalars.iter().map(|scalar| *scalar as f32);
            encode(data_type, fold(values, scalars, op, elements.len() as f32))
        }
        _ => fold_integer(data_type, op, elements, scalars),
    }
}

/// What `fold` needs of a float.
trait Real:
    Copy
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    fn is_nan(self) -> bool;
}

impl Real for f32 {
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }
}

impl Real for f64 {
    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
}

fn fold<T: Real>(
    values: impl Iterator<Item = T>,
    scalars: impl Iterator<Item = T>,
    op: ReduceOp,
    count: T,
) -> T {
    let step = |a: T, b: T| match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => a + b,
        ReduceOp::Prod => a * b,
        // A NaN wins: a lost one would hide an overflow somewhere in the job.
        ReduceOp::Max if a.is_nan() || (!b.is_nan() && a >= b) => a,
        ReduceOp::Min if a.is_nan() || (!b.is_nan() && a <= b) => a,
        ReduceOp::Max | ReduceOp::Min => b,
        ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => unreachable!("not for floats"),
    };
    let total = if op == ReduceOp::PreMulSum {
        values.zip(scalars).map(|(value, scalar)| value * scalar).reduce(step)
    } else {
        values.reduce(step)
    }
    .expect("at least one rank");
    if op == ReduceOp::Avg { total / count } else { total }
}

fn fold_bool(op: ReduceOp, elements: &[u64]) -> bool {
    let mut values = elements.iter().map(|bits| *bits != 0);
    match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::Bor => values.any(|value| value),
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::Band => values.all(|value| value),
        ReduceOp::Bxor => values.fold(false, |a, b| a ^ b),
        ReduceOp::Avg | ReduceOp::PreMulSum => unreachable!("not for bool"),
    }
}

/// Integers wrap to their width after every step; a mean is that of the wrapped sum.
fn fold_integer(data_type: DataType, op: ReduceOp, elements: &[u64], scalars: &[f64]) -> u64 {
    use DataType::*;
    let signed = matches!(data_type, Int8 | Int16 | Int32 | Int64);
    // i128 holds every element of every type, so order and division need no cases.
    let wrap = |value: i128| match (data_type.size(), signed) {
        (1, true) => i128::from(value as i8),
        (1, false) => i128::from(value as u8),
        (2, true) => i128::from(value as i16),
        (2, false) => i128::from(value as u16),
        (4, true) => i128::from(value as i32),
        (4, false) => i128::from(value as u32),
        (_, true) => i128::from(value as i64),
        (_, false) => i128::from(value as u64),
    };
    let scaled = |(rank, bits): (usize, &u64)| match op {
        ReduceOp::PreMulSum => wrap(wrap(i128::from(*bits)) * scalars[rank] as i128),
        _ => wrap(i128::from(*bits)),
    };
    let step = |a: i128, b: i128| {
        wrap(match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => a + b,
            ReduceOp::Prod => a.wrapping_mul(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::Band => a & b,
            ReduceOp::Bor => a | b,
            ReduceOp::Bxor => a ^ b,
        })
    };
    let total = elements.iter().enumerate().map(scaled).reduce(step).expect("at least one rank");
    let total = if op == ReduceOp::Avg { total / elements.len() as i128 } else { total };
    total as u64 & mask(data_type)
}

/// The bits that an element of the type has.
pub fn mask(data_type: DataType) -> u64 {
    u64::MAX >> (64 - 8 * data_type.size())
}

/// Exponent and fraction bits of a float type.
pub fn fields(data_type: DataType) -> (u32, u32) {
    match data_type {
        DataType::Float8e4m3 => (4, 3),
        DataType::Float8e5m2 => (5, 2),
        DataType::Float16 => (5, 10),
        DataType::Bfloat16 => (8, 7),
        DataType::Float32 => (8, 23),
        DataType::Float64 => (11, 52),
        other => unreachable!("{other} is not a float"),
    }
}

pub fn is_nan(data_type: DataType, bits: u64) -> bool {
    match data_type {
        DataType::Float64 => f64::from_bits(bits).is_nan(),
        _ => data_type.is_float() && decode(data_type, bits).is_nan(),
    }
}

/// The value of a float of at most 32 bits, which single precision holds exactly.
fn decode(data_type: DataType, bits: u64) -> f32 {
    match data_type {
        DataType::Float32 => f32::from_bits(bits as u32),
        DataType::Float16 => f16::from_bits(bits as u16).to_f32(),
        DataType::Bfloat16 => bf16::from_bits(bits as u16).to_f32(),
        DataType::Float8e5m2 => f16::from_bits((bits as u16) << 8).to_f32(),
        DataType::Float8e4m3 => {
            let (exponent, fraction) = ((bits >> 3) & 15, (bits & 7) as f32);
            let magnitude = match (exponent, bits & 7) {
                (15, 7) => f32::NAN,
                (0, _) => fraction * 2f32.powi(-9),
                _ => (8.0 + fraction) * 2f32.powi(exponent as i32 - 10),
            };
            if bits & 0x80 != 0 { -magnitude } else { magnitude }
        }
        other => unreachable!("{other} is not such a float"),
    }
}

fn encode(data_type: DataType, value: f32) -> u64 {
    match data_type {
        DataType::Float32 => u64::from(value.to_bits()),
        DataType::Float16 => u64::from(f16::from_f32(value).to_bits()),
        DataType::Bfloat16 => u64::from(bf16::from_f32(value).to_bits()),
        _ => encode_byte(data_type, value),
    }
}

/// An 8-bit float by looking at all of them: the nearest, of two equally near the even one.
fn encode_byte(data_type: DataType, value: f32) -> u64 {
    if value.is_nan() {
        return 0x7f;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let distance = |bits: u64| (decode(data_type, bits) - value.abs()).abs();
    let finite = (0..128u64).filter(|bits| decode(data_type, *bits).is_finite());
    let nearest =
        finite.min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
    sign | nearest.expect("there are finite values")
}

/// An element for people: its value, and its bits where the value alone would not tell.
pub fn show(data_type: DataType, bits: u64) -> String {
    let bits = bits & mask(data_type);
    let width = 2 * data_type.size();
    match data_type {
        DataType::Float64 => format!("{:e} (0x{bits:0width$x})", f64::from_bits(bits)),
        _ if data_type.is_float() => format!("{:e} (0x{bits:0width$x})", decode(data_type, bits)),
        DataType::Int8 => format!("{}", bits as i8),
        DataType::Int16 => format!("{}", bits as i16),
        DataType::Int32 => format!("{}", bits as i32),
        DataType::Int64 => format!("{}", bits as i64),
        _ => format!("{bits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_go_round() {
        for data_type in [DataType::Float8e4m3, DataType::Float8e5m2] {
            for bits in 0..256u64 {
                let value = decode(data_type, bits);
                if value.is_finite() {
                    assert_eq!(encode(data_type, value), bits, "{data_type} {bits:#x}");
                }
            }
        }
        assert_eq!(decode(DataType::Float8e4m3, 0x7e), 448.0);
        assert_eq!(decode(DataType::Float8e5m2, 0x7b), 57344.0);
        // Halfway between 1.0 (0x38) and 1.125 (0x39): the even one.
        assert_eq!(encode(DataType::Float8e4m3, 1.0625), 0x38);
    }

    #[test]
    fn integers_wrap_and_means_truncate() {
        let minus_one = (-1i8) as u8 as u64;
        let sum = reduce(DataType::Int8, ReduceOp::Sum, &[127, 1], &[]);
        assert_eq!(sum as u8 as i8, -128);
        let mean = reduce(DataType::Int8, ReduceOp::Avg, &[minus_one, 0], &[]);
        assert_eq!(mean, 0);
        let scaled = reduce(DataType::Uint16, ReduceOp::PreMulSum, &[3, 5], &[1.0, 2.0]);
        assert_eq!(scaled, 13);
        assert_eq!(reduce(DataType::Bool, ReduceOp::Sum, &[2, 255], &[]), 1);
    }

    #[test]
    fn a_nan_is_never_lost() {
        let nan = u64::from(f32::NAN.to_bits());
        let one = u64::from(1f32.to_bits());
        for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum] {
            for elements in [[nan, one], [one, nan]] {
                assert!(is_nan(DataType::Float32, reduce(DataType::Float32, op, &elements, &[])));
            }
        }
    }
}
