//! Windows: memory of every rank that the others write to without its help, and its signals.
//!
//! A put is a copy by whoever puts, a signal a counter beside the window: both go straight into the
//! other rank's memory, which ranks of one host map. Between hosts there is no such memory, and a
//! put says so. Each use looks the memory up anew: what another process has given up is a mapping
//! that leads nowhere, and what this process has given up is refused ([`LIVE`]).
#![allow(unsafe_code)]

use crate::communicator::Communicator;
use crate::communicator::call::rank_state;
use crate::error::{Error, Operation, Result};
use crate::executor::control_block::Life;
use crate::executor::direct::run::BufferLocation;
use crate::fork::ForkSafeMutex;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::transport::shm_export;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

/// Where a rank's window lies.
#[derive(Clone, Copy)]
struct WindowRange {
    region: u64,
    offset: u64,
    bytes: u64,
}

/// Whether the memory is of this process.
fn is_here(range: &WindowRange, at: usize, bytes: usize) -> bool {
    range.region == BufferLocation::SAME_PROCESS
        || shm_export::address(range.region, range.offset as usize + at, bytes).is_some()
}

const WORD: usize = size_of::<u64>();
const WORDS: usize = size_of::<WindowRange>() / WORD;

/// The ranks' windows, as one of them knows them.
pub struct PeerWindows {
    ranges: Vec<WindowRange>,
    /// This rank's own.
    pub address: *mut u8,
    /// Its entry in [`LIVE`].
    live: Option<(usize, usize)>,
}

// SAFETY: the address is the program's, and only handed out.
unsafe impl Send for PeerWindows {}
// SAFETY: as above.
unsafe impl Sync for PeerWindows {}

/// Ranges of this process that are windows, by start and bytes: a rank that is a thread of the same
/// process is reached by its addresses, which nothing else keeps.
static LIVE: ForkSafeMutex<Vec<(usize, usize)>> = ForkSafeMutex::new(Vec::new());

impl PeerWindows {
    /// This rank's part is over: nobody of this process writes there any more. Whoever frees the
    /// memory does it afterwards.
    pub fn close(&mut self) {
        if let Some(own) = self.live.take() {
            let mut live = LIVE.lock();
            if let Some(at) = live.iter().position(|range| *range == own) {
                live.swap_remove(at);
            }
        }
    }
}

impl Drop for PeerWindows {
    fn drop(&mut self) {
        self.close();
    }
}

/// Looks for a signal before the waiting thread lets others have the core, and before it sleeps.
const POLLS: u32 = 2000;
const YIELDS: u32 = 2100;
const PAUSE: Duration = Duration::from_micros(50);

impl Communicator {
    /// Make a window of every rank's range; all ranks call it. Ranges in `shm_export` memory are
    /// reached by ranks of other processes, and any range by threads of this one.
    pub fn window(&self, address: *mut u8, bytes: usize) -> Result<PeerWindows> {
        self.check_process()?;
        let exported = {
            let mut engine = self.engine.take();
            self.check()?;
            engine.memory.export_range(address, bytes)
        };
        let (region, offset) = exported.unwrap_or((BufferLocation::PRIVATE, 0));
        // Before the others know of it: they may put as soon as they do.
        let live = Some((address.addr(), bytes));
        LIVE.lock().extend(live);
        let mut window = PeerWindows { ranges: Vec::new(), address, live };
        let mut words = vec![0u64; WORDS * self.nranks()];
        self.all_gather(&[region, offset, bytes as u64], &mut words)?;
        let range =
            |words: &[u64]| WindowRange { region: words[0], offset: words[1], bytes: words[2] };
        window.ranges = words.chunks(WORDS).map(range).collect();
        Ok(window)
    }

    /// Run `body` with the address of a range of `peer`'s window, which stays while it runs.
    fn reach<T>(
        &self,
        window: &PeerWindows,
        peer: usize,
        (at, bytes): (usize, usize),
        body: impl FnOnce(*mut u8) -> T,
    ) -> Result<T> {
        let range = window.ranges[peer];
        let end = at.checked_add(bytes).filter(|end| *end as u64 <= range.bytes);
        if end.is_none() {
            return Err(Error::argument(format!(
                "{bytes} bytes at {at} are not in the window of rank {peer}, which has {}",
                range.bytes
            )));
        }
        let mut engine = self.engine.take();
        self.check()?;
        if let Some(gone) = self.health.peer_error() {
            return Err(gone);
        }
        if self.health.pages.of(peer).life() == Life::Left {
            let (rank, peer, operation) = (self.rank(), self.health.who(peer), None);
            let text = "it has ended, and its windows with it".into();
            return Err(Error::Remote { rank, peer, operation, text });
        }
        match engine.memory.address(range.region, range.offset + at as u64, bytes)? {
            Some(address) if is_here(&range, at, bytes) => {
                // Held while it runs: the range stays a window.
                let live = LIVE.lock();
                let (from, to) = (address.addr(), address.addr() + bytes);
                let is_in = |(start, bytes): &(usize, usize)| *start <= from && to <= start + bytes;
                match live.iter().any(is_in) {
                    true => Ok(body(address)),
                    false => Err(Error::usage(format!(
                        "rank {peer} has deregistered its window, or its communicator is gone"
                    ))),
                }
            }
            Some(address) => Ok(body(address)),
            None => Err(Error::usage(format!(
                "the window of rank {peer} is out of this rank's reach: puts and signals are \
                 between ranks of one host, whose windows are memory of ncclMemAlloc or whole pages"
            ))),
        }
    }

    /// Write `bytes` from `source` to `peer`'s window.
    ///
    /// # Safety
    /// `source` is valid for reading; nobody else writes there, on this rank or another.
    pub unsafe fn put(
        &self,
        window: &PeerWindows,
        peer: usize,
        at: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        self.reach(window, peer, (at, bytes), |to| {
            // SAFETY: the range lies in the peer's window, and the caller promised the source.
            unsafe { std::ptr::copy(source, to, bytes) };
        })
    }

    /// Count one more in the word at `index` of `peer`'s window, behind all puts so far.
    pub fn signal(&self, window: &PeerWindows, peer: usize, index: usize) -> Result<()> {
        self.reach(window, peer, (index * WORD, WORD), |to| {
            // SAFETY: a word of the window, aligned as the window is: whole pages.
            let count = unsafe { AtomicU64::from_ptr(to.cast()) };
            // Release: pairs with the Acquire in `await_signal`.
            count.fetch_add(1, Release);
        })
    }

    /// Wait until the word at `index` of this rank's window has come to `count`, by `peer`.
    pub fn await_signal(
        &self,
        window: &PeerWindows,
        peer: usize,
        index: usize,
        count: u64,
    ) -> Result<()> {
        let here = window.ranges[self.rank()].bytes as usize;
        assert!((index + 1) * WORD <= here, "a word of the window");
        // SAFETY: it is this rank's memory, and aligned as in `signal`.
        let word = unsafe { AtomicU64::from_ptr(window.address.cast::<u64>().add(index)) };
        let started = Instant::now();
        let mut polls = 0;
        // Acquire: pairs with the Release in `signal`.
        while word.load(Acquire) < count {
            polls += 1;
            if polls < POLLS {
                spin_loop();
                continue;
            }
            if polls < YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
            let gone = self.gone(peer, started.elapsed());
            // What came before the end came.
            if let Some(error) = gone.filter(|_| word.load(Acquire) < count) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Why no signal of `peer` comes any more, if that is so.
    fn gone(&self, peer: usize, waited: Duration) -> Option<Error> {
        if let Err(error) = self.check() {
            return Some(error);
        }
        let page = self.health.pages.of(peer);
        let state = || rank_state::state_of(page, peer);
        let (rank, who) = (self.rank(), self.health.who(peer));
        let operation = Operation::aside("while it waited for a signal");
        if let Some(error) = self.health.peer_error() {
            return Some(error);
        }
        if page.life() == Life::Left {
            let (operation, text) = (Some(operation), state());
            return Some(Error::Remote { rank, peer: who, operation, text });
        }
        (waited >= self.timeout()).then(|| Error::Timeout {
            rank,
            peer: who,
            operation,
            waited_ms: waited.as_millis() as u64,
            peer_state: state().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn ranks(timeout_ms: u64) -> Vec<Communicator> {
        let config = Config { timeout_ms, ..Config::default() };
        Communicator::init_all(2, &config).unwrap()
    }

    /// Both ranks' windows of a page.
    fn windows(ranks: &[Communicator]) -> Vec<PeerWindows> {
        std::thread::scope(|scope| {
            let open = |rank| {
                move || {
                    let page = shm_export::allocate(4096).unwrap();
                    Communicator::window(rank, page, 4096).unwrap()
                }
            };
            let opened: Vec<_> = ranks.iter().map(|rank| scope.spawn(open(rank))).collect();
            opened.into_iter().map(|window| window.join().unwrap()).collect()
        })
    }

    #[test]
    fn what_was_put_before_a_signal_is_there_behind_it() {
        let ranks = ranks(20_000);
        let windows = windows(&ranks);
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| {
                for round in 0..1000u64 {
                    let bytes = round.to_ne_bytes();
                    let at = 64 + 8 * round as usize % 2048;
                    // SAFETY: the source lives, and rank 1 reads behind the signal only.
                    unsafe { ranks[0].put(&windows[0], 1, at, bytes.as_ptr(), 8) }.unwrap();
                    ranks[0].signal(&windows[0], 1, 3).unwrap();
                    ranks[0].await_signal(&windows[0], 1, 2, round + 1).unwrap();
                }
            });
            for round in 0..1000u64 {
                ranks[1].await_signal(&windows[1], 0, 3, round + 1).unwrap();
                let at = 64 + 8 * round as usize % 2048;
                // SAFETY: in the window, which this rank has.
                let word = unsafe { windows[1].address.add(at).cast::<u64>().read() };
                assert_eq!(word, round);
                ranks[1].signal(&windows[1], 0, 2).unwrap();
            }
            peer.join().unwrap();
        });
    }

    #[test]
    fn a_put_outside_of_the_window_is_refused_and_nothing_breaks() {
        let ranks = ranks(20_000);
        let windows = windows(&ranks);
        for (at, bytes) in [(4096, 1), (0, 4097), (usize::MAX, 2), (4095, 2)] {
            // SAFETY: nothing is read.
            let put = unsafe { ranks[0].put(&windows[0], 1, at, std::ptr::null(), bytes) };
            assert!(matches!(put, Err(Error::InvalidArgument(_))), "{at} {bytes}: {put:?}");
        }
        assert!(!ranks[0].is_broken());
    }

    #[test]
    fn a_window_that_is_closed_is_no_target() {
        let ranks = ranks(20_000);
        let mut windows = windows(&ranks);
        ranks[0].signal(&windows[0], 1, 0).unwrap();
        windows[1].close();
        let closed = ranks[0].signal(&windows[0], 1, 0).unwrap_err();
        assert!(closed.to_string().contains("deregistered its window"), "{closed}");
        assert!(!ranks[0].is_broken());
        ranks[1].finalize().unwrap();
        let left = ranks[0].signal(&windows[0], 1, 0).unwrap_err();
        assert!(matches!(&left, Error::Remote { peer, .. } if peer.rank == 1), "{left}");
    }

    #[test]
    fn who_waits_for_a_signal_that_never_comes_is_told_whose() {
        let ranks = ranks(50);
        let windows = windows(&ranks);
        let late = ranks[0].await_signal(&windows[0], 1, 0, 1).unwrap_err();
        assert!(matches!(&late, Error::Timeout { .. }), "{late}");
        assert!(late.to_string().contains("rank 1"), "{late}");
        ranks[1].finalize().unwrap();
        drop(ranks.into_iter().nth(1));
    }

    #[test]
    fn who_waits_for_the_signal_of_a_rank_that_aborted_is_told_soon() {
        let ranks = ranks(20_000);
        let windows = windows(&ranks);
        ranks[1].abort();
        let gone = ranks[0].await_signal(&windows[0], 1, 0, 1).unwrap_err();
        assert!(matches!(&gone, Error::Remote { peer, .. } if peer.rank == 1), "{gone}");
    }
}
