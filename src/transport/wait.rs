//! The one wait primitive: condition, abort word, deadline, liveness of the peer.
//!
//! A waiting rank polls for a short while, then yields its core between polls (not before a peer
//! that is at work on another core has had time for it), then sleeps in the kernel on its doorbell,
//! which every peer that posts or frees looks at. From the second phase on, and in a first one
//! that is long, it consults its [`WaitCheck`] regularly, so every wait sees an abort, a failure, a
//! death and the deadline.
//!
//! The poster must not pay for the sleeper: between its store and its look at the doorbell it has
//! only a compiler fence, and the sleeper makes up for it with `membarrier(2)`, which runs a full
//! fence on every core that runs a registered process. A process that the kernel does not register
//! uses a full fence for every post, and one whose call is refused sleeps for [`SHORTEST_SLEEP`] at
//! a time. In any case no sleep is longer than [`LONGEST_SLEEP`]: a lost wake-up costs bounded
//! time. Models have two full fences: that these two order like them is the kernel's word.
#![allow(unsafe_code)]

use super::fifo::Stamp;
use crate::error::{Error, RankProcess, Result};
use crate::sync::Site;
use crate::sync::atomic::{AtomicU32, Ordering::*, fence};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The word a rank sleeps on; in memory that its peers can write. Zeroed memory is a valid one.
#[repr(C, align(128))]
pub struct Doorbell {
    /// 1 while its owner sleeps or is about to.
    sleeping: AtomicU32,
    /// 1 while its owner leaves its core to others between two polls.
    away: AtomicU32,
}

#[cfg(loom)]
impl Doorbell {
    /// A silent bell where zeroed memory is not one.
    pub fn new() -> Doorbell {
        Doorbell { sleeping: AtomicU32::new(0), away: AtomicU32::new(0) }
    }
}

/// What a long wait looks at beside its condition.
pub trait WaitCheck {
    /// Why the wait for `peer` must end, if it must. Called on the slow path only.
    fn check(&self, peer: usize, waited: Duration) -> Result<()>;

    /// How far the operation that waits has come: steps done, of all. Told before `check`.
    fn progress(&self, _done: usize, _of: usize) {}

    /// The error for a connection to `peer` that is of no more use.
    fn broken(&self, peer: usize, why: &str) -> Error {
        let peer = RankProcess::unmet(peer);
        Error::Disconnected { rank: None, peer, operation: None, why: why.to_string() }
    }

    /// The error for a message of `peer` that is not the `expected` one, if both are known.
    fn unexpected(&self, _peer: usize, _expected: &Stamp, _come: &Stamp) -> Option<Error> {
        None
    }
}

/// How long to poll and to yield before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinPolicy {
    /// Polls before the first yield.
    pub spins: u32,
    /// Time of yielding before the first sleep.
    pub yielding: Duration,
    /// Polls before the first yield while the peer is at work on another core.
    pub crossing: u32,
    /// Polls, in place of `spins`, of a thread that works beside the rank's own.
    pub beside: u32,
}

thread_local! {
    /// Whether this thread works beside the one whose rank it is.
    static BESIDE: Cell<bool> = const { Cell::new(false) };
}

/// From here on this thread makes calls for a rank that has another thread at work.
pub fn work_beside() {
    BESIDE.set(true);
}

/// Polls without a pause: a message that is already crossing arrives within these.
const EAGER: u32 = 64;

/// Polls with a pause while every rank has a core: together longer than a peer takes for a slot of
/// 64 KiB, the usual thing to wait for.
const SPINS: u32 = 2000;

/// Polls when ranks share cores: few, because the peer needs the core. With 4 processes on 2 cores
/// an 8-byte all-reduce takes 4 us with up to 64 polls and 50 us with 1000
/// (`benches/results/constants-2026-11-21.txt`).
const SPINS_SHARED: u32 = 4;

/// Polls for a peer that is at work on another core before this one is given up: about 0.4 us,
/// longer than a cache line takes between far cores (0.28 us), shorter than two switches between
/// processes. With 4 ranks on 2 cores an 8-byte all-reduce takes 2.4 switches in place of 3.3
/// (`benches/results/oversubscribed-2026-11-21.txt`).
const CROSSING: u32 = 256;

/// Polls between two looks at the watch, and before the first: some 0.2 ms with pauses of 40 ns, as
/// [`WATCHING`]. The usual ones are over before.
const UNWATCHED: u32 = 4096;

/// A message that comes within this time is had without a futex's sleep and wake, which both go
/// through the scheduler; a rank that has waited longer is likely to wait for milliseconds.
const YIELDING: Duration = Duration::from_micros(200);

/// Between two looks at the watch while yielding.
const WATCHING: Duration = Duration::from_micros(100);

/// The first sleep; it doubles up to the longest.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// Bounds what a lost wake-up or an unnoticed death can cost.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

impl SpinPolicy {
    /// For `ranks` ranks on `cores` cores; `spins` overrides the polls.
    pub fn new(ranks: usize, cores: usize, spins: Option<u32>) -> SpinPolicy {
        let usual = |threads: usize| if threads > cores { SPINS_SHARED } else { SPINS };
        asymmetric::prepare();
        SpinPolicy {
            spins: spins.unwrap_or(usual(ranks)),
            yielding: YIELDING,
            crossing: CROSSING,
            beside: spins.unwrap_or(usual(2 * ranks)),
        }
    }

    /// As the thread that asks is to have it.
    fn here(self) -> SpinPolicy {
        if BESIDE.get() { SpinPolicy { spins: self.beside, ..self } } else { self }
    }
}

/// What a rank waits for, and how it sleeps meanwhile.
pub trait Waiting {
    type Value;

    /// What was waited for, if it is there. Called often: it must not wait itself.
    fn poll(&mut self) -> Option<Self::Value>;

    /// Sleep until something may have changed or the time is over; what came in between, if
    /// anything did.
    fn sleep(&mut self, time: Duration) -> Option<Self::Value>;

    /// Leave the core to others for a moment.
    fn give_way(&mut self) {
        std::thread::yield_now();
    }

    /// Whether the peer is on a core now, as far as is known: what it has to send may be there
    /// sooner than another thread of this core.
    fn is_peer_at_work(&self) -> bool {
        false
    }
}

/// Waiting for peers that ring this rank's bell.
pub struct OnBell<'a, F> {
    pub bell: &'a Doorbell,
    /// The peer's bell, where it can be looked at.
    pub theirs: Option<&'a Doorbell>,
    pub poll: F,
}

impl<T, F: FnMut() -> Option<T>> Waiting for OnBell<'_, F> {
    type Value = T;

    #[inline]
    fn poll(&mut self) -> Option<T> {
        (self.poll)()
    }

    fn sleep(&mut self, time: Duration) -> Option<T> {
        doze(self.bell, time, &mut self.poll)
    }

    fn give_way(&mut self) {
        self.bell.away.store(1, Relaxed);
        std::thread::yield_now();
        self.bell.away.store(0, Relaxed);
    }

    fn is_peer_at_work(&self) -> bool {
        let is_there =
            |bell: &Doorbell| bell.away.load(Relaxed) == 0 && bell.sleeping.load(Relaxed) == 0;
        self.theirs.is_some_and(is_there)
    }
}

/// Wait until `poll` gives something, or the watch gives up, for peers that ring the first bell;
/// the second is that of `peer`.
#[inline]
pub fn wait<T>(
    patience: SpinPolicy,
    (bell, theirs): (&Doorbell, &Doorbell),
    peer: usize,
    watch: &dyn WaitCheck,
    poll: impl FnMut() -> Option<T>,
) -> Result<T> {
    wait_on(patience, peer, watch, &mut OnBell { bell, theirs: Some(theirs), poll })
}

/// Wait for `peer` in any way.
#[inline]
pub fn wait_on<T>(
    patience: SpinPolicy,
    peer: usize,
    watch: &dyn WaitCheck,
    waiting: &mut impl Waiting<Value = T>,
) -> Result<T> {
    for _ in 0..patience.spins.min(EAGER) {
        if let Some(value) = waiting.poll() {
            return Ok(value);
        }
    }
    let patience = patience.here();
    for _ in EAGER..patience.spins.min(UNWATCHED) {
        if let Some(value) = waiting.poll() {
            return Ok(value);
        }
        std::hint::spin_loop();
    }
    wait_long(patience, peer, watch, waiting)
}

#[cold]
fn wait_long<T>(
    patience: SpinPolicy,
    peer: usize,
    watch: &dyn WaitCheck,
    waiting: &mut dyn Waiting<Value = T>,
) -> Result<T> {
    #[cfg(not(loom))]
    let _whole = crate::os::thread_signals::NoCancel::begin();
    let started = Instant::now();
    let mut watched = Duration::ZERO;
    let mut sleep = SHORTEST_SLEEP;
    let mut crossing = patience.crossing;
    let mut spins = patience.spins.saturating_sub(UNWATCHED);
    let mut spun = Duration::ZERO;
    loop {
        if let Some(value) = waiting.poll() {
            return Ok(value);
        }
        let waited = started.elapsed();
        if waited >= watched + WATCHING {
            watched = waited;
            if let Err(error) = watch.check(peer, waited) {
                // A peer that posted and then died has done its part.
                return waiting.poll().ok_or(error);
            }
        }
        if spins > 0 {
            let some = spins.min(UNWATCHED);
            for _ in 0..some {
                if let Some(value) = waiting.poll() {
                    return Ok(value);
                }
                std::hint::spin_loop();
            }
            spins -= some;
            spun = started.elapsed();
        } else if waited < spun + patience.yielding {
            for _ in 0..std::mem::take(&mut crossing) {
                if !waiting.is_peer_at_work() {
                    break;
                }
                if let Some(value) = waiting.poll() {
                    return Ok(value);
                }
            }
            waiting.give_way();
        } else {
            if let Some(value) = waiting.sleep(sleep) {
                return Ok(value);
            }
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
    }
}

/// Sleep until the bell rings or the time is over, unless the condition already holds.
fn doze<T>(bell: &Doorbell, time: Duration, poll: &mut dyn FnMut() -> Option<T>) -> Option<T> {
    bell.sleeping.store(1, Relaxed);
    // Pairs with the fence in `ring_bell`: either the ringer sees the mark or this rank its
    // message.
    let is_ordered = asymmetric::heavy_fence();
    let value = poll();
    if value.is_none() {
        futex::sleep(&bell.sleeping, if is_ordered { time } else { time.min(SHORTEST_SLEEP) });
    }
    bell.sleeping.store(0, Relaxed);
    value
}

/// Wake the bell's owner if it sleeps. Called after every post and free.
#[inline]
pub fn ring_bell(bell: &Doorbell) {
    // Pairs with the fence in `doze`.
    asymmetric::light_fence();
    if bell.sleeping.load(Relaxed) != 0 {
        futex::wake(&bell.sleeping);
    }
}

/// Two fences that together order like two full ones; the light one costs nothing.
mod asymmetric {
    use super::*;

    #[cfg(not(loom))]
    pub use kernel::{heavy_fence, light_fence, prepare};

    #[cfg(not(loom))]
    mod kernel {
        use super::*;
        use crate::sync::ordering;
        use std::sync::atomic::AtomicBool;

        /// `membarrier` commands, from linux/membarrier.h.
        const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
        const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

        /// Whether this process may leave the fence to the sleeper.
        static REGISTERED: AtomicBool = AtomicBool::new(false);

        fn membarrier(command: libc::c_int) -> bool {
            // SAFETY: the call takes no pointers.
            unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
        }

        pub fn prepare() {
            // To register twice is no harm; a child that is forked within a `Once` waits in it.
            // Relaxed: who does not see it yet uses the full fence.
            if !REGISTERED.load(Relaxed) {
                REGISTERED.store(membarrier(REGISTER_GLOBAL_EXPEDITED), Relaxed);
            }
        }

        #[inline]
        pub fn light_fence() {
            if REGISTERED.load(Relaxed) {
                std::sync::atomic::compiler_fence(ordering(Site::RingFence, SeqCst));
            } else {
                fence(ordering(Site::RingFence, SeqCst));
            }
        }

        /// Whether it reaches those who use the light one.
        pub fn heavy_fence() -> bool {
            fence(ordering(Site::SleepFence, SeqCst));
            membarrier(GLOBAL_EXPEDITED)
        }
    }

    #[cfg(loom)]
    pub fn prepare() {}

    #[cfg(loom)]
    pub fn light_fence() {
        if !crate::sync::is_weakened(Site::RingFence) {
            fence(SeqCst);
        }
    }

    #[cfg(loom)]
    pub fn heavy_fence() -> bool {
        if !crate::sync::is_weakened(Site::SleepFence) {
            fence(SeqCst);
        }
        true
    }
}

#[cfg(not(loom))]
mod futex {
    use super::*;
    use rustix::thread::{Timespec, futex};

    pub fn sleep(word: &AtomicU32, time: Duration) {
        let time = Timespec::try_from(time).expect("a deadline within ages");
        // Shared, because peers are processes. It may end early, or not begin.
        let _ = futex::wait(word, futex::Flags::empty(), 1, Some(&time));
    }

    #[cold]
    pub fn wake(word: &AtomicU32) {
        word.store(0, Relaxed);
        // A word is always where it was.
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

/// A futex for models: a sleeper that nobody wakes spins for ever, which loom reports.
#[cfg(loom)]
mod futex {
    use super::*;

    pub fn sleep(word: &AtomicU32, _time: Duration) {
        while word.load(Acquire) == 1 {
            loom::thread::yield_now();
        }
    }

    pub fn wake(word: &AtomicU32) {
        word.store(0, Release);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "wait_tests.rs"]
mod tests;
