//! Number formats: how f32, f16, bf16 and the 8-bit floats are written in memory.
//!
//! The conversions are written once, over lanes of 32 bits, and compiled for every register, so all
//! paths round alike: to nearest, ties to even. None depends on how the processor is set to treat
//! denormal f32 numbers.

#![allow(unsafe_code)]

use super::float_vectors::{INFINITY, MAGNITUDE, NAN, Register};

/// f32 to a sign, an exponent with `BIAS` and `FRACTION` bits (`DROP` = 23 - `FRACTION`): to
/// nearest even; finite values beyond `largest` become it.
#[inline(always)]
pub unsafe fn narrow<R: Register, const FRACTION: u32, const BIAS: u32, const DROP: u32>(
    value: R,
    largest: u32,
    infinity: u32,
    nan: u32,
) -> R {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let magnitude = value.and(R::splat(MAGNITUDE));
        let sign = match FRACTION {
            10 => value.shr::<16>().and(R::splat(0x8000)),
            _ => value.shr::<24>().and(R::splat(0x80)),
        };
        // Half a place less one, and the new bias, in one constant.
        let round = (1u32 << (DROP - 1)) - 1;
        let rebias = R::splat(round.wrapping_sub((127 - BIAS) << 23));
        let odd = magnitude.shr::<DROP>().and(R::splat(1));
        let normal = magnitude.plus(rebias).plus(odd).shr::<DROP>();
        // Adding a number whose last place is the smallest denormal lets the hardware round.
        let magic = R::splat((127 + 24 - BIAS - FRACTION) << 23);
        let denormal = magnitude.fadd(magic).minus(magic);
        let smallest = R::splat((127 - BIAS + 1) << 23);
        let finite = smallest.above(magnitude, denormal, normal);
        let mut bounded = finite.least(R::splat(largest));
        if infinity != largest {
            bounded = magnitude.above(R::splat(INFINITY - 1), R::splat(infinity), bounded);
        }
        magnitude.above(R::splat(INFINITY), R::splat(nan), bounded.or(sign))
    }
}

/// How a number is written in memory.
pub trait Format: Copy {
    const SIZE: usize;
    #[inline(always)]
    unsafe fn load<R: Register>(source: *const u8) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            Self::decode(match Self::SIZE {
                1 => R::load::<1>(source),
                2 => R::load::<2>(source),
                _ => R::load::<4>(source),
            })
        }
    }
    unsafe fn decode<R: Register>(bits: R) -> R;
    unsafe fn encode<R: Register>(value: R) -> R;
}

macro_rules! format {
    ($name:ident, $size:expr, |$bits:ident| $decode:expr, |$value:ident| $encode:expr) => {
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
/// No infinities, largest 448, NaN 0x7f and 0xff. Overflow saturates, as CUDA's conversions do.
#[derive(Clone, Copy)]
pub struct E4m3;

impl E4m3 {
    /// From an f16 that holds the bits, whose exponent's bias is 8 greater; the code of NaN comes
    /// out as 480.
    #[inline(always)]
    unsafe fn from_half<R: Register>(half: R) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let value = half.fmul(R::splat((127 + 8) << 23));
            let magnitude = value.and(R::splat(MAGNITUDE));
            magnitude.above(R::splat(448f32.to_bits()), R::splat(NAN), value)
        }
    }
}

impl Format for E4m3 {
    const SIZE: usize = 1;
    #[inline(always)]
    unsafe fn load<R: Register>(source: *const u8) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe { Self::from_half(R::load_bytes_as_half::<7>(source)) }
    }
    #[inline(always)]
    unsafe fn decode<R: Register>(bits: R) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe { Self::from_half(bits.byte_as_half::<7>()) }
    }
    #[inline(always)]
    unsafe fn encode<R: Register>(value: R) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe { narrow::<R, 3, 7, 20>(value, 0x7e, 0x7e, 0x7f) }
    }
}

/// The upper half of an f16. Finite overflow saturates at 57344, as CUDA's conversions do, but an
/// infinity stays one: a gradient that overflowed upstream must stay visible.
#[derive(Clone, Copy)]
pub struct E5m2;

impl Format for E5m2 {
    const SIZE: usize = 1;
    #[inline(always)]
    unsafe fn load<R: Register>(source: *const u8) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe { R::load_bytes_as_half::<8>(source) }
    }
    #[inline(always)]
    unsafe fn decode<R: Register>(bits: R) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe { bits.byte_as_half::<8>() }
    }
    #[inline(always)]
    unsafe fn encode<R: Register>(value: R) -> R {
        // SAFETY: the caller's promise, handed on.
        unsafe { narrow::<R, 2, 15, 21>(value, 0x7b, 0x7c, 0x7f) }
    }
}
