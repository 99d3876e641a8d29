//! How far a peer's core is: whether what is sent to it should lie in this core's cache or in
//! memory.
//!
//! The one idea: a sender reads its receiver's counter once a lap of the ring, and the receiver's
//! core wrote that line last, so the time of this one load is what a line takes to cross. From a
//! near core, which shares a cache, that is less than from memory; from a far one it is more, and
//! then payloads are better written past the cache: the sender need not fetch the slot's lines, and
//! the receiver reads them from memory.

use crate::clock;

/// Nanoseconds for a line between near cores and far ones, where one machine has both by turns: 42
/// to 94, and 190 to 226; from memory it is in between (`benches/results/far-2026-11-21.txt`).
const FAR_NS: f64 = 140.0;

/// What a sender knows of the way to its receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    is_far: bool,
    /// The load before was on the other side of the line.
    doubts: bool,
}

impl Distance {
    pub fn is_far(&self) -> bool {
        self.is_far
    }

    /// Make the load of a line that the receiver wrote last, and learn from its time.
    pub fn timed<T>(&mut self, limit: Ticks, load: impl FnOnce() -> T) -> T {
        let begun = clock::ticks();
        let value = load();
        self.learn(clock::ticks_after_loads().wrapping_sub(begun) > limit.0);
        value
    }

    /// One load may have been interrupted, two in a row hardly.
    fn learn(&mut self, was_far: bool) {
        let differs = was_far != self.is_far;
        if differs && self.doubts {
            self.is_far = was_far;
        }
        self.doubts = differs && !self.doubts;
    }
}

/// [`FAR_NS`] on this machine's counter.
#[derive(Clone, Copy, Debug)]
pub struct Ticks(u64);

impl Ticks {
    pub fn new() -> Ticks {
        Ticks((FAR_NS / clock::nanoseconds_per_tick()) as u64)
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
        clock::start();
        let mut distance = Distance::default();
        let mut wait = |time| {
            for _ in 0..2 {
                let begun = std::time::Instant::now();
                distance.timed(Ticks::new(), || while begun.elapsed() < time {});
            }
            distance.is_far()
        };
        assert!(wait(std::time::Duration::from_micros(5)));
    }
}
