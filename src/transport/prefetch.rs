//! Cache lines that are asked for before they are needed, or flushed, where the processor has a
//! word for that.
//!
//! A line that another core has written takes as long as a message of eight bytes, most of it
//! waiting. These are hints: any address will do, and nothing waits for the line.
#![allow(unsafe_code)]

/// Bring the line at `address` here, to be read.
#[inline]
pub fn to_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Bring the line at `address` here, to be written: no other core has it then.
#[inline]
pub fn to_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which faults at no address, and does nothing on processors that lack it.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Flush the lines of so many bytes to memory, so that no cache holds them any more. Where the
/// processor lets no program do that they stay where they are.
///
/// # Safety
/// The bytes are mapped.
pub unsafe fn flush(address: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise; no byte changes.
    unsafe {
        use std::arch::x86_64::{_mm_clflush, _mm_mfence};
        (0..bytes).step_by(64).for_each(|at| _mm_clflush(address.wrapping_add(at)));
        if bytes > 0 {
            _mm_clflush(address.wrapping_add(bytes - 1));
        }
        _mm_mfence();
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = (address, bytes);
}
