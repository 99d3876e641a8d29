//! How long survivors of a death took to learn of it, held against what is promised.
#![allow(dead_code)] // A suite takes this file alone, and a part of it.

use super::pace::Timed;
use std::time::Duration;

/// What is promised of small processes on a machine that does nothing else.
const MEDIAN: Duration = Duration::from_millis(10);
const NINETY_NINTH: Duration = Duration::from_millis(100);
pub const LONGEST: Duration = Duration::from_millis(250);

/// What the longest, and those few that are late with it, may be in a usual run, beside whatever
/// else the machine does: a pacemaker sleeps, so it gets a core before survivors that compute, and
/// does not see all that those lack.
pub const LONGEST_BESIDE_OTHERS: Duration = Duration::from_secs(1);

/// From so many on, a median and a ninety-ninth say something: survivors of one death are late
/// together.
const MANY: usize = 100;

/// Rounds that a long run asks for.
pub fn asked() -> Option<usize> {
    let asked = std::env::var("RINGCOMM_ROUNDS").ok();
    asked.map(|rounds| rounds.parse().expect("RINGCOMM_ROUNDS is a number"))
}

/// Print the delays of one kind of death and hold them to the promise. A long run is for a quiet
/// machine, where every millisecond counts; otherwise what other programs had of it does not, and
/// the longest may be longer.
pub fn judge(name: &str, delays: &mut [Timed]) {
    assert!(!delays.is_empty(), "{name}: nobody survived");
    let counted = |delay: &Timed| if asked().is_some() { delay.took } else { delay.own() };
    delays.sort_unstable_by_key(counted);
    let at = |percent: usize| counted(&delays[(delays.len() - 1) * percent / 100]);
    println!(
        "{name}: {} survivors: p50 {:?}, p99 {:?}, longest {:?} ({:?}); within 250 ms: {}",
        delays.len(),
        at(50),
        at(99),
        at(100),
        delays[delays.len() - 1],
        delays.iter().filter(|delay| delay.took <= LONGEST).count(),
    );
    let (median, ninety_ninth, longest) = match asked() {
        Some(_) => (MEDIAN, NINETY_NINTH, LONGEST),
        None => (5 * MEDIAN, LONGEST_BESIDE_OTHERS, LONGEST_BESIDE_OTHERS),
    };
    let usual = delays.len() < MANY || (at(50) <= median && at(99) <= ninety_ninth);
    let promised = usual && at(100) <= longest;
    assert!(promised, "{name}: later than promised");
}
