//! Admission: where connections wait until they have proved themselves, 64 for two seconds each.
//!
//! Nobody is waited for. When all places are taken, the oldest connection without a whole hello
//! gives its place up to whoever comes: a thousand silent sockets pass through as fast as they can
//! be accepted, while a rank, whose hello comes with its connection, keeps its place. One that has
//! greeted keeps its place for [`SETTLED`] when others want it.

use std::io;
use std::time::{Duration, Instant};

/// Connections that have not proved themselves yet, at most: what strangers can make a process hold
/// is 64 descriptors and 64 handshakes of fixed size.
pub const MOST_UNPROVED: usize = 64;

/// Time to prove oneself: four messages over the slowest of networks.
pub const PROOF_TIME: Duration = Duration::from_secs(2);

/// How long a connection that has greeted keeps its place when others want it: some round trips of
/// a wide network.
const SETTLED: Duration = Duration::from_millis(100);

/// Pause when descriptors have run out.
const EXHAUSTED: Duration = Duration::from_millis(10);

/// A connection that has yet to prove itself.
pub trait Unproven {
    fn since(&self) -> Instant;

    /// Whether its hello has come, whole.
    fn has_greeted(&self) -> bool;
}

/// The places, and why none is free.
pub struct Admission<T> {
    /// In the order in which they came.
    pub waiting: Vec<T>,
    paused_until: Option<Instant>,
    /// Why the last that came could not be taken.
    shortage: Option<i32>,
}

impl<T> Default for Admission<T> {
    fn default() -> Admission<T> {
        let waiting = Vec::with_capacity(MOST_UNPROVED);
        Admission { waiting, paused_until: None, shortage: None }
    }
}

impl<T: Unproven> Admission<T> {
    /// Whether a newcomer would be taken now.
    pub fn is_open(&self, now: Instant) -> bool {
        let is_pausing = self.paused_until.is_some_and(|until| now < until);
        !is_pausing && (self.waiting.len() < MOST_UNPROVED || self.least_worthy(now).is_some())
    }

    /// The connection whose place goes first.
    fn least_worthy(&self, now: Instant) -> Option<usize> {
        let silent = self.waiting.iter().position(|one| !one.has_greeted());
        silent.or_else(|| (now >= self.waiting.first()?.since() + SETTLED).then_some(0))
    }

    /// Free a place for a newcomer, where none is free; who gives it up for that.
    pub fn make_room(&mut self, now: Instant) -> Option<T> {
        let is_full = self.waiting.len() >= MOST_UNPROVED;
        let evicted = is_full.then(|| self.least_worthy(now)).flatten();
        evicted.map(|index| self.waiting.remove(index))
    }

    /// A newcomer could not be taken for this reason: whoever has not greeted gives its descriptor
    /// back, and the next try is soon.
    pub fn pause(&mut self, errno: Option<i32>, now: Instant) {
        self.waiting.retain(Unproven::has_greeted);
        (self.paused_until, self.shortage) = (Some(now + EXHAUSTED), errno);
    }

    /// The system gives a descriptor for everybody who comes.
    pub fn clear_shortage(&mut self) {
        self.shortage = None;
    }

    /// What the system answered, if it gives none for somebody who has come since.
    pub fn shortage(&self) -> Option<i32> {
        self.shortage
    }

    /// When there is something to do though nothing arrives: a place is free, or its time is over.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let resumed = self.paused_until.filter(|until| now < *until);
        // Shut because it is full, it opens when the first has had its time to settle.
        let patience = if self.is_open(now) || resumed.is_some() { PROOF_TIME } else { SETTLED };
        let settled = self.waiting.first().map(|one| one.since() + patience);
        [resumed, settled].into_iter().flatten().min()
    }
}

/// Whether the system may give a descriptor to who asks again, soon.
pub fn is_transient(error: &io::Error) -> bool {
    let passing = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|errno| passing.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Caller(Instant, bool);

    impl Unproven for Caller {
        fn since(&self) -> Instant {
            self.0
        }

        fn has_greeted(&self) -> bool {
            self.1
        }
    }

    fn full(has_greeted: bool) -> (Admission<Caller>, Instant) {
        let (mut admission, now) = (Admission::default(), Instant::now());
        for _ in 0..MOST_UNPROVED {
            assert!(admission.is_open(now) && admission.make_room(now).is_none());
            admission.waiting.push(Caller(now, has_greeted));
        }
        (admission, now)
    }

    #[test]
    fn who_is_silent_gives_way_at_once_and_a_rank_keeps_its_place() {
        let (mut admission, now) = full(false);
        for has_greeted in std::iter::once(true).chain([false; 3 * MOST_UNPROVED]) {
            assert!(admission.is_open(now), "nobody waits until a silent one is settled");
            assert_eq!(admission.make_room(now), Some(Caller(now, false)));
            admission.waiting.push(Caller(now, has_greeted));
        }
        let greeted = admission.waiting.iter().filter(|one| one.1).count();
        assert_eq!((admission.waiting.len(), greeted), (MOST_UNPROVED, 1));
        assert_eq!(admission.next_deadline(now), Some(now + PROOF_TIME));
    }

    #[test]
    fn who_has_greeted_keeps_its_place_for_a_moment() {
        let (mut admission, oldest) = full(true);
        assert!(!admission.is_open(oldest) && admission.make_room(oldest).is_none());
        assert_eq!(admission.next_deadline(oldest), Some(oldest + SETTLED));
        let now = oldest + SETTLED;
        assert!(admission.is_open(now));
        assert_eq!(admission.next_deadline(now), Some(oldest + PROOF_TIME), "no need to wake up");
        assert_eq!(admission.make_room(now), Some(Caller(oldest, true)));
    }

    #[test]
    fn out_of_descriptors_the_silent_go_and_the_others_are_tried_again_soon() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        admission.waiting.extend([Caller(now, false), Caller(now, true)]);
        admission.pause(Some(libc::EMFILE), now);
        assert_eq!(admission.waiting, [Caller(now, true)]);
        assert_eq!((admission.is_open(now), admission.shortage()), (false, Some(libc::EMFILE)));
        assert_eq!(admission.next_deadline(now), Some(now + EXHAUSTED));
        assert!(admission.is_open(now + EXHAUSTED));
        admission.clear_shortage();
        assert_eq!(admission.shortage(), None);
        let never = io::Error::from_raw_os_error(libc::EBADF);
        assert!(!is_transient(&never) && is_transient(&io::Error::from_raw_os_error(libc::EMFILE)));
    }
}
