//! How long survivors of a death took to learn of it, held against what is promised.

use std::time::Duration;

/// What is promised of small processes on a machine that does nothing else.
const MEDIAN: Duration = Duration::from_millis(10);
const NINETY_NINTH: Duration = Duration::from_millis(100);
pub const LONGEST: Duration = Duration::from_millis(250);

/// Eight times the longest: a loaded machine may not run a survivor for a while.
const LATE: Duration = Duration::from_secs(2);

/// Rounds that a long run asks for.
pub fn asked() -> Option<usize> {
    let asked = std::env::var("RINGCOMM_ROUNDS").ok();
    asked.map(|rounds| rounds.parse().expect("RINGCOMM_ROUNDS is a number"))
}

/// Print the delays of one kind of death. The usual few rounds only see that nobody is late; a long
/// run is for a quiet machine, and holds every figure to the promise.
pub fn judge(name: &str, delays: &mut [Duration]) {
    assert!(!delays.is_empty(), "{name}: nobody survived");
    delays.sort_unstable();
    let at = |percent: usize| delays[(delays.len() - 1) * percent / 100];
    println!(
        "{name}: {} survivors: p50 {:?}, p99 {:?}, longest {:?}; within 250 ms: {}",
        delays.len(),
        at(50),
        at(99),
        at(100),
        delays.iter().filter(|delay| **delay <= LONGEST).count(),
    );
    assert!(at(100) < LATE, "{name}: {:?}", at(100));
    if asked().is_some() {
        let promised = at(50) <= MEDIAN && at(99) <= NINETY_NINTH && at(100) <= LONGEST;
        assert!(promised, "{name}: later than promised on a quiet machine");
    }
}
