//! Copies, and what the processor's caches and instruction sets are.
//!
//! A copy whose target will not stay in the cache is written past it: that saves reading the lines
//! that are about to be overwritten, a third of the traffic.

#![allow(unsafe_code)]

use super::{Job, Reduction};
use crate::fork::Once;
use crate::types::{DataType, ReduceOp};

/// Copy `bytes` bytes; the ranges are equal or do not overlap.
///
/// # Safety
/// Both ranges are valid.
#[inline]
pub unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize, streaming: bool) {
    // SAFETY: the caller's promise; memmove rather than memcpy because the ranges may be equal.
    unsafe {
        if streaming && bytes >= STREAMED_LEAST {
            stream(target, source, bytes);
        } else {
            std::ptr::copy(source, target, bytes);
        }
    }
}

/// Bytes below which a streaming copy's fence and its partial lines cost more than they save: a
/// page, 64 lines.
pub const STREAMED_LEAST: usize = 4096;

/// Make what copies need, so that none allocates: a peer may turn out to be far at any time.
pub fn prepare() {
    union();
}

fn union() -> &'static Option<Reduction> {
    static UNION: Once<Option<Reduction>> = Once::new();
    UNION.get_or_make(|| Reduction::new(DataType::Uint8, ReduceOp::Bor, 1).ok())
}

/// A copy past the cache is a union of one source: the reduction kernels already stream.
unsafe fn stream(target: *mut u8, source: *const u8, bytes: usize) {
    let union = union();
    let (targets, sources) = ([target], [source]);
    let job = Job { streaming: 1, ..Job::new(&targets, &sources, bytes) };
    // SAFETY: the caller's promise, handed on.
    unsafe {
        match union {
            Some(union) => union.stream(&job, bytes, false, 1.0),
            None => std::ptr::copy(source, target, bytes),
        }
    }
}

/// Order streaming stores before every store that follows: on x86 a release store alone does not.
/// On Arm it does: what is weaker there is a non-temporal load.
#[inline(always)]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}

/// Whether what a far core reads next is worth writing past the cache.
///
/// On AMD's processors it is, by up to four times (`benches/results/far-2026-11-21.txt`). On
/// Intel's, from 4 KiB on and in rings of 256 KiB and more, it took 0.95 to 2.7 times as long
/// (`benches/results/slots-2026-11-23-xeon.txt`).
pub fn streams_far() -> bool {
    static STREAMS: Once<bool> = Once::new();
    *STREAMS.get_or_make(|| !is_intel())
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let name = std::arch::x86_64::__cpuid(0);
    [name.ebx, name.edx, name.ecx] == [*b"Genu", *b"ineI", *b"ntel"].map(u32::from_le_bytes)
}

#[cfg(not(target_arch = "x86_64"))]
fn is_intel() -> bool {
    false
}

/// Bytes of output above which streaming stores win.
///
/// Half the last-level cache: by then an output, its sources and what the peers on the same cache
/// move have evicted each other before anyone reads the output again.
pub fn streaming_threshold() -> usize {
    static THRESHOLD: Once<usize> = Once::new();
    *THRESHOLD.get_or_make(|| last_level_cache() / 2)
}

/// Bytes of the largest cache that the first processor sees; 8 MiB where the system does not say.
fn last_level_cache() -> usize {
    (0..8)
        .filter_map(|index| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
            let text = std::fs::read_to_string(path).ok()?;
            let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
            Some(kib << 10)
        })
        .max()
        .unwrap_or(8 << 20)
}
