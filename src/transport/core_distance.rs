//! How far a peer's core is: whether what is sent to it should lie in this core's cache or in
//! memory.
//!
//! The one idea: a sender reads its receiver's counter once a lap of the ring, and the receiver's
//! core wrote that line last, so the time of this one load is what a line takes to cross. A call
//! without long messages times the load of a message that has come, or of its release. From a
//! near core, which shares a cache, that is less than from memory; from a far one it is more, and
//! then payloads may be better written past the cache: the sender need not fetch the slot's lines,
//! and the receiver reads them from memory. Whether they are is the processor's
//! (`device/host/streaming_copy.rs`, `streams_far`).

use crate::cycle_counter;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Nanoseconds of such a load between near and far cores. On a machine that has both by turns, 19
/// of 20 loads from a near core take 20 to 90, and those from a far one 120 to 190
/// (`benches/results/far-2026-11-27.txt`). A line that a near core no longer has comes from memory
/// and takes as long as a far one: then writing past the cache is right, too. The wrong side costs
/// time, never a result.
const FAR_NS: f64 = 100.0;

/// Whether every peer of a new communicator counts as far, for tests.
static ALL_ARE_FAR: AtomicBool = AtomicBool::new(false);

/// Let every peer of communicators that are made from now on be far, whatever loads say; for tests.
pub fn assume_far(far: bool) {
    // Relaxed: who sets it makes the communicators.
    ALL_ARE_FAR.store(far, Relaxed);
}

/// What a sender knows of the way to its receiver.
#[derive(Clone, Copy, Debug)]
pub struct Distance {
    is_far: bool,
    is_assumed: bool,
    /// The load before was on the other side of the line.
    differed: bool,
}

impl Default for Distance {
    fn default() -> Distance {
        // Relaxed: see `assume_far`.
        let assumed = ALL_ARE_FAR.load(Relaxed);
        Distance { is_far: assumed, is_assumed: assumed, differed: false }
    }
}

impl Distance {
    pub fn is_far(&self) -> bool {
        self.is_far
    }

    /// Load a line of the receiver's, and learn from the time if there was news in it: without, the
    /// line was still in this core's cache.
    pub fn timed<T>(&mut self, limit: Ticks, load: impl FnOnce() -> Option<T>) -> Option<T> {
        let begun = cycle_counter::ticks_after_loads();
        let value = load();
        let took = cycle_counter::ticks_after_loads().wrapping_sub(begun);
        if value.is_some() && !self.is_assumed {
            self.learn(took > limit.0);
        }
        value
    }

    /// One load may have been interrupted, two in a row hardly.
    fn learn(&mut self, was_far: bool) {
        let differs = was_far != self.is_far;
        if differs && self.differed {
            self.is_far = was_far;
        }
        self.differed = differs && !self.differed;
    }
}

/// [`FAR_NS`] on this machine's counter.
#[derive(Clone, Copy, Debug)]
pub struct Ticks(u64);

impl Ticks {
    /// A limit that no load takes longer than.
    pub const NEVER: Ticks = Ticks(u64::MAX);

    pub fn far() -> Ticks {
        Ticks((FAR_NS / cycle_counter::nanoseconds_per_tick()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_loads_in_a_row_change_the_distance() {
        let mut distance = Distance::default();
        let mut after = |far: &[bool]| {
            far.iter().for_each(|far| distance.learn(*far));
            distance.is_far()
        };
        assert!(!after(&[]) && !after(&[false, true, false, true, false]));
        assert!(after(&[true, true]) && after(&[false, true, false, true]));
        assert!(!after(&[false, false]) && !after(&[true]));
    }

    #[test]
    fn what_takes_longer_than_the_limit_is_far() {
        cycle_counter::start();
        let mut distance = Distance::default();
        let mut load = |time: u64, news: bool| {
            for _ in 0..2 {
                let begun = cycle_counter::ticks();
                distance.timed(Ticks(1 << 20), || {
                    while cycle_counter::ticks().wrapping_sub(begun) < time {}
                    news.then_some(())
                });
            }
            distance.is_far()
        };
        assert!(!load(1 << 22, false) && load(1 << 22, true));
        assert!(load(0, false));
        let limit = Ticks::far().0;
        assert!((1..10_000).contains(&limit), "{limit} ticks");
    }
}
