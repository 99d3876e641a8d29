//! A run that has to end at a time: what of the table is measured until then.
//!
//! The one idea: what is left of the time is shared equally by what is left to measure. Where a
//! share is too small, iterations give way first, then the rest of the table, whose sizes grow.
//! Nothing here has a clock: it is told the time.

use std::time::Duration;

/// Fewer times than this make no median.
pub const LEAST_ITERATIONS: usize = 5;

/// What a placement of a row may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// For timed iterations.
    pub time: Duration,
    /// So many are made whatever they take.
    pub least: usize,
}

impl Budget {
    pub fn whole(time: Duration) -> Budget {
        Budget { time, least: LEAST_ITERATIONS }
    }

    /// The time does not suffice for what is usual.
    pub fn is_tight(&self) -> bool {
        self.least < LEAST_ITERATIONS
    }

    /// For the board: never 0.
    pub fn encode(self) -> u64 {
        (self.time.as_micros() as u64) << 8 | self.least as u64
    }

    pub fn decode(word: u64) -> Budget {
        Budget { time: Duration::from_micros(word >> 8), least: (word & 255) as usize }
    }
}

/// The time of a mode and what has yet to be measured in it.
#[derive(Clone, Debug)]
pub struct Allowance {
    total: Duration,
    usual: Duration,
    placements: usize,
    /// When the current placement began.
    since: Duration,
    /// What the one before it took.
    took: Duration,
}

impl Allowance {
    pub fn new(total: Duration, usual: Duration, placements: usize) -> Allowance {
        let zero = Duration::ZERO;
        Allowance { total, usual, placements, since: zero, took: zero }
    }

    /// The next placement's budget at `now` after the start; `None`: there is no time for it, nor
    /// for any after it.
    pub fn next(&mut self, now: Duration) -> Option<Budget> {
        self.took = now.saturating_sub(self.since);
        self.since = now;
        let left = self.total.saturating_sub(now);
        // A size may be twice the last one, and then takes twice as long.
        if left.is_zero() || 2 * self.took > left {
            return None;
        }
        let share = left / self.placements.max(1) as u32;
        self.placements = self.placements.saturating_sub(1);
        // Filling buffers, warming up and checking take about as long as what is timed.
        let time = share / 2;
        match time < self.usual || self.took > share {
            true => Some(Budget { time, least: 1 }),
            false => Some(Budget::whole(self.usual)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: Duration = Duration::from_secs(8);
    const USUAL: Duration = Duration::from_millis(60);
    const PLACEMENTS: usize = 48;

    /// Measure on a virtual clock, where a call of placement `i` takes `call(i)` and everything
    /// around the timed calls takes `around` calls. Gives the placements measured, those of them
    /// with fewer iterations than usual, and when it was over.
    fn measured(call: impl Fn(u32) -> Duration, around: u32) -> (usize, usize, Duration) {
        let mut allowance = Allowance::new(TOTAL, USUAL, PLACEMENTS);
        let (mut now, mut all, mut few) = (Duration::ZERO, 0, 0);
        for place in 0..PLACEMENTS as u32 {
            let Some(budget) = allowance.next(now) else { break };
            let call = call(place);
            let fitting = budget.time.as_nanos() / call.as_nanos().max(1);
            let iterations = (fitting as u32).max(budget.least as u32);
            now += call * (iterations + around);
            all += 1;
            few += usize::from(iterations < LEAST_ITERATIONS as u32);
        }
        (all, few, now)
    }

    /// The two placements of a size, the next size twice as long.
    fn doubling(first: Duration) -> impl Fn(u32) -> Duration {
        move |place| first * (1 << (place / 2))
    }

    #[test]
    fn an_idle_machine_measures_everything() {
        let (all, few, now) = measured(doubling(Duration::from_nanos(1)), 7);
        assert_eq!((all, few), (PLACEMENTS, 0), "{now:?}");
        assert!(now < TOTAL, "{now:?}");
    }

    #[test]
    fn a_busy_one_drops_iterations_and_then_sizes() {
        let (all, few, now) = measured(|_| Duration::from_millis(40), 2);
        assert!(all > PLACEMENTS - 4 && few > PLACEMENTS / 2, "{all} {few}");
        assert!(now <= TOTAL, "{now:?}");
        let (all, few, now) = measured(doubling(Duration::from_millis(4)), 7);
        assert!(all < PLACEMENTS && few > 0, "{all} {few}");
        assert!(now <= TOTAL, "{now:?}");
    }

    #[test]
    fn nothing_is_begun_that_may_not_end_in_time() {
        for first_us in [1, 10, 100, 1000, 10_000, 100_000] {
            for around in [0, 1, 7, 70] {
                let (_, _, now) = measured(doubling(Duration::from_micros(first_us)), around);
                // The first placement has nothing before it that would tell.
                let first = Duration::from_micros(first_us) * (around + 1);
                assert!(now <= TOTAL.max(first), "{first_us} us, {around}: {now:?}");
            }
        }
    }

    #[test]
    fn a_budget_fits_a_word() {
        let budget = Budget { time: Duration::from_micros(1234), least: 1 };
        assert_eq!(Budget::decode(budget.encode()), budget);
        assert_ne!(Budget { time: Duration::ZERO, least: 1 }.encode(), 0);
    }
}
