//! Vectors of 32 bytes: AVX2, with the f16 conversions of F16C.
//!
//! What AVX2 lacks (products of 8 and 64 bits, comparisons of 64 bits, narrowing stores) is put
//! together from what it has.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Job;
use super::float_vectors::{NAN64, Register, Register64};
use super::portable::Bytes;
use super::reduce_loop::{ReduceLoop, blocks};
use super::select::Isa;
use super::simd_macros::{integers, isa};
use super::vector::{Bits, ElementOp, Vector};

/// AVX2 and F16C.
pub struct Avx2;

impl Avx2 {
    pub fn is_present() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }
}

isa!(Avx2, "avx2,f16c");

#[inline(always)]
unsafe fn load(source: *const u8) -> __m256i {
    // SAFETY: the caller's promise, handed on.
    unsafe { _mm256_loadu_si256(source.cast()) }
}

#[inline(always)]
unsafe fn store(target: *mut u8, value: __m256i) {
    // SAFETY: the caller's promise, handed on.
    unsafe { _mm256_storeu_si256(target.cast(), value) }
}

#[inline(always)]
unsafe fn stream(target: *mut u8, value: __m256i) {
    // SAFETY: the caller's promise, handed on.
    unsafe { _mm256_stream_si256(target.cast(), value) }
}

/// 8-bit products: even and odd bytes as 16-bit products whose low halves are kept.
#[inline(always)]
unsafe fn mul8(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: registers only; the shell enables AVX2.
    unsafe {
        let even = _mm256_mullo_epi16(a, b);
        let odd = _mm256_mullo_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
        _mm256_blendv_epi8(even, _mm256_slli_epi16::<8>(odd), _mm256_set1_epi16(-256))
    }
}

/// 64-bit products modulo 2^64 from 32-bit ones: low x low plus both cross products, shifted.
#[inline(always)]
unsafe fn mul64(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: registers only; the shell enables AVX2.
    unsafe {
        let low = _mm256_mul_epu32(a, b);
        let cross = _mm256_add_epi64(
            _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), b),
            _mm256_mul_epu32(a, _mm256_srli_epi64::<32>(b)),
        );
        _mm256_add_epi64(low, _mm256_slli_epi64::<32>(cross))
    }
}

/// The 64-bit lanes of `yes` where `a > b` as signed integers, else those of `no`; `flip` is added
/// to both first, which turns an unsigned comparison into a signed one.
#[inline(always)]
unsafe fn greater(a: __m256i, b: __m256i, flip: i64, yes: __m256i, no: __m256i) -> __m256i {
    // SAFETY: registers only; the shell enables AVX2.
    unsafe {
        let flip = _mm256_set1_epi64x(flip);
        let mask = _mm256_cmpgt_epi64(_mm256_xor_si256(a, flip), _mm256_xor_si256(b, flip));
        _mm256_blendv_epi8(no, yes, mask)
    }
}

macro_rules! comparisons {
    ($($name:ident, $flip:expr, |$a:ident, $b:ident| $yes:ident, $no:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name($a: __m256i, $b: __m256i) -> __m256i {
            // SAFETY: registers only; the shell enables AVX2.
            unsafe { greater($a, $b, $flip, $yes, $no) }
        }
    )* };
}

comparisons! {
    min_i64, 0, |a, b| b, a;
    max_i64, 0, |a, b| a, b;
    min_u64, i64::MIN, |a, b| b, a;
    max_u64, i64::MIN, |a, b| a, b;
}

integers! {
    __m256i, 32;
    I8, i8, _mm256_add_epi8, mul8, _mm256_min_epi8, _mm256_max_epi8;
    U8, u8, _mm256_add_epi8, mul8, _mm256_min_epu8, _mm256_max_epu8;
    I16, i16, _mm256_add_epi16, _mm256_mullo_epi16, _mm256_min_epi16, _mm256_max_epi16;
    U16, u16, _mm256_add_epi16, _mm256_mullo_epi16, _mm256_min_epu16, _mm256_max_epu16;
    I32, i32, _mm256_add_epi32, _mm256_mullo_epi32, _mm256_min_epi32, _mm256_max_epi32;
    U32, u32, _mm256_add_epi32, _mm256_mullo_epi32, _mm256_min_epu32, _mm256_max_epu32;
    I64, i64, _mm256_add_epi64, mul64, min_i64, max_i64;
    U64, u64, _mm256_add_epi64, mul64, min_u64, max_u64;
}

impl Bits for U8 {
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: registers only; the shell enables AVX2.
        U8(unsafe { _mm256_and_si256(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: registers only; the shell enables AVX2.
        U8(unsafe { _mm256_or_si256(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: registers only; the shell enables AVX2.
        U8(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
}

impl Bytes for U8 {
    #[inline(always)]
    unsafe fn truth(self) -> Self {
        // SAFETY: registers only; the shell enables AVX2.
        U8(unsafe { _mm256_min_epu8(self.0, _mm256_set1_epi8(1)) })
    }
}

/// 8 lanes of 32 bits.
#[derive(Clone, Copy)]
pub struct Words(__m256i);

impl Words {
    /// The low 16 bits of each lane.
    #[inline(always)]
    unsafe fn to_16(self) -> __m128i {
        // SAFETY: registers only; the shell enables AVX2.
        unsafe {
            let low = _mm256_and_si256(self.0, _mm256_set1_epi32(0xffff));
            _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low))
        }
    }
    /// The low 8 bits of each lane.
    #[inline(always)]
    unsafe fn to_8(self) -> i64 {
        // SAFETY: registers only; the shell enables AVX2.
        unsafe {
            let words = Words(_mm256_and_si256(self.0, _mm256_set1_epi32(0xff))).to_16();
            _mm_cvtsi128_si64(_mm_packus_epi16(words, words))
        }
    }
}

macro_rules! integer_methods {
    ($($name:ident, $intrinsic:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, other: Self) -> Self {
            // SAFETY: registers only; the shell enables AVX2.
            Words(unsafe { $intrinsic(self.0, other.0) })
        }
    )* };
}

macro_rules! float_methods {
    ($($name:ident, $intrinsic:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, other: Self) -> Self {
            // SAFETY: registers only; the shell enables AVX2.
            unsafe {
                let (a, b) = (_mm256_castsi256_ps(self.0), _mm256_castsi256_ps(other.0));
                Words(_mm256_castps_si256($intrinsic(a, b)))
            }
        }
    )* };
}

impl Register for Words {
    const LANES: usize = 8;
    const STREAMS: bool = true;
    #[inline(always)]
    unsafe fn splat(bits: u32) -> Self {
        // SAFETY: registers only; the shell enables AVX2.
        Words(unsafe { _mm256_set1_epi32(bits as i32) })
    }
    #[inline(always)]
    unsafe fn load<const SIZE: usize>(source: *const u8) -> Self {
        // SAFETY: `source` holds 8 elements of `SIZE` bytes; the loads are unaligned.
        unsafe {
            Words(match SIZE {
                1 => _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast())),
                2 => _mm256_cvtepu16_epi32(_mm_loadu_si128(source.cast())),
                _ => load(source),
            })
        }
    }
    #[inline(always)]
    unsafe fn store<const SIZE: usize>(self, target: *mut u8) {
        // SAFETY: `target` holds 8 elements of `SIZE` bytes; the stores are unaligned.
        unsafe {
            match SIZE {
                1 => target.cast::<i64>().write_unaligned(self.to_8()),
                2 => _mm_storeu_si128(target.cast(), self.to_16()),
                _ => store(target, self.0),
            }
        }
    }
    #[inline(always)]
    unsafe fn stream<const SIZE: usize>(self, target: *mut u8) {
        // SAFETY: as for `store`, and `target` is aligned to 8 elements.
        unsafe {
            match SIZE {
                1 => _mm_stream_si64(target.cast(), self.to_8()),
                2 => _mm_stream_si128(target.cast(), self.to_16()),
                _ => stream(target, self.0),
            }
        }
    }
    integer_methods! {
        and, _mm256_and_si256;
        or, _mm256_or_si256;
        xor, _mm256_xor_si256;
        plus, _mm256_add_epi32;
        minus, _mm256_sub_epi32;
        least, _mm256_min_epi32;
    }
    float_methods! {
        fadd, _mm256_add_ps;
        fsub, _mm256_sub_ps;
        fmul, _mm256_mul_ps;
        fdiv, _mm256_div_ps;
        fmin, _mm256_min_ps;
    }
    #[inline(always)]
    unsafe fn shl<const SHIFT: u32>(self) -> Self {
        // SAFETY: registers only; the shell enables AVX2. The count is the same for all lanes.
        Words(unsafe { _mm256_sll_epi32(self.0, _mm_cvtsi32_si128(SHIFT as i32)) })
    }
    #[inline(always)]
    unsafe fn shr<const SHIFT: u32>(self) -> Self {
        // SAFETY: registers only; the shell enables AVX2. The count is the same for all lanes.
        Words(unsafe { _mm256_srl_epi32(self.0, _mm_cvtsi32_si128(SHIFT as i32)) })
    }
    #[inline(always)]
    unsafe fn above(self, bound: Self, yes: Self, no: Self) -> Self {
        // SAFETY: registers only; the shell enables AVX2.
        unsafe {
            let mask = _mm256_cmpgt_epi32(self.0, bound.0);
            Words(_mm256_blendv_epi8(no.0, yes.0, mask))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes_as_half<const SHIFT: u32>(source: *const u8) -> Self {
        // SAFETY: `source` holds 8 bytes; the load is unaligned.
        unsafe {
            let words = _mm_cvtepi8_epi16(_mm_loadl_epi64(source.cast()));
            let shifted = _mm_sll_epi16(words, _mm_cvtsi32_si128(SHIFT as i32));
            // The sign was widened into the first bit of the exponent, which 7 bits lack.
            let missing = if SHIFT == 7 { 0x4000 } else { 0 };
            let half = _mm_andnot_si128(_mm_set1_epi16(missing), shifted);
            Words(_mm256_castps_si256(_mm256_cvtph_ps(half)))
        }
    }
    #[inline(always)]
    unsafe fn half_decode(self) -> Self {
        // SAFETY: registers only; the shell enables AVX2 and F16C.
        unsafe { Words(_mm256_castps_si256(_mm256_cvtph_ps(self.to_16()))) }
    }
    #[inline(always)]
    unsafe fn half_encode(self) -> Self {
        // SAFETY: registers only; the shell enables AVX2 and F16C.
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_castsi256_ps(self.0));
            Words(_mm256_cvtepu16_epi32(half))
        }
    }
}

/// 4 lanes of f64.
#[derive(Clone, Copy)]
pub struct Doubles(__m256d);

macro_rules! double_methods {
    ($($name:ident, $intrinsic:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, other: Self) -> Self {
            // SAFETY: registers only; the shell enables AVX2.
            Doubles(unsafe { $intrinsic(self.0, other.0) })
        }
    )* };
}

impl Register64 for Doubles {
    const LANES: usize = 4;
    const STREAMS: bool = true;
    #[inline(always)]
    unsafe fn splat(bits: u64) -> Self {
        // SAFETY: registers only; the shell enables AVX2.
        Doubles(unsafe { _mm256_set1_pd(f64::from_bits(bits)) })
    }
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: `source` holds 4 elements; the load is unaligned.
        Doubles(unsafe { _mm256_loadu_pd(source.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: `target` holds 4 elements; the store is unaligned.
        unsafe { _mm256_storeu_pd(target.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: `target` holds 4 elements and is aligned to them.
        unsafe { _mm256_stream_pd(target.cast(), self.0) }
    }
    double_methods! {
        or, _mm256_or_pd;
        xor, _mm256_xor_pd;
        fadd, _mm256_add_pd;
        fmul, _mm256_mul_pd;
        fdiv, _mm256_div_pd;
        fmin, _mm256_min_pd;
    }
    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        // SAFETY: registers only; the shell enables AVX2.
        unsafe {
            let mask = _mm256_cmp_pd::<_CMP_UNORD_Q>(self.0, self.0);
            Doubles(_mm256_blendv_pd(self.0, _mm256_set1_pd(f64::from_bits(NAN64)), mask))
        }
    }
}
