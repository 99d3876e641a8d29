//! Floating-point vectors: all formats of up to 32 bits over f32 registers, and f64.
//!
//! A NaN result always has every bit but the sign set, whatever NaN went in and
//! in whatever order: that is also what NVIDIA's hardware answers, and it makes results independent
//! of operand order inside an addition.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::number_format::{Format, narrow};
use super::vector::{Mean, Number, Vector};

/// The bits of +infinity; a magnitude above is a NaN.
pub const INFINITY: u32 = 0x7f80_0000;
pub const MAGNITUDE: u32 = 0x7fff_ffff;
const SIGN: u32 = 0x8000_0000;
/// A NaN result.
pub const NAN: u32 = 0x7fff_ffff;
/// A NaN result of f64.
pub const NAN64: u64 = 0x7fff_ffff_ffff_ffff;

/// Lanes of 32 bits, taken as unsigned integers or as f32.
///
/// `load1`, `load2`, `load4` zero-extend elements of so many bytes; `store*` keep the low bytes.
pub trait Register: Copy {
    const LANES: usize;
    const STREAMS: bool;
    unsafe fn splat(bits: u32) -> Self;
    unsafe fn load<const SIZE: usize>(source: *const u8) -> Self;
    unsafe fn store<const SIZE: usize>(self, target: *mut u8);
    unsafe fn stream<const SIZE: usize>(self, target: *mut u8);
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn minus(self, other: Self) -> Self;
    unsafe fn shl<const N: u32>(self) -> Self;
    unsafe fn shr<const N: u32>(self) -> Self;
    /// `if self > bound { yes } else { no }`, as signed integers.
    unsafe fn above(self, bound: Self, yes: Self, no: Self) -> Self;
    unsafe fn fadd(self, other: Self) -> Self;
    unsafe fn fsub(self, other: Self) -> Self;
    unsafe fn fmul(self, other: Self) -> Self;
    unsafe fn fdiv(self, other: Self) -> Self;
    /// `if self < other { self } else { other }`, which is x86's `minps`; or `minimum`.
    unsafe fn fmin(self, other: Self) -> Self;
    /// The lesser; NaN if either is, and -0 is less than +0.
    ///
    /// Each order of operands gives the second one for a NaN and for a pair of zeros; the union of
    /// their bits is then a NaN and -0.
    #[inline(always)]
    unsafe fn minimum(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.fmin(other).or(other.fmin(self)) }
    }
    /// The greater; NaN if either is, and +0 is greater than -0.
    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let sign = Self::splat(SIGN);
            self.xor(sign).minimum(other.xor(sign)).xor(sign)
        }
    }
    /// The lesser, as signed integers.
    unsafe fn least(self, other: Self) -> Self;
    /// Bytes taken as f16 that lack 8 bits of fraction (`SHIFT` 8), or 7 bits of fraction and the
    /// first one of the exponent (`SHIFT` 7).
    #[inline(always)]
    unsafe fn load_bytes_as_half<const SHIFT: u32>(source: *const u8) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe { Self::load::<1>(source).byte_as_half::<SHIFT>() }
    }
    /// As `load_bytes_as_half`, from lanes.
    #[inline(always)]
    unsafe fn byte_as_half<const SHIFT: u32>(self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let sign = self.and(Self::splat(0x80)).shl::<8>();
            self.and(Self::splat(0x7f)).shl::<SHIFT>().or(sign).half_decode()
        }
    }
    /// NaN lanes become [`NAN`].
    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let magnitude = self.and(Self::splat(MAGNITUDE));
            magnitude.above(Self::splat(INFINITY), Self::splat(NAN), self)
        }
    }
    /// f16 bits to f32.
    #[inline(always)]
    unsafe fn half_decode(self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let magnitude = self.and(Self::splat(0x7fff)).shl::<13>();
            let sign = self.and(Self::splat(0x8000)).shl::<16>();
            let normal = magnitude.plus(Self::splat((127 - 15) << 23));
            // Give the fraction the exponent of the smallest normal, then take that away.
            let smallest = Self::splat((127 - 14) << 23);
            let denormal = magnitude.plus(smallest).fsub(smallest);
            let finite = Self::splat(1 << 23).above(magnitude, denormal, normal);
            let special = magnitude.or(Self::splat(INFINITY));
            magnitude.above(Self::splat(0x0f7f_ffff), special, finite).or(sign)
        }
    }
    /// f32 to f16 bits: to nearest even, overflow to infinity.
    #[inline(always)]
    unsafe fn half_encode(self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe { narrow::<Self, 10, 15, 13>(self, 0x7c00, 0x7c00, 0x7fff) }
    }
}

/// Elements of format `F`, accumulated in f32.
#[derive(Clone, Copy)]
pub struct Float<R, F>(R, PhantomData<F>);

impl<R: Register, F: Format> Vector for Float<R, F> {
    const LANES: usize = R::LANES;
    const SIZE: usize = F::SIZE;
    const STREAMS: bool = R::STREAMS;
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe { Float(F::load(source), PhantomData) }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let bits = F::encode(self.0);
            match F::SIZE {
                1 => bits.store::<1>(target),
                2 => bits.store::<2>(target),
                _ => bits.store::<4>(target),
            }
        }
    }
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let bits = F::encode(self.0);
            match F::SIZE {
                1 => bits.stream::<1>(target),
                2 => bits.stream::<2>(target),
                _ => bits.stream::<4>(target),
            }
        }
    }
}

impl<R: Register, F: Format> Float<R, F> {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise, handed on.
        Float(unsafe { R::splat(value.to_bits()) }, PhantomData)
    }
}

impl<R: Register, F: Format> Number for Float<R, F> {
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Float(unsafe { self.0.fadd(other.0) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Float(unsafe { self.0.fmul(other.0) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Float(unsafe { self.0.minimum(other.0) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Float(unsafe { self.0.maximum(other.0) }, PhantomData)
    }
}

impl<R: Register, F: Format> Mean for Float<R, F> {
    #[inline(always)]
    unsafe fn divide(self, divisor: f64) -> Self {
        // SAFETY: the caller's promise, handed on.
        Float(unsafe { self.0.fdiv(Self::splat(divisor as f32).0) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn scale(self, scalar: f64) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let product = self.0.fmul(Self::splat(scalar as f32).0);
            Float(F::decode(F::encode(product)), PhantomData)
        }
    }
}

/// Lanes of f64.
pub trait Register64: Copy {
    const LANES: usize;
    const STREAMS: bool;
    unsafe fn splat(bits: u64) -> Self;
    unsafe fn load(source: *const u8) -> Self;
    unsafe fn store(self, target: *mut u8);
    unsafe fn stream(self, target: *mut u8);
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn fadd(self, other: Self) -> Self;
    unsafe fn fmul(self, other: Self) -> Self;
    unsafe fn fdiv(self, other: Self) -> Self;
    /// `if self < other { self } else { other }`; or `minimum`.
    unsafe fn fmin(self, other: Self) -> Self;
    /// As [`Register::minimum`].
    #[inline(always)]
    unsafe fn minimum(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.fmin(other).or(other.fmin(self)) }
    }
    /// As [`Register::maximum`].
    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let sign = Self::splat(1 << 63);
            self.xor(sign).minimum(other.xor(sign)).xor(sign)
        }
    }
    /// NaN lanes become [`NAN64`].
    unsafe fn canonical(self) -> Self;
}

/// Elements of f64.
#[derive(Clone, Copy)]
pub struct Double<R>(R);

impl<R: Register64> Vector for Double<R> {
    const LANES: usize = R::LANES;
    const SIZE: usize = 8;
    const STREAMS: bool = R::STREAMS;
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { R::load(source) })
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.0.canonical().store(target) }
    }
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.0.canonical().stream(target) }
    }
}

impl<R: Register64> Number for Double<R> {
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { self.0.fadd(other.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { self.0.fmul(other.0) })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { self.0.minimum(other.0) })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { self.0.maximum(other.0) })
    }
}

impl<R: Register64> Mean for Double<R> {
    #[inline(always)]
    unsafe fn divide(self, divisor: f64) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { self.0.fdiv(R::splat(divisor.to_bits())) })
    }
    #[inline(always)]
    unsafe fn scale(self, scalar: f64) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { self.0.fmul(R::splat(scalar.to_bits())) })
    }
}
