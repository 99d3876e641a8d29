//! Where connections wait at the coordinator until they have proved themselves: 64 at most, two
//! seconds each.
//!
//! Nobody is waited for, as in a gate between machines (`tcp/pending.rs`): when all places are
//! taken, the oldest connection without a whole hello gives its place up to whoever comes. Only one
//! that has greeted, for which one needs no secret, keeps its place for [`SETTLED`].

use super::handshake::{LocalHandshake, PROOF_TIME};
use std::time::{Duration, Instant};

/// Most connections that may be proving themselves at one time.
pub(super) const MAX_CANDIDATES: usize = 64;

/// How long a candidate that has greeted keeps its place when others want it: a rank's proof takes
/// well under a millisecond, a tenth of a second also on a busy machine.
const SETTLED: Duration = Duration::from_millis(100);

/// Pause when descriptors have run out.
const EXHAUSTED: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(super) struct Admission {
    /// In the order in which they came.
    pub candidates: Vec<LocalHandshake>,
    paused_until: Option<Instant>,
    /// Why the last that came could not be taken.
    shortage: Option<i32>,
}

impl Admission {
    /// Whether a newcomer would be taken now.
    pub fn is_open(&self, now: Instant) -> bool {
        !self.is_pausing(now)
            && (self.candidates.len() < MAX_CANDIDATES || self.least_worthy(now).is_some())
    }

    fn is_pausing(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// The candidate whose place goes first.
    fn least_worthy(&self, now: Instant) -> Option<usize> {
        let silent = self.candidates.iter().position(|candidate| !candidate.is_challenged());
        silent.or_else(|| (now >= self.candidates.first()?.since + SETTLED).then_some(0))
    }

    /// Give a newcomer a place; who gave it up for that, if anybody.
    pub fn admit(&mut self, newcomer: LocalHandshake, now: Instant) -> Option<LocalHandshake> {
        let full = self.candidates.len() >= MAX_CANDIDATES;
        let evicted = full.then(|| self.least_worthy(now)).flatten();
        let evicted = evicted.map(|index| self.candidates.remove(index));
        self.candidates.push(newcomer);
        evicted
    }

    /// A newcomer could not be taken for this reason: whoever has not greeted gives its descriptor
    /// back, and the next try is soon. False if no other time will be better.
    pub fn pause(&mut self, errno: i32, now: Instant) -> bool {
        let is_passing = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM].contains(&errno);
        if is_passing {
            self.candidates.retain(LocalHandshake::is_challenged);
            (self.paused_until, self.shortage) = (Some(now + EXHAUSTED), Some(errno));
        }
        is_passing
    }

    /// Nobody waits whom the system does not give us.
    pub fn has_all(&mut self) {
        self.shortage = None;
    }

    /// What the system answered, if somebody has come since whom it does not give us.
    pub fn shortage(&self) -> Option<i32> {
        self.shortage
    }

    /// When there is something to do though nothing arrives: a place is free, or its time is over.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let resumed = self.paused_until.filter(|until| now < *until);
        // Shut because it is full, it opens when the first has had its time to settle.
        let patience = if self.is_open(now) || resumed.is_some() { PROOF_TIME } else { SETTLED };
        let settled = self.candidates.first().map(|candidate| candidate.since + patience);
        [resumed, settled].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::tests::{connection, hello, meeting};
    use super::*;
    use crate::bootstrap::UniqueId;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// A connection that says nothing, or half a hello.
    fn silent(words: &[u8]) -> (UnixStream, LocalHandshake) {
        let (mut theirs, mut ours) = connection();
        theirs.write_all(words).unwrap();
        ours.advance(&meeting(&UniqueId::generate().unwrap()));
        assert!(!ours.is_challenged());
        (theirs, ours)
    }

    fn greeted() -> (UnixStream, LocalHandshake) {
        let (mut theirs, mut ours) = connection();
        theirs.write_all(&hello(1)).unwrap();
        ours.advance(&meeting(&UniqueId::generate().unwrap()));
        assert!(ours.is_challenged());
        (theirs, ours)
    }

    fn full(
        of: impl Fn() -> (UnixStream, LocalHandshake),
    ) -> (Admission, Vec<UnixStream>, Instant) {
        let mut porch = Admission::default();
        let streams = (0..MAX_CANDIDATES).map(|_| {
            let (stream, candidate) = of();
            assert!(porch.is_open(candidate.since));
            assert!(porch.admit(candidate, Instant::now()).is_none());
            stream
        });
        let streams = streams.collect();
        let oldest = porch.candidates[0].since;
        (porch, streams, oldest)
    }

    #[test]
    fn who_is_silent_gives_way_at_once_and_a_rank_keeps_its_place() {
        let half = &hello(1)[..20];
        let (mut porch, _streams, now) = full(|| silent(half));
        assert!(porch.is_open(now), "nobody waits until a silent one is settled");
        let (_rank, ours) = greeted();
        assert_eq!(porch.admit(ours, now).map(|one| one.is_challenged()), Some(false));
        for _ in 0..3 * MAX_CANDIDATES {
            let (_, stranger) = silent(b"");
            assert!(porch.is_open(now));
            assert_eq!(porch.admit(stranger, now).map(|one| one.is_challenged()), Some(false));
        }
        let greeted = porch.candidates.iter().filter(|one| one.is_challenged()).count();
        assert_eq!((porch.candidates.len(), greeted), (MAX_CANDIDATES, 1));
        assert_eq!(porch.next_deadline(now), Some(porch.candidates[0].since + PROOF_TIME));
    }

    #[test]
    fn who_has_greeted_keeps_its_place_for_a_moment() {
        let (mut porch, _streams, oldest) = full(greeted);
        assert!(!porch.is_open(oldest));
        assert_eq!(porch.next_deadline(oldest), Some(oldest + SETTLED));
        let now = oldest + SETTLED;
        assert!(porch.is_open(now));
        assert_eq!(porch.next_deadline(now), Some(oldest + PROOF_TIME), "no need to wake up");
        let evicted = porch.admit(greeted().1, now).expect("the oldest");
        assert_eq!((evicted.since, porch.candidates.len()), (oldest, MAX_CANDIDATES));
    }

    #[test]
    fn out_of_descriptors_the_silent_go_and_the_others_are_tried_again_soon() {
        let mut porch = Admission::default();
        let now = Instant::now();
        let ((_one, stranger), (_two, rank)) = (silent(b""), greeted());
        porch.admit(stranger, now);
        porch.admit(rank, now);
        assert!(porch.pause(libc::EMFILE, now));
        assert!(porch.candidates.len() == 1 && porch.candidates[0].is_challenged());
        assert_eq!((porch.is_open(now), porch.shortage()), (false, Some(libc::EMFILE)));
        assert_eq!(porch.next_deadline(now), Some(now + EXHAUSTED));
        assert!(porch.is_open(now + EXHAUSTED));
        porch.has_all();
        assert_eq!(porch.shortage(), None);
        assert!(!porch.pause(libc::EBADF, now), "that never gets better");
    }
}
