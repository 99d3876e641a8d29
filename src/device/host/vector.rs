//! The small vector traits that the one generic kernel is written over.
//!
//! A [`Vector`] is a register's worth of elements in the form they are accumulated in: `load`
//! widens and `store` rounds, so an f16 is an f32 between the two.

#![allow(unsafe_code)]

/// Elements in registers, in the accumulator's form.
///
/// The functions of all vector traits are unsafe because an implementation may use instructions
/// that only its own shell has enabled; pointers are valid for `LANES * SIZE` bytes, unaligned.
pub trait Vector: Copy {
    const LANES: usize;
    /// Bytes of one element in memory.
    const SIZE: usize;
    /// Whether `stream` is more than `store`.
    const STREAMS: bool;
    unsafe fn load(source: *const u8) -> Self;
    unsafe fn store(self, target: *mut u8);
    /// As `store`, past the cache; `target` is aligned to `LANES * SIZE`.
    unsafe fn stream(self, target: *mut u8);
}

/// Vectors that can be added, multiplied and compared.
pub trait Number: Vector {
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn min(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
}

/// Vectors with what a mean and a pre-multiplied sum need.
pub trait Mean: Number {
    /// The mean's last step: divide by `divisor`.
    unsafe fn divide(self, divisor: f64) -> Self;
    /// Times `scalar`, rounded to the element's type.
    unsafe fn scale(self, scalar: f64) -> Self;
}

/// Vectors of bits.
pub trait Bits: Vector {
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
}

/// What happens to an element on its way from the sources to the target.
pub trait ElementOp<V: Vector> {
    /// Whether `prepare` and `finish` do anything: the plain kernels leave them out.
    const FULL: bool = false;
    /// Whether kernels for exactly two sources are worth their code: for what most rings do.
    const PAIRS: bool = false;
    unsafe fn combine(accumulator: V, next: V) -> V;
    /// Applied to the one source that a pre-multiplied sum scales.
    unsafe fn prepare(value: V, _scalar: f64) -> V {
        value
    }
    /// Applied once, before the store.
    unsafe fn finish(value: V, _divisor: f64) -> V {
        value
    }
}

macro_rules! operation {
    ($name:ident, $bound:ident, $method:ident, $pairs:expr) => {
        pub struct $name;
        impl<V: $bound> ElementOp<V> for $name {
            const PAIRS: bool = $pairs;
            #[inline(always)]
            unsafe fn combine(accumulator: V, next: V) -> V {
                // SAFETY: the caller's promise, handed on.
                unsafe { accumulator.$method(next) }
            }
        }
    };
}

operation!(Sum, Number, add, true);
operation!(Prod, Number, mul, false);
operation!(Min, Number, min, false);
operation!(Max, Number, max, false);
operation!(And, Bits, and, false);
operation!(Or, Bits, or, false);
operation!(Xor, Bits, xor, false);

/// A sum with a scaled source, a division at the end, or both.
pub struct FullSum;

impl<V: Mean> ElementOp<V> for FullSum {
    const FULL: bool = true;
    #[inline(always)]
    unsafe fn combine(accumulator: V, next: V) -> V {
        // SAFETY: the caller's promise, handed on.
        unsafe { accumulator.add(next) }
    }
    #[inline(always)]
    unsafe fn prepare(value: V, scalar: f64) -> V {
        // SAFETY: the caller's promise, handed on.
        unsafe { value.scale(scalar) }
    }
    #[inline(always)]
    unsafe fn finish(value: V, divisor: f64) -> V {
        // SAFETY: the caller's promise, handed on.
        unsafe { if divisor != 1.0 { value.divide(divisor) } else { value } }
    }
}

/// Integer arithmetic of one element, for the portable vectors and for what SIMD has no
/// instruction for.
pub trait Integer: Copy {
    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_mul(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    /// Towards zero, in a type wide enough for both.
    fn divide(self, divisor: f64) -> Self;
    /// The scalar's whole part, wrapped to the type.
    fn from_scalar(scalar: f64) -> Self;
}

macro_rules! integer {
    ($($type:ty, $wide:ty;)*) => { $(
        impl Integer for $type {
            #[inline(always)]
            fn wrapping_add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn wrapping_mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn divide(self, divisor: f64) -> Self {
                // A divisor beyond the wide type is beyond the dividend too.
                (self as $wide / divisor as $wide) as $type
            }
            #[inline(always)]
            fn from_scalar(scalar: f64) -> Self {
                if scalar < 0.0 { scalar as i64 as $type } else { scalar as u64 as $type }
            }
        }
    )* };
}

integer! {
    i8, i32; u8, u32; i16, i32; u16, u32; i32, i64; u32, u64; i64, i64; u64, u64;
}
