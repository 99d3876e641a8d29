//! Vectors of 64 bytes: AVX-512 with the byte, word and quadword instructions.
//!
//! Conversions of f16 are the hardware's; bf16's are not, because `vcvtneps2bf16` flushes
//! denormals.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Job;
use super::float_vectors::{NAN, NAN64, Register, Register64};
use super::portable::Bytes;
use super::reduce_loop::{ReduceLoop, blocks};
use super::select::Isa;
use super::simd_macros::{integers, isa};
use super::vector::{Bits, ElementOp, Vector};

/// AVX-512 F, BW, DQ, VL.
pub struct Avx512;

impl Avx512 {
    pub fn is_present() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    }
}

isa!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl");

#[inline(always)]
unsafe fn load(source: *const u8) -> __m512i {
    // SAFETY: the caller's promise, handed on.
    unsafe { _mm512_loadu_si512(source.cast()) }
}

#[inline(always)]
unsafe fn store(target: *mut u8, value: __m512i) {
    // SAFETY: the caller's promise, handed on.
    unsafe { _mm512_storeu_si512(target.cast(), value) }
}

#[inline(always)]
unsafe fn stream(target: *mut u8, value: __m512i) {
    // SAFETY: the caller's promise, handed on.
    unsafe { _mm512_stream_si512(target.cast(), value) }
}

/// 8-bit products: even and odd bytes as 16-bit products whose low halves are kept.
#[inline(always)]
unsafe fn mul8(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: registers only; the shell enables AVX-512.
    unsafe {
        let even = _mm512_mullo_epi16(a, b);
        let odd = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(a), _mm512_srli_epi16::<8>(b));
        _mm512_mask_blend_epi8(0xaaaa_aaaa_aaaa_aaaa, even, _mm512_slli_epi16::<8>(odd))
    }
}

integers! {
    __m512i, 64;
    I8, i8, _mm512_add_epi8, mul8, _mm512_min_epi8, _mm512_max_epi8;
    U8, u8, _mm512_add_epi8, mul8, _mm512_min_epu8, _mm512_max_epu8;
    I16, i16, _mm512_add_epi16, _mm512_mullo_epi16, _mm512_min_epi16, _mm512_max_epi16;
    U16, u16, _mm512_add_epi16, _mm512_mullo_epi16, _mm512_min_epu16, _mm512_max_epu16;
    I32, i32, _mm512_add_epi32, _mm512_mullo_epi32, _mm512_min_epi32, _mm512_max_epi32;
    U32, u32, _mm512_add_epi32, _mm512_mullo_epi32, _mm512_min_epu32, _mm512_max_epu32;
    I64, i64, _mm512_add_epi64, _mm512_mullo_epi64, _mm512_min_epi64, _mm512_max_epi64;
    U64, u64, _mm512_add_epi64, _mm512_mullo_epi64, _mm512_min_epu64, _mm512_max_epu64;
}

impl Bits for U8 {
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        U8(unsafe { _mm512_and_si512(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        U8(unsafe { _mm512_or_si512(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        U8(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
}

impl Bytes for U8 {
    #[inline(always)]
    unsafe fn truth(self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        U8(unsafe { _mm512_min_epu8(self.0, _mm512_set1_epi8(1)) })
    }
}

/// 16 lanes of 32 bits.
#[derive(Clone, Copy)]
pub struct Words(__m512i);

macro_rules! integer_methods {
    ($($name:ident, $intrinsic:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, other: Self) -> Self {
            // SAFETY: registers only; the shell enables AVX-512.
            Words(unsafe { $intrinsic(self.0, other.0) })
        }
    )* };
}

macro_rules! float_methods {
    ($($name:ident, $intrinsic:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, other: Self) -> Self {
            // SAFETY: registers only; the shell enables AVX-512.
            unsafe {
                let (a, b) = (_mm512_castsi512_ps(self.0), _mm512_castsi512_ps(other.0));
                Words(_mm512_castps_si512($intrinsic(a, b)))
            }
        }
    )* };
}

impl Register for Words {
    const LANES: usize = 16;
    const STREAMS: bool = true;
    #[inline(always)]
    unsafe fn splat(bits: u32) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        Words(unsafe { _mm512_set1_epi32(bits as i32) })
    }
    #[inline(always)]
    unsafe fn load<const SIZE: usize>(source: *const u8) -> Self {
        // SAFETY: `source` holds 16 elements of `SIZE` bytes; the loads are unaligned.
        unsafe {
            Words(match SIZE {
                1 => _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast())),
                2 => _mm512_cvtepu16_epi32(_mm256_loadu_si256(source.cast())),
                _ => load(source),
            })
        }
    }
    #[inline(always)]
    unsafe fn store<const SIZE: usize>(self, target: *mut u8) {
        // SAFETY: `target` holds 16 elements of `SIZE` bytes; the stores are unaligned.
        unsafe {
            match SIZE {
                1 => _mm_storeu_si128(target.cast(), _mm512_cvtepi32_epi8(self.0)),
                2 => _mm256_storeu_si256(target.cast(), _mm512_cvtepi32_epi16(self.0)),
                _ => store(target, self.0),
            }
        }
    }
    #[inline(always)]
    unsafe fn stream<const SIZE: usize>(self, target: *mut u8) {
        // SAFETY: as for `store`, and `target` is aligned to 16 elements.
        unsafe {
            match SIZE {
                1 => _mm_stream_si128(target.cast(), _mm512_cvtepi32_epi8(self.0)),
                2 => _mm256_stream_si256(target.cast(), _mm512_cvtepi32_epi16(self.0)),
                _ => stream(target, self.0),
            }
        }
    }
    integer_methods! {
        and, _mm512_and_si512;
        or, _mm512_or_si512;
        xor, _mm512_xor_si512;
        plus, _mm512_add_epi32;
        minus, _mm512_sub_epi32;
        least, _mm512_min_epi32;
    }
    float_methods! {
        fadd, _mm512_add_ps;
        fsub, _mm512_sub_ps;
        fmul, _mm512_mul_ps;
        fdiv, _mm512_div_ps;
        fmin, _mm512_min_ps;
    }
    #[inline(always)]
    unsafe fn shl<const SHIFT: u32>(self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        Words(unsafe { _mm512_slli_epi32::<SHIFT>(self.0) })
    }
    #[inline(always)]
    unsafe fn shr<const SHIFT: u32>(self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        Words(unsafe { _mm512_srli_epi32::<SHIFT>(self.0) })
    }
    #[inline(always)]
    unsafe fn above(self, bound: Self, yes: Self, no: Self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        unsafe {
            let mask = _mm512_cmpgt_epi32_mask(self.0, bound.0);
            Words(_mm512_mask_mov_epi32(no.0, mask, yes.0))
        }
    }
    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        unsafe {
            let value = _mm512_castsi512_ps(self.0);
            let mask = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            Words(_mm512_mask_mov_epi32(self.0, mask, _mm512_set1_epi32(NAN as i32)))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes_as_half<const SHIFT: u32>(source: *const u8) -> Self {
        // SAFETY: `source` holds 16 bytes; the load is unaligned.
        unsafe {
            let words = _mm256_cvtepi8_epi16(_mm_loadu_si128(source.cast()));
            let shifted = _mm256_sll_epi16(words, _mm_cvtsi32_si128(SHIFT as i32));
            // The sign was widened into the first bit of the exponent, which 7 bits lack.
            let missing = if SHIFT == 7 { 0x4000 } else { 0 };
            let half = _mm256_andnot_si256(_mm256_set1_epi16(missing), shifted);
            Words(_mm512_castps_si512(_mm512_cvtph_ps(half)))
        }
    }
    #[inline(always)]
    unsafe fn half_decode(self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        unsafe { Words(_mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(self.0)))) }
    }
    #[inline(always)]
    unsafe fn half_encode(self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_castsi512_ps(self.0));
            Words(_mm512_cvtepu16_epi32(half))
        }
    }
}

/// 8 lanes of f64.
#[derive(Clone, Copy)]
pub struct Doubles(__m512d);

macro_rules! double_methods {
    ($($name:ident, $intrinsic:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, other: Self) -> Self {
            // SAFETY: registers only; the shell enables AVX-512.
            Doubles(unsafe { $intrinsic(self.0, other.0) })
        }
    )* };
}

impl Register64 for Doubles {
    const LANES: usize = 8;
    const STREAMS: bool = true;
    #[inline(always)]
    unsafe fn splat(bits: u64) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        Doubles(unsafe { _mm512_set1_pd(f64::from_bits(bits)) })
    }
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: `source` holds 8 elements; the load is unaligned.
        Doubles(unsafe { _mm512_loadu_pd(source.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: `target` holds 8 elements; the store is unaligned.
        unsafe { _mm512_storeu_pd(target.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: `target` holds 8 elements and is aligned to them.
        unsafe { _mm512_stream_pd(target.cast(), self.0) }
    }
    double_methods! {
        or, _mm512_or_pd;
        xor, _mm512_xor_pd;
        fadd, _mm512_add_pd;
        fmul, _mm512_mul_pd;
        fdiv, _mm512_div_pd;
        fmin, _mm512_min_pd;
    }
    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        // SAFETY: registers only; the shell enables AVX-512.
        unsafe {
            let mask = _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let nan = _mm512_set1_pd(f64::from_bits(NAN64));
            Doubles(_mm512_mask_mov_pd(self.0, mask, nan))
        }
    }
}
