//! Vectors of 32 bytes: pairs of NEON registers, with the f16 conversions that every AArch64 has.
//!
//! A pair is what `stnp` stores past the cache, and what eight halves widen into. Intrinsics take
//! one register and the type of its lanes; here they take pairs of whichever type.

#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;
use std::mem::transmute;

use super::Job;
use super::float_vectors::{NAN, NAN64, Register, Register64};
use super::portable::Bytes;
use super::reduce_loop::{ReduceLoop, blocks};
use super::select::Isa;
use super::simd_macros::{integers, isa};
use super::vector::{Bits, ElementOp, Vector};

/// NEON, which is part of AArch64 as Linux knows it.
pub struct Neon;

impl Neon {
    pub fn is_present() -> bool {
        std::arch::is_aarch64_feature_detected!("neon")
    }
}

isa!(Neon, "neon");

/// The low and the high half of a vector.
#[derive(Clone, Copy)]
pub struct Pair(uint8x16_t, uint8x16_t);

#[inline(always)]
unsafe fn load(source: *const u8) -> Pair {
    // SAFETY: `source` holds 32 bytes; the read is unaligned.
    unsafe { source.cast::<Pair>().read_unaligned() }
}

#[inline(always)]
unsafe fn store(target: *mut u8, value: Pair) {
    // SAFETY: `target` holds 32 bytes; the write is unaligned.
    unsafe { target.cast::<Pair>().write_unaligned(value) }
}

/// There is no intrinsic for a non-temporal store.
#[inline(always)]
unsafe fn stream(target: *mut u8, Pair(low, high): Pair) {
    // SAFETY: `target` holds 32 bytes.
    unsafe {
        asm!("stnp {low:q}, {high:q}, [{target}]", low = in(vreg) low, high = in(vreg) high,
             target = in(reg) target, options(nostack, preserves_flags));
    }
}

/// Functions of pairs from intrinsics of registers with `$lanes`.
macro_rules! pairwise {
    ($($lanes:ty: $($name:ident = $intrinsic:ident),*;)*) => { $( $(
        #[inline(always)]
        unsafe fn $name(a: Pair, b: Pair) -> Pair {
            // SAFETY: registers only; all types are of 16 bytes, any bits valid in each.
            unsafe {
                let low = $intrinsic(
                    transmute::<uint8x16_t, $lanes>(a.0),
                    transmute::<uint8x16_t, $lanes>(b.0),
                );
                let high = $intrinsic(
                    transmute::<uint8x16_t, $lanes>(a.1),
                    transmute::<uint8x16_t, $lanes>(b.1),
                );
                Pair(transmute::<$lanes, uint8x16_t>(low), transmute::<$lanes, uint8x16_t>(high))
            }
        }
    )* )* };
}

pairwise! {
    int8x16_t: add_8 = vaddq_s8, mul_8 = vmulq_s8, min_i8 = vminq_s8, max_i8 = vmaxq_s8;
    uint8x16_t: min_u8 = vminq_u8, max_u8 = vmaxq_u8;
    uint8x16_t: and = vandq_u8, or = vorrq_u8, xor = veorq_u8;
    int16x8_t: add_16 = vaddq_s16, mul_16 = vmulq_s16, min_i16 = vminq_s16, max_i16 = vmaxq_s16;
    uint16x8_t: min_u16 = vminq_u16, max_u16 = vmaxq_u16;
    int32x4_t: add_32 = vaddq_s32, sub_32 = vsubq_s32, mul_32 = vmulq_s32;
    int32x4_t: min_i32 = vminq_s32, max_i32 = vmaxq_s32;
    uint32x4_t: min_u32 = vminq_u32, max_u32 = vmaxq_u32;
    int64x2_t: add_64 = vaddq_s64, min_i64 = lesser_s64, max_i64 = greater_s64;
    uint64x2_t: mul_64 = mul_u64, min_u64 = lesser_u64, max_u64 = greater_u64;
    float32x4_t: add_f32 = vaddq_f32, sub_f32 = vsubq_f32, mul_f32 = vmulq_f32;
    float32x4_t: div_f32 = vdivq_f32, min_f32 = vminq_f32, max_f32 = vmaxq_f32;
    float64x2_t: add_f64 = vaddq_f64, mul_f64 = vmulq_f64, div_f64 = vdivq_f64;
    float64x2_t: min_f64 = vminq_f64, max_f64 = vmaxq_f64;
}

/// 64-bit products modulo 2^64 from 32-bit ones: low x low plus both cross products, shifted.
#[inline(always)]
unsafe fn mul_u64(a: uint64x2_t, b: uint64x2_t) -> uint64x2_t {
    // SAFETY: registers only.
    unsafe {
        let swapped = vrev64q_u32(vreinterpretq_u32_u64(a));
        let cross = vpaddlq_u32(vmulq_u32(swapped, vreinterpretq_u32_u64(b)));
        vmlal_u32(vshlq_n_u64::<32>(cross), vmovn_u64(a), vmovn_u64(b))
    }
}

/// What has no instruction for 64 bits: by a mask of where `a > b`.
macro_rules! comparisons {
    ($($lanes:ty, $greater:ident, $select:ident: $min:ident, $max:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $min(a: $lanes, b: $lanes) -> $lanes {
            // SAFETY: registers only.
            unsafe { $select($greater(a, b), b, a) }
        }
        #[inline(always)]
        unsafe fn $max(a: $lanes, b: $lanes) -> $lanes {
            // SAFETY: registers only.
            unsafe { $select($greater(a, b), a, b) }
        }
    )* };
}

comparisons! {
    int64x2_t, vcgtq_s64, vbslq_s64: lesser_s64, greater_s64;
    uint64x2_t, vcgtq_u64, vbslq_u64: lesser_u64, greater_u64;
}

integers! {
    Pair, 32;
    I8, i8, add_8, mul_8, min_i8, max_i8;
    U8, u8, add_8, mul_8, min_u8, max_u8;
    I16, i16, add_16, mul_16, min_i16, max_i16;
    U16, u16, add_16, mul_16, min_u16, max_u16;
    I32, i32, add_32, mul_32, min_i32, max_i32;
    U32, u32, add_32, mul_32, min_u32, max_u32;
    I64, i64, add_64, mul_64, min_i64, max_i64;
    U64, u64, add_64, mul_64, min_u64, max_u64;
}

/// Methods of two operands from functions of pairs.
macro_rules! methods {
    ($vector:ident: $($name:ident = $function:ident),*;) => { $(
        #[inline(always)]
        unsafe fn $name(self, other: Self) -> Self {
            // SAFETY: registers only.
            $vector(unsafe { $function(self.0, other.0) })
        }
    )* };
}

impl Bits for U8 {
    methods! { U8: and = and, or = or, xor = xor; }
}

impl Bytes for U8 {
    #[inline(always)]
    unsafe fn truth(self) -> Self {
        // SAFETY: registers only.
        unsafe {
            let one = vdupq_n_u8(1);
            U8(min_u8(self.0, Pair(one, one)))
        }
    }
}

/// 8 lanes of 32 bits.
#[derive(Clone, Copy)]
pub struct Words(Pair);

impl Words {
    #[inline(always)]
    unsafe fn of(low: uint32x4_t, high: uint32x4_t) -> Words {
        // SAFETY: registers only.
        unsafe { Words(Pair(vreinterpretq_u8_u32(low), vreinterpretq_u8_u32(high))) }
    }
    #[inline(always)]
    unsafe fn halves(self) -> (uint32x4_t, uint32x4_t) {
        // SAFETY: registers only.
        unsafe { (vreinterpretq_u32_u8(self.0.0), vreinterpretq_u32_u8(self.0.1)) }
    }
    #[inline(always)]
    unsafe fn from_16(words: uint16x8_t) -> Words {
        // SAFETY: registers only.
        unsafe { Words::of(vmovl_u16(vget_low_u16(words)), vmovl_high_u16(words)) }
    }
    /// The low 16 bits of each lane.
    #[inline(always)]
    unsafe fn to_16(self) -> uint16x8_t {
        // SAFETY: registers only.
        unsafe {
            let (low, high) = self.halves();
            vcombine_u16(vmovn_u32(low), vmovn_u32(high))
        }
    }
    /// f16 to f32. The intrinsic's type is not in every Rust that compiles this.
    #[inline(always)]
    unsafe fn from_half(half: uint16x8_t) -> Words {
        let (low, high): (uint32x4_t, uint32x4_t);
        // SAFETY: registers only.
        unsafe {
            asm!("fcvtl {low:v}.4s, {half:v}.4h", "fcvtl2 {high:v}.4s, {half:v}.8h",
                 low = out(vreg) low, high = lateout(vreg) high, half = in(vreg) half,
                 options(pure, nomem, nostack, preserves_flags));
            Words::of(low, high)
        }
    }
    /// Every lane shifted to the left; to the right by a negative `count`.
    #[inline(always)]
    unsafe fn shift(self, count: i32) -> Words {
        // SAFETY: registers only.
        unsafe {
            let (low, high) = self.halves();
            Words::of(vshlq_u32(low, vdupq_n_s32(count)), vshlq_u32(high, vdupq_n_s32(count)))
        }
    }
}

impl Register for Words {
    const LANES: usize = 8;
    const STREAMS: bool = true;
    #[inline(always)]
    unsafe fn splat(bits: u32) -> Self {
        // SAFETY: registers only.
        unsafe { Words::of(vdupq_n_u32(bits), vdupq_n_u32(bits)) }
    }
    #[inline(always)]
    unsafe fn load<const SIZE: usize>(source: *const u8) -> Self {
        // SAFETY: `source` holds 8 elements of `SIZE` bytes; the reads are unaligned.
        unsafe {
            match SIZE {
                1 => Words::from_16(vmovl_u8(source.cast::<uint8x8_t>().read_unaligned())),
                2 => Words::from_16(source.cast::<uint16x8_t>().read_unaligned()),
                _ => Words(load(source)),
            }
        }
    }
    #[inline(always)]
    unsafe fn store<const SIZE: usize>(self, target: *mut u8) {
        // SAFETY: `target` holds 8 elements of `SIZE` bytes; the writes are unaligned.
        unsafe {
            match SIZE {
                1 => target.cast::<uint8x8_t>().write_unaligned(vmovn_u16(self.to_16())),
                2 => target.cast::<uint16x8_t>().write_unaligned(self.to_16()),
                _ => store(target, self.0),
            }
        }
    }
    #[inline(always)]
    unsafe fn stream<const SIZE: usize>(self, target: *mut u8) {
        // SAFETY: `target` holds 8 elements of `SIZE` bytes.
        unsafe {
            match SIZE {
                // One register of 8 bytes is no pair.
                1 => self.store::<1>(target),
                2 => {
                    let (low, high) = self.halves();
                    asm!("stnp {low:d}, {high:d}, [{target}]", low = in(vreg) vmovn_u32(low),
                         high = in(vreg) vmovn_u32(high), target = in(reg) target,
                         options(nostack, preserves_flags));
                }
                _ => stream(target, self.0),
            }
        }
    }
    methods! {
        Words: and = and, or = or, xor = xor, plus = add_32, minus = sub_32, least = min_i32,
        fadd = add_f32, fsub = sub_f32, fmul = mul_f32, fdiv = div_f32,
        fmin = min_f32, minimum = min_f32, maximum = max_f32;
    }
    #[inline(always)]
    unsafe fn shl<const SHIFT: u32>(self) -> Self {
        // SAFETY: registers only.
        unsafe { self.shift(SHIFT as i32) }
    }
    #[inline(always)]
    unsafe fn shr<const SHIFT: u32>(self) -> Self {
        // SAFETY: registers only.
        unsafe { self.shift(-(SHIFT as i32)) }
    }
    #[inline(always)]
    unsafe fn above(self, bound: Self, yes: Self, no: Self) -> Self {
        #[inline(always)]
        unsafe fn half(
            a: uint8x16_t,
            b: uint8x16_t,
            yes: uint8x16_t,
            no: uint8x16_t,
        ) -> uint8x16_t {
            // SAFETY: registers only.
            unsafe {
                let mask = vcgtq_s32(vreinterpretq_s32_u8(a), vreinterpretq_s32_u8(b));
                vbslq_u8(vreinterpretq_u8_u32(mask), yes, no)
            }
        }
        // SAFETY: registers only.
        unsafe {
            let low = half(self.0.0, bound.0.0, yes.0.0, no.0.0);
            Words(Pair(low, half(self.0.1, bound.0.1, yes.0.1, no.0.1)))
        }
    }
    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        #[inline(always)]
        unsafe fn half(value: uint32x4_t) -> uint32x4_t {
            // SAFETY: registers only.
            unsafe {
                let float = vreinterpretq_f32_u32(value);
                vbslq_u32(vceqq_f32(float, float), value, vdupq_n_u32(NAN))
            }
        }
        // SAFETY: registers only.
        unsafe {
            let (low, high) = self.halves();
            Words::of(half(low), half(high))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes_as_half<const SHIFT: u32>(source: *const u8) -> Self {
        // SAFETY: `source` holds 8 bytes; the read is unaligned.
        unsafe {
            let words = vmovl_s8(source.cast::<int8x8_t>().read_unaligned());
            let shifted = vshlq_u16(vreinterpretq_u16_s16(words), vdupq_n_s16(SHIFT as i16));
            // The sign was widened into the first bit of the exponent, which 7 bits lack.
            let missing = if SHIFT == 7 { 0x4000 } else { 0 };
            Words::from_half(vbicq_u16(shifted, vdupq_n_u16(missing)))
        }
    }
    #[inline(always)]
    unsafe fn half_decode(self) -> Self {
        // SAFETY: registers only.
        unsafe { Words::from_half(self.to_16()) }
    }
    #[inline(always)]
    unsafe fn half_encode(self) -> Self {
        let half: uint16x8_t;
        // SAFETY: registers only.
        unsafe {
            let (low, high) = self.halves();
            asm!("fcvtn {half:v}.4h, {low:v}.4s", "fcvtn2 {half:v}.8h, {high:v}.4s",
                 half = out(vreg) half, low = in(vreg) low, high = in(vreg) high,
                 options(pure, nomem, nostack, preserves_flags));
            Words::from_16(half)
        }
    }
}

/// 4 lanes of f64.
#[derive(Clone, Copy)]
pub struct Doubles(Pair);

impl Register64 for Doubles {
    const LANES: usize = 4;
    const STREAMS: bool = true;
    #[inline(always)]
    unsafe fn splat(bits: u64) -> Self {
        // SAFETY: registers only.
        unsafe {
            let half = vreinterpretq_u8_u64(vdupq_n_u64(bits));
            Doubles(Pair(half, half))
        }
    }
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: the caller's promise, handed on.
        Doubles(unsafe { load(source) })
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe { store(target, self.0) }
    }
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe { stream(target, self.0) }
    }
    methods! {
        Doubles: or = or, xor = xor, fadd = add_f64, fmul = mul_f64, fdiv = div_f64,
        fmin = min_f64, minimum = min_f64, maximum = max_f64;
    }
    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        #[inline(always)]
        unsafe fn half(value: uint8x16_t) -> uint8x16_t {
            // SAFETY: registers only.
            unsafe {
                let float = vreinterpretq_f64_u8(value);
                let number = vreinterpretq_u8_u64(vceqq_f64(float, float));
                vbslq_u8(number, value, vreinterpretq_u8_u64(vdupq_n_u64(NAN64)))
            }
        }
        // SAFETY: registers only.
        unsafe { Doubles(Pair(half(self.0.0), half(self.0.1))) }
    }
}
