//! Floating-point vectors: formats of 8, 16 and 32 bits over f32 registers, and f64.
//!
//! The conversions are written once, over lanes of 32 bits, and compiled for every register, so all
//! paths round alike. A NaN result always has every bit but the sign set, whatever NaN went in and
//! in whatever order: that is also what NVIDIA's hardware answers, and it makes results independent
//! of operand order inside an addition. No conversion depends on denormal f32 operands.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::vector::{Mean, Number, Vector};

/// The bits of +infinity; a magnitude above is a NaN.
const INFINITY: u32 = 0x7f80_0000;
const MAGNITUDE: u32 = 0x7fff_ffff;
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
    /// `if self < other { self } else { other }`, which is x86's `minps`.
    unsafe fn fmin(self, other: Self) -> Self;
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

/// f32 to a sign, an exponent with `BIAS` and `FRACTION` bits (`DROP` = 23 - `FRACTION`): to nearest
/// even; finite values beyond `largest` become it.
#[inline(always)]
unsafe fn narrow<R: Register, const FRACTION: u32, const BIAS: u32, const DROP: u32>(
    value: R,
    largest: u32,
    infinity: u32,
    nan: u32,
) -> R {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let magnitude = value.and(R::splat(MAGNITUDE));
        let sign = value.xor(magnitude).shr::<24>();
        let sign = if FRACTION == 10 { sign.shl::<8>() } else { sign };
        let odd = magnitude.shr::<DROP>().and(R::splat(1));
        let half = R::splat((1 << (DROP - 1)) - 1);
        let rebias = R::splat((127 - BIAS) << FRACTION);
        let normal = magnitude.plus(half).plus(odd).shr::<DROP>().minus(rebias);
        // Adding a number whose last place is the smallest denormal lets the hardware round.
        let magic = R::splat((127 + 24 - BIAS - FRACTION) << 23);
        let denormal = magnitude.fadd(magic).minus(magic);
        let smallest = R::splat((127 - BIAS + 1) << 23);
        let finite = smallest.above(magnitude, denormal, normal);
        let largest = R::splat(largest);
        let bounded = finite.above(largest, largest, finite);
        let bounded = magnitude.above(R::splat(INFINITY - 1), R::splat(infinity), bounded);
        magnitude.above(R::splat(INFINITY), R::splat(nan), bounded.or(sign))
    }
}

/// How a number is written in memory.
pub trait Format: Copy {
    const SIZE: usize;
    unsafe fn decode<R: Register>(bits: R) -> R;
    unsafe fn encode<R: Register>(value: R) -> R;
}

macro_rules! format {
    ($(#[$doc:meta])* $name:ident, $size:expr, |$bits:ident| $decode:expr, |$value:ident| $encode:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name;
        impl Format for $name {
            const SIZE: usize = $size;
            #[inline(always)]
            unsafe fn decode<R: Register>($bits: R) -> R {
                // SAFETY: the caller's promise, handed on.
                unsafe { $decode }
            }
            #[inline(always)]
            unsafe fn encode<R: Register>($value: R) -> R {
                // SAFETY: the caller's promise, handed on.
                unsafe { $encode }
            }
        }
    };
}

#[derive(Clone, Copy)]
pub struct F32;

impl Format for F32 {
    const SIZE: usize = 4;
    #[inline(always)]
    unsafe fn decode<R: Register>(bits: R) -> R {
        bits
    }
    #[inline(always)]
    unsafe fn encode<R: Register>(value: R) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe { value.canonical() }
    }
}

format!(F16, 2, |bits| bits.half_decode(), |value| value.canonical().half_encode());
format!(Bf16, 2, |bits| bits.shl::<16>(), |value| {
    let odd = value.shr::<16>().and(R::splat(1));
    let rounded = value.plus(R::splat(0x7fff)).plus(odd).shr::<16>();
    let magnitude = value.and(R::splat(MAGNITUDE));
    magnitude.above(R::splat(INFINITY), R::splat(0x7fff), rounded)
});
format!(
    /// No infinities, largest 448, NaN 0x7f and 0xff. Overflow saturates, as CUDA's conversions do.
    E4m3, 1,
    |bits| {
        let magnitude = bits.and(R::splat(0x7f));
        let sign = bits.and(R::splat(0x80)).shl::<8>();
        // The bits are those of an f16 whose exponent's bias is 8 greater.
        let value = magnitude.shl::<7>().or(sign).half_decode().fmul(R::splat((127 + 8) << 23));
        magnitude.above(R::splat(0x7e), R::splat(NAN), value)
    },
    |value| narrow::<R, 3, 7, 20>(value, 0x7e, 0x7e, 0x7f)
);
format!(
    /// The upper half of an f16. Finite overflow saturates at 57344, as CUDA's conversions do, but
    /// an infinity stays one: a gradient that overflowed upstream must stay visible.
    E5m2, 1,
    |bits| bits.shl::<8>().half_decode(),
    |value| narrow::<R, 2, 15, 21>(value, 0x7b, 0x7c, 0x7f)
);

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
        unsafe {
            let bits = match F::SIZE {
                1 => R::load::<1>(source),
                2 => R::load::<2>(source),
                _ => R::load::<4>(source),
            };
            Float(F::decode(bits), PhantomData)
        }
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
    /// Each order of operands gives the second one for a NaN and for a pair of zeros; the union of
    /// their bits is then a NaN and -0.
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        Float(unsafe { self.0.fmin(other.0).or(other.0.fmin(self.0)) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let sign = R::splat(SIGN);
            let (a, b) = (self.0.xor(sign), other.0.xor(sign));
            Float(a.fmin(b).or(b.fmin(a)).xor(sign), PhantomData)
        }
    }
}

impl<R: Register, F: Format> Mean for Float<R, F> {
    #[inline(always)]
    unsafe fn divide(self, parts: usize) -> Self {
        // SAFETY: the caller's promise, handed on.
        Float(unsafe { self.0.fdiv(Self::splat(parts as f32).0) }, PhantomData)
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
    /// `if self < other { self } else { other }`.
    unsafe fn fmin(self, other: Self) -> Self;
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
        Double(unsafe { self.0.fmin(other.0).or(other.0.fmin(self.0)) })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let sign = R::splat(1 << 63);
            let (a, b) = (self.0.xor(sign), other.0.xor(sign));
            Double(a.fmin(b).or(b.fmin(a)).xor(sign))
        }
    }
}

impl<R: Register64> Mean for Double<R> {
    #[inline(always)]
    unsafe fn divide(self, parts: usize) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { self.0.fdiv(R::splat((parts as f64).to_bits())) })
    }
    #[inline(always)]
    unsafe fn scale(self, scalar: f64) -> Self {
        // SAFETY: the caller's promise, handed on.
        Double(unsafe { self.0.fmul(R::splat(scalar.to_bits())) })
    }
}
