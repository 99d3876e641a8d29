//! What holds the other suites' times to what is promised: others' use of the machine excuses a
//! late rank, its own does not.

#[path = "support/delays.rs"]
mod delays;
#[path = "support/pace.rs"]
mod pace;

use pace::{Gap, Pace, Timed, lost, taken};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn what_the_test_used_itself_was_not_taken() {
    // Nobody had the cores: the machine stood still, or others ran on both.
    assert_eq!(taken(ms(50), ms(51), ms(0), 2), ms(50));
    // The test had both cores, or one.
    assert_eq!(taken(ms(50), ms(51), ms(102), 2), ms(0));
    assert_eq!(taken(ms(50), ms(50), ms(50), 2), ms(25));
    // A timer's own lateness, however many there are.
    assert_eq!(taken(Duration::from_micros(900), ms(2), ms(0), 2), ms(0));
}

#[test]
fn only_what_was_taken_from_the_timed_part_counts() {
    let zero = Instant::now();
    let gap =
        |due, woke, taken| Gap { due: zero + ms(due), woke: zero + ms(woke), taken: ms(taken) };
    let gaps = [gap(10, 20, 10), gap(30, 50, 15), gap(90, 99, 9)];
    assert_eq!(lost(&gaps, zero, zero + ms(100)), ms(34));
    assert_eq!(lost(&gaps, zero + ms(15), zero + ms(35)), ms(10));
    assert_eq!(lost(&gaps, zero + ms(50), zero + ms(90)), ms(0));
}

/// The processor time of this process so far.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for a time.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Threads on all cores, as ranks that spin: what they had of the cores is never lost.
#[test]
fn a_test_that_spins_on_every_core_is_not_excused() {
    let (pace, over) = (Pace::start(), AtomicBool::new(false));
    let cores = thread::available_parallelism().map_or(1, usize::from) as u32;
    let (started, before) = (Instant::now(), used());
    thread::scope(|scope| {
        let spin = || {
            while !over.load(Relaxed) {
                std::hint::spin_loop();
            }
        };
        (0..8 * cores).for_each(|_| drop(scope.spawn(spin)));
        thread::sleep(ms(300));
        over.store(true, Relaxed);
    });
    let (ended, used) = (Instant::now(), used() - before);
    let timed = pace.timed(started, ended);
    let others = timed.took.saturating_sub(used / cores);
    // Between the reading of two clocks a thread may have to wait a few times more.
    assert!(timed.lost <= others + ms(60), "others had {others:?}: {timed:?}");
}

/// A hundred delays, of which one is `worst` and the rest are `usual`, and whether they are judged
/// to keep the promise.
fn passes(usual: Duration, worst: Timed) -> bool {
    let mut delays = vec![Timed { took: usual, lost: ms(0) }; 99];
    delays.push(worst);
    std::panic::catch_unwind(move || delays::judge("made up", &mut delays)).is_ok()
}

#[test]
fn delays_beyond_the_promise_fail() {
    let late = |took, lost| Timed { took: ms(took), lost: ms(lost) };
    let is_usual = delays::asked().is_none();
    assert!(passes(ms(5), late(240, 0)));
    assert_eq!(passes(ms(5), late(260, 0)), is_usual, "the longest");
    assert!(!passes(ms(5), late(1010, 0)), "the longest beside others");
    assert_eq!(passes(ms(12), late(100, 0)), is_usual, "the median");
    assert!(!passes(ms(55), late(100, 0)), "the median beside others");
    assert_eq!(passes(ms(5), late(1400, 500)), is_usual, "others had it");
}
