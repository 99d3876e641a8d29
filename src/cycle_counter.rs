//! Cheap time stamps: the processor's own counter where it has one, calibrated when read back.
#![allow(unsafe_code)]

use crate::fork::Once;
use std::time::{Duration, Instant};

/// The counter and the clock, read together once.
struct ClockOrigin {
    ticks: u64,
    instant: Instant,
}

static ORIGIN: Once<ClockOrigin> = Once::new();

fn origin() -> &'static ClockOrigin {
    ORIGIN.get_or_make(|| ClockOrigin { ticks: ticks(), instant: Instant::now() })
}

/// Start the clock, so that later readings have a base to be compared with.
pub fn start() {
    origin();
}

/// The counter: constant rate on every x86-64 and Arm machine of the last ten years.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction; it reads a counter.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: the virtual counter is readable from user space on Linux.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return ORIGIN.get().map_or(0, |origin| origin.instant.elapsed().as_nanos() as u64);
}

/// The counter once every load before has its value.
#[inline]
pub fn ticks_after_loads() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        core::arch::x86_64::_mm_lfence()
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: both are barriers and touch nothing.
    unsafe {
        core::arch::asm!("dsb ishld", "isb", options(nostack))
    }
    ticks()
}

/// Nanoseconds a tick, from all the time since the clock was started.
pub fn nanoseconds_per_tick() -> f64 {
    let origin = origin();
    // A millisecond bounds the calibration's error to about 1e-4.
    while origin.instant.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
    let ticks = ticks().wrapping_sub(origin.ticks);
    origin.instant.elapsed().as_nanos() as f64 / ticks.max(1) as f64
}

/// Microseconds on the system's monotonic clock, which all processes of a machine share.
pub fn monotonic_us() -> f64 {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// Microseconds since 1970.
pub fn wall_us() -> f64 {
    read_clock(libc::CLOCK_REALTIME)
}

fn read_clock(which: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live structure; the clocks named here always exist.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_measure_a_sleep() {
        start();
        let ratio = |_| {
            let (ticks_before, before) = (ticks(), Instant::now());
            std::thread::sleep(Duration::from_millis(20));
            let measured = (ticks() - ticks_before) as f64 * nanoseconds_per_tick();
            measured / before.elapsed().as_nanos() as f64
        };
        // On a busy machine time may pass between two clocks.
        assert!((0..5).map(ratio).any(|ratio| (0.9..1.1).contains(&ratio)));
    }
}
