//! What a promise of so many milliseconds leaves out of account: the time in which other programs
//! had the machine.
//!
//! A thread that only sleeps is late when there is no core for it. That is others' doing as far as
//! the cores did not run this test's own processes meanwhile: what a rank wastes excuses nothing.
#![allow(dead_code)] // Some suites take this file alone, and a part of it.

// ThreadSanitizer does not see what a contended lock of std orders: std comes compiled.
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the pacemaker wants to run.
const BEAT: Duration = Duration::from_millis(1);

/// A time in which there was no core for the pacemaker.
#[derive(Clone, Copy)]
pub struct Gap {
    pub due: Instant,
    pub woke: Instant,
    /// How much of it others had.
    pub taken: Duration,
}

#[derive(Default)]
struct Seen {
    gaps: Vec<Gap>,
    /// Up to when.
    until: Option<Instant>,
    is_over: bool,
}

/// A thread that only wants to run every millisecond, and keeps when it could not.
pub struct Pace {
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

impl Pace {
    /// For a test whose ranks are threads of this process.
    pub fn start() -> Pace {
        Pace::beside(Vec::new())
    }

    /// For a test whose ranks are these processes.
    pub fn beside(ranks: Vec<u32>) -> Pace {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = seen.clone();
        let thread = thread::spawn(move || {
            let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
            let mut own = Own { ranks, used: HashMap::new() };
            let (mut before, mut used) = (Instant::now(), own.used());
            loop {
                let due = Instant::now() + BEAT;
                thread::sleep(BEAT);
                let (woke, now_used) = (Instant::now(), own.used());
                // A process that took a dead rank's id has used less.
                let taken = taken(woke - due, woke - before, now_used.saturating_sub(used), cores);
                let mut seen = shared.lock();
                seen.until = Some(woke);
                if taken > Duration::ZERO {
                    seen.gaps.push(Gap { due, woke, taken });
                }
                if seen.is_over {
                    return;
                }
                (before, used) = (woke, now_used);
            }
        });
        Pace { seen, thread: Some(thread) }
    }

    /// From the first of these beginnings to the last of the ends.
    pub fn over(&self, spans: &[(Instant, Instant)]) -> Timed {
        let from = spans.iter().map(|span| span.0).min().expect("something was timed");
        let to = spans.iter().map(|span| span.1).max().expect("something was timed");
        self.timed(from, to)
    }

    /// How long that took, and how much of it others had.
    pub fn timed(&self, from: Instant, to: Instant) -> Timed {
        loop {
            let seen = self.seen.lock();
            // A gap is known when it is over.
            if seen.until.is_some_and(|until| until >= to) {
                return Timed { took: to - from, lost: lost(&seen.gaps, from, to) };
            }
            drop(seen);
            let is_over = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!is_over, "the pacemaker has ended, by a failure of its own");
            thread::sleep(BEAT);
        }
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        // A test that fails drops it, too.
        self.seen.lock().is_over = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What others had of the time by which a beat was late, where the test's own processes used so
/// much of the cores since the last one.
pub fn taken(late: Duration, since: Duration, used: Duration, cores: u32) -> Duration {
    // Timers are late by themselves, by less than this.
    if late < BEAT {
        return Duration::ZERO;
    }
    late.min(since.saturating_sub(used / cores))
}

/// What others had between these moments.
pub fn lost(gaps: &[Gap], from: Instant, to: Instant) -> Duration {
    let within =
        |gap: &Gap| gap.taken.min(gap.woke.min(to).saturating_duration_since(gap.due.max(from)));
    gaps.iter().map(within).sum()
}

/// The processor time of this process and of the ranks that it started.
struct Own {
    ranks: Vec<u32>,
    /// Of a rank that is gone the last that was known.
    used: HashMap<u32, Duration>,
}

impl Own {
    fn used(&mut self) -> Duration {
        for rank in &self.ranks {
            let mut clock = 0;
            // SAFETY: a valid place for the number of a clock.
            if unsafe { libc::clock_getcpuclockid(*rank as i32, &raw mut clock) } == 0
                && let Some(used) = read(clock)
            {
                self.used.insert(*rank, used);
            }
        }
        let ours = read(libc::CLOCK_PROCESS_CPUTIME_ID).expect("every process has this clock");
        ours + self.used.values().sum::<Duration>()
    }
}

fn read(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for a time.
    let is_read = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    is_read.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// How long something took, and how much of that others had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timed {
    pub took: Duration,
    pub lost: Duration,
}

impl Timed {
    /// The time that counts.
    pub fn own(&self) -> Duration {
        self.took.saturating_sub(self.lost)
    }
}

/// Hold times to a promise, but for what others had of each.
///
/// Under a sanitizer programs run slower; `RINGCOMM_SLOWER` says by how much.
#[track_caller]
pub fn assert_kept(what: &str, promise: Duration, times: &[Timed]) {
    let slower =
        std::env::var("RINGCOMM_SLOWER").map_or(1, |times| times.parse().expect("a number"));
    let promise = promise * slower;
    let longest = times.iter().max().expect("something was timed");
    println!("{what}: longest of {}: {longest:?}, promised {promise:?}", times.len());
    let late = times.iter().find(|time| time.own() > promise);
    assert_eq!(late, None, "{what}: promised {promise:?}");
}
