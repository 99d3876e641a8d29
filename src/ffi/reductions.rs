//! The pre-multiplied sums of a communicator: reductions with a factor, which programs make.

use crate::error::{Error, Result};
use crate::ffi::convert;
use crate::ffi::types::*;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicI32, AtomicU64, Ordering::*, fence};
use crate::types::{DataType, ReduceOp};
use std::ffi::c_void;
use std::sync::OnceLock;

/// The first number of a made reduction; the built-in ones stay far below.
const FIRST: i32 = 1024;

/// Where the factor is.
#[derive(Clone, Copy)]
pub enum Factor {
    Known(f64),
    /// The address of a value that is read at every call.
    At(usize),
}

#[derive(Clone, Copy)]
pub struct PreMulSum {
    pub data_type: DataType,
    pub factor: Factor,
}

/// A place for a made reduction. Zeros are a free one.
#[derive(Default)]
struct OpSlot {
    /// The number of what it holds, 0 for nothing.
    number: AtomicI32,
    /// The type's number, and above it whether `factor` is an address.
    kind: AtomicU64,
    /// A number's bits, or an address.
    factor: AtomicU64,
}

/// Places made at a time: more than most programs make reductions.
const PLACES: usize = 16;

#[derive(Default)]
struct Shelf {
    places: [OpSlot; PLACES],
    next: OnceLock<Box<Shelf>>,
}

/// The reductions made on one communicator. Numbers are never used twice, so that one that was
/// destroyed is told apart, and calls look theirs up without a lock.
#[derive(Default)]
pub struct Reductions {
    first: Shelf,
    /// How many were made so far; held by the thread that makes or destroys one.
    made: Mutex<i32>,
}

/// In `OpSlot::kind`: the factor is an address.
const AT: u64 = 1 << 32;

impl OpSlot {
    /// Only by the thread that holds `Reductions::made`.
    fn put(&self, number: i32, made: PreMulSum) {
        let (kind, factor) = match made.factor {
            Factor::Known(factor) => (0, factor.to_bits()),
            Factor::At(address) => (AT, address as u64),
        };
        // Pairs with the Acquire fence in `get`: who sees a word of this one sees that the place
        // was freed.
        fence(Release);
        self.kind.store(kind | made.data_type as u64, Relaxed);
        self.factor.store(factor, Relaxed);
        // Release: pairs with the Acquire in `get`.
        self.number.store(number, Release);
    }

    fn get(&self, number: i32) -> Option<PreMulSum> {
        // Acquire: pairs with the Release in `put`.
        if self.number.load(Acquire) != number {
            return None;
        }
        let (kind, factor) = (self.kind.load(Relaxed), self.factor.load(Relaxed));
        // Pairs with the Release fence in `put`.
        fence(Acquire);
        if self.number.load(Relaxed) != number {
            return None;
        }
        let factor = match kind & AT {
            0 => Factor::Known(f64::from_bits(factor)),
            _ => Factor::At(factor as usize),
        };
        Some(PreMulSum { data_type: DataType::from_raw(kind as i32)?, factor })
    }
}

impl Reductions {
    /// The operation and factor that `raw` stands for on elements of `data_type`.
    #[inline]
    pub fn resolve(&self, raw: RawRedOp, data_type: DataType) -> Result<(ReduceOp, f64)> {
        if raw.0 < FIRST {
            return Ok((convert::reduction(raw, data_type)?, 1.0));
        }
        self.resolve_made(raw, data_type)
    }

    #[cold]
    fn resolve_made(&self, raw: RawRedOp, data_type: DataType) -> Result<(ReduceOp, f64)> {
        let mut places = self.places();
        let found = places.find_map(|place| place.get(raw.0)).ok_or_else(|| never_made(raw))?;
        if found.data_type != data_type {
            return Err(Error::argument(format!(
                "reduction {} was made for {}, not {data_type}",
                raw.0, found.data_type
            )));
        }
        let factor = match found.factor {
            Factor::Known(factor) => factor,
            Factor::At(address) => number(std::ptr::with_exposed_provenance(address), data_type)?,
        };
        Ok((ReduceOp::PreMulSum, factor))
    }

    fn shelves(&self) -> impl Iterator<Item = &Shelf> {
        std::iter::successors(Some(&self.first), |shelf| shelf.next.get().map(Box::as_ref))
    }

    fn places(&self) -> impl Iterator<Item = &OpSlot> {
        self.shelves().flat_map(|shelf| &shelf.places)
    }

    /// The place that holds a number; a free one for 0. Only under the lock.
    fn holding(&self, number: i32) -> Option<&OpSlot> {
        self.places().find(|place| place.number.load(Relaxed) == number)
    }

    pub fn make(&self, made: PreMulSum) -> Result<RawRedOp> {
        let mut count = self.made.lock();
        let number = count.checked_add(FIRST).ok_or_else(|| {
            Error::usage("every number of a made reduction was used; make fewer, and keep them")
        })?;
        *count += 1;
        let place = self.holding(0).unwrap_or_else(|| {
            let last = self.shelves().last().expect("there is a first");
            &last.next.get_or_init(Box::default).places[0]
        });
        place.put(number, made);
        Ok(RawRedOp(number))
    }

    pub fn destroy(&self, raw: RawRedOp) -> Result<()> {
        let _alone = self.made.lock();
        let place = Some(raw.0).filter(|number| *number >= FIRST);
        let place = place.and_then(|number| self.holding(number)).ok_or_else(|| never_made(raw))?;
        place.number.store(0, Relaxed);
        Ok(())
    }
}

fn never_made(raw: RawRedOp) -> Error {
    Error::argument(format!("{} is no reduction of this communicator", raw.0))
}

/// An integer that a factor must hold exactly.
fn exact(value: i128) -> Result<f64> {
    let factor = value as f64;
    if factor as i128 == value {
        Ok(factor)
    } else {
        Err(Error::argument(format!("the factor {value} has more than 53 significant bits")))
    }
}

/// The scalar at `pointer`.
pub fn number(pointer: *const c_void, data_type: DataType) -> Result<f64> {
    use DataType::*;
    fn at<T: Copy>(pointer: *const c_void) -> Result<T> {
        convert::read(pointer.cast(), "scalar")
    }
    let half = |bits| f64::from(half::f16::from_bits(bits));
    Ok(match data_type {
        Int8 => at::<i8>(pointer)?.into(),
        Uint8 => at::<u8>(pointer)?.into(),
        Int16 => at::<i16>(pointer)?.into(),
        Uint16 => at::<u16>(pointer)?.into(),
        Int32 => at::<i32>(pointer)?.into(),
        Uint32 => at::<u32>(pointer)?.into(),
        Int64 => exact(at::<i64>(pointer)?.into())?,
        Uint64 => exact(at::<u64>(pointer)?.into())?,
        Float16 => half(at(pointer)?),
        Bfloat16 => half::bf16::from_bits(at(pointer)?).into(),
        Float32 => at::<f32>(pointer)?.into(),
        Float64 => at(pointer)?,
        // E5M2 is the upper byte of a binary16.
        Float8e5m2 => half(u16::from(at::<u8>(pointer)?) << 8),
        Float8e4m3 => e4m3(at(pointer)?),
        Bool => {
            return Err(Error::argument("a pre-multiplied sum is not defined on bool"));
        }
    })
}

/// The value of an E4M3 number: bias 7, subnormals in steps of 2^-9, one NaN and no infinity.
fn e4m3(bits: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<T>(value: &T, data_type: DataType) -> f64 {
        number((&raw const *value).cast(), data_type).unwrap()
    }

    #[test]
    fn a_made_reduction_lasts_until_it_is_destroyed_and_its_number_never_returns() {
        let all = Reductions::default();
        let make = |factor| all.make(PreMulSum { data_type: DataType::Float32, factor }).unwrap();
        let first = make(Factor::Known(2.5));
        assert_eq!(first.0, 1024);
        assert_eq!(all.resolve(first, DataType::Float32), Ok((ReduceOp::PreMulSum, 2.5)));
        assert!(all.resolve(first, DataType::Float64).is_err());
        all.destroy(first).unwrap();
        assert!(all.destroy(first).is_err());
        assert!(all.resolve(first, DataType::Float32).is_err());
        assert_eq!(make(Factor::Known(1.0)).0, 1025);
        assert_eq!(all.resolve(RawRedOp(0), DataType::Int8), Ok((ReduceOp::Sum, 1.0)));
    }

    #[test]
    fn calls_find_their_reduction_without_a_lock() {
        let all = Reductions::default();
        let factor = |number: usize| Factor::Known(number as f64 / 2.0);
        let made = (0..3 * PLACES).map(|number| {
            let factor = factor(number);
            all.make(PreMulSum { data_type: DataType::Float64, factor }).unwrap()
        });
        let made: Vec<RawRedOp> = made.collect();
        let _held = all.made.lock();
        for (number, op) in made.iter().enumerate() {
            let resolved = all.resolve(*op, DataType::Float64);
            assert_eq!(resolved, Ok((ReduceOp::PreMulSum, number as f64 / 2.0)));
        }
    }

    #[test]
    fn places_are_used_again_and_never_mixed_up() {
        let all = Reductions::default();
        let made = PreMulSum { data_type: DataType::Float64, factor: Factor::Known(0.0) };
        let last = AtomicI32::new(all.make(made).unwrap().0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..3_000_000 {
                    all.destroy(RawRedOp(last.load(SeqCst))).unwrap();
                    let factor = Factor::Known(f64::from(round));
                    last.store(all.make(PreMulSum { factor, ..made }).unwrap().0, SeqCst);
                }
                last.store(0, SeqCst);
            });
            while let number @ FIRST.. = last.load(SeqCst) {
                if let Ok((_, factor)) = all.resolve(RawRedOp(number), DataType::Float64) {
                    assert_eq!(factor, f64::from(number - FIRST));
                }
            }
        });
        assert_eq!(all.shelves().count(), 1);
    }

    #[test]
    fn a_device_scalar_is_read_at_every_call() {
        let all = Reductions::default();
        let scalar = Box::into_raw(Box::new(2f32));
        let op = all
            .make(PreMulSum {
                data_type: DataType::Float32,
                factor: Factor::At(scalar.expose_provenance()),
            })
            .unwrap();
        assert_eq!(all.resolve(op, DataType::Float32).unwrap().1, 2.0);
        convert::out(scalar, "scalar").unwrap().set(3.0);
        assert_eq!(all.resolve(op, DataType::Float32).unwrap().1, 3.0);
        // SAFETY: made by Box::into_raw above and used no more.
        #[allow(unsafe_code)]
        drop(unsafe { Box::from_raw(scalar) });
    }

    #[test]
    fn scalars_of_every_width_are_read() {
        assert_eq!(at(&-3i8, DataType::Int8), -3.0);
        assert_eq!(at(&200u8, DataType::Uint8), 200.0);
        assert_eq!(at(&-300i16, DataType::Int16), -300.0);
        assert_eq!(at(&0x3c00u16, DataType::Float16), 1.0);
        assert_eq!(at(&0x3f80u16, DataType::Bfloat16), 1.0);
        assert_eq!(at(&0x3cu8, DataType::Float8e5m2), 1.0);
        assert_eq!(at(&0.1f64, DataType::Float64), 0.1);
        let (large, odd) = (1i64 << 60, (1i64 << 60) + 1);
        assert_eq!(at(&large, DataType::Int64), large as f64);
        assert!(number((&raw const odd).cast(), DataType::Int64).is_err());
        assert!(number(std::ptr::null(), DataType::Float32).is_err());
    }

    #[test]
    fn e4m3_has_its_published_values() {
        // One, the largest, the smallest normal, the smallest subnormal.
        for (bits, value) in [(0x38, 1.0), (0x7e, 448.0), (0x08, 0.015625), (0x01, 0.001953125)] {
            assert_eq!((e4m3(bits), e4m3(bits | 0x80)), (value, -value));
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0) == 0.0);
    }
}
