//! Vectors for any processor: short arrays that the compiler keeps in registers.
//!
//! Sixteen bytes map onto what every 64-bit target has (SSE2, NEON), one lane serves what is
//! shorter than a vector, and both are the reference that all other vectors must equal bit for bit.

#![allow(unsafe_code)]

use super::float_vectors::{NAN64, Register, Register64};
use super::vector::{Bits, Integer, Mean, Number, Vector};

/// `N` integers.
#[derive(Clone, Copy)]
pub struct Lanes<T, const N: usize>([T; N]);

impl<T: Copy, const N: usize> Lanes<T, N> {
    #[inline(always)]
    fn zip(self, other: Self, apply: impl Fn(T, T) -> T) -> Self {
        Lanes(std::array::from_fn(|lane| apply(self.0[lane], other.0[lane])))
    }
}

impl<T: Integer, const N: usize> Vector for Lanes<T, N> {
    const LANES: usize = N;
    const STREAMS: bool = false;
    const SIZE: usize = size_of::<T>();
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: `source` holds `N` elements; the read is unaligned.
        unsafe { source.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: `target` holds `N` elements; the write is unaligned.
        unsafe { target.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: as for `store`.
        unsafe { self.store(target) }
    }
}

impl<T: Integer, const N: usize> Number for Lanes<T, N> {
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, T::wrapping_add)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, T::wrapping_mul)
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, T::least)
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, T::greatest)
    }
}

impl<T: Integer, const N: usize> Mean for Lanes<T, N> {
    #[inline(always)]
    unsafe fn divide(self, divisor: f64) -> Self {
        Lanes(self.0.map(|value| value.divide(divisor)))
    }
    #[inline(always)]
    unsafe fn scale(self, scalar: f64) -> Self {
        let factor = T::from_scalar(scalar);
        Lanes(self.0.map(|value| value.wrapping_mul(factor)))
    }
}

impl<const N: usize> Bits for Lanes<u8, N> {
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }
}

/// Truth values in bytes of vector `B`: any non-zero byte loads as 1.
#[derive(Clone, Copy)]
pub struct Truth<B>(B);

/// Bytes that can be compared, which is how a truth value is read.
pub trait Bytes: Bits {
    /// 1 in each lane that is not 0.
    unsafe fn truth(self) -> Self;
}

impl<const N: usize> Bytes for Lanes<u8, N> {
    #[inline(always)]
    unsafe fn truth(self) -> Self {
        Lanes(self.0.map(|byte| byte.min(1)))
    }
}

impl<B: Bytes> Vector for Truth<B> {
    const LANES: usize = B::LANES;
    const STREAMS: bool = B::STREAMS;
    const SIZE: usize = 1;
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: the caller's promise, handed on.
        Truth(unsafe { B::load(source).truth() })
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.0.store(target) }
    }
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.0.stream(target) }
    }
}

impl<B: Bytes> Bits for Truth<B> {
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Truth(unsafe { self.0.and(other.0) })
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Truth(unsafe { self.0.or(other.0) })
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Truth(unsafe { self.0.xor(other.0) })
    }
}

/// `N` lanes of 32 bits.
#[derive(Clone, Copy)]
pub struct Words<const N: usize>([u32; N]);

impl<const N: usize> Words<N> {
    #[inline(always)]
    fn zip(self, other: Self, apply: impl Fn(u32, u32) -> u32) -> Self {
        Words(std::array::from_fn(|lane| apply(self.0[lane], other.0[lane])))
    }
    #[inline(always)]
    fn floats(self, other: Self, apply: impl Fn(f32, f32) -> f32) -> Self {
        self.zip(other, |a, b| apply(f32::from_bits(a), f32::from_bits(b)).to_bits())
    }
}

impl<const N: usize> Register for Words<N> {
    const LANES: usize = N;
    const STREAMS: bool = false;
    #[inline(always)]
    unsafe fn splat(bits: u32) -> Self {
        Words([bits; N])
    }
    #[inline(always)]
    unsafe fn load<const SIZE: usize>(source: *const u8) -> Self {
        // SAFETY: `source` holds `N` elements of `SIZE` bytes; the reads are unaligned.
        unsafe {
            match SIZE {
                1 => Words(source.cast::<[u8; N]>().read_unaligned().map(u32::from)),
                2 => Words(source.cast::<[u16; N]>().read_unaligned().map(u32::from)),
                _ => source.cast::<Self>().read_unaligned(),
            }
        }
    }
    #[inline(always)]
    unsafe fn store<const SIZE: usize>(self, target: *mut u8) {
        // SAFETY: `target` holds `N` elements of `SIZE` bytes; the writes are unaligned.
        unsafe {
            match SIZE {
                1 => target.cast::<[u8; N]>().write_unaligned(self.0.map(|bits| bits as u8)),
                2 => target.cast::<[u16; N]>().write_unaligned(self.0.map(|bits| bits as u16)),
                _ => target.cast::<Self>().write_unaligned(self),
            }
        }
    }
    #[inline(always)]
    unsafe fn stream<const SIZE: usize>(self, target: *mut u8) {
        // SAFETY: as for `store`.
        unsafe { self.store::<SIZE>(target) }
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        self.zip(other, u32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn minus(self, other: Self) -> Self {
        self.zip(other, u32::wrapping_sub)
    }
    #[inline(always)]
    unsafe fn least(self, other: Self) -> Self {
        self.zip(other, |a, b| (a as i32).min(b as i32) as u32)
    }
    #[inline(always)]
    unsafe fn shl<const SHIFT: u32>(self) -> Self {
        Words(self.0.map(|bits| bits << SHIFT))
    }
    #[inline(always)]
    unsafe fn shr<const SHIFT: u32>(self) -> Self {
        Words(self.0.map(|bits| bits >> SHIFT))
    }
    #[inline(always)]
    unsafe fn above(self, bound: Self, yes: Self, no: Self) -> Self {
        Words(std::array::from_fn(|lane| {
            if self.0[lane] as i32 > bound.0[lane] as i32 { yes.0[lane] } else { no.0[lane] }
        }))
    }
    #[inline(always)]
    unsafe fn fadd(self, other: Self) -> Self {
        self.floats(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn fsub(self, other: Self) -> Self {
        self.floats(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn fmul(self, other: Self) -> Self {
        self.floats(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn fdiv(self, other: Self) -> Self {
        self.floats(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fmin(self, other: Self) -> Self {
        self.floats(other, |a, b| if a < b { a } else { b })
    }
}

/// `N` lanes of f64.
#[derive(Clone, Copy)]
pub struct Doubles<const N: usize>([f64; N]);

impl<const N: usize> Doubles<N> {
    #[inline(always)]
    fn zip(self, other: Self, apply: impl Fn(f64, f64) -> f64) -> Self {
        Doubles(std::array::from_fn(|lane| apply(self.0[lane], other.0[lane])))
    }
}

impl<const N: usize> Register64 for Doubles<N> {
    const LANES: usize = N;
    const STREAMS: bool = false;
    #[inline(always)]
    unsafe fn splat(bits: u64) -> Self {
        Doubles([f64::from_bits(bits); N])
    }
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: `source` holds `N` elements; the read is unaligned.
        unsafe { source.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: `target` holds `N` elements; the write is unaligned.
        unsafe { target.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: as for `store`.
        unsafe { self.store(target) }
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| f64::from_bits(a.to_bits() | b.to_bits()))
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| f64::from_bits(a.to_bits() ^ b.to_bits()))
    }
    #[inline(always)]
    unsafe fn fadd(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn fmul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn fdiv(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fmin(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        Doubles(self.0.map(|x| if x.is_nan() { f64::from_bits(NAN64) } else { x }))
    }
}
