//! Where callers wait until they have proved themselves: at most 64, two seconds each.
//!
//! Nobody is waited for. When all places are taken, the oldest caller that has sent no hello made
//! with the secret gives its place up: a thousand silent sockets pass through as fast as they can
//! be accepted, while a rank, whose hello comes with its connection, keeps its place. Only
//! recordings of a rank's hello hold a place for longer, and they for [`SETTLED`].

use super::Refusal;
use super::handshake::{Handshake, Keys, SharedSecret};
use super::hello::{ANYONE, Hello, ROOT};
use super::io::{ByteStream, ended, is_not_yet};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Callers that have not proved themselves yet, at most: what strangers can make us hold is 64
/// descriptors and 64 handshakes of fixed size.
pub const MOST_UNPROVED: usize = 64;

/// Time to prove oneself: four messages over the slowest of networks.
pub const PROOF_TIME: Duration = Duration::from_secs(2);

/// How long a caller that has greeted keeps its place when others want it: some round trips of a
/// wide network.
const SETTLED: Duration = Duration::from_millis(100);

/// Connections taken in one go, so that a flood of them does not keep the gate from its callers.
const MOST_AT_ONCE: usize = 1024;

/// Pause when descriptors have run out.
const EXHAUSTED: Duration = Duration::from_millis(10);

/// A connection whose other end has proved itself.
pub struct ProvenConnection<S> {
    pub stream: S,
    pub greeting: Hello,
    pub keys: Keys,
    pub address: SocketAddr,
    /// How long its handshake took.
    pub took: Duration,
}

struct Caller<S> {
    stream: S,
    address: SocketAddr,
    since: Instant,
    handshake: Handshake,
}

/// Counts of what came, for tests and dumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionStats {
    pub proved: u64,
    /// Hung up on because of what they sent.
    pub refused: u64,
    /// Hung up on because their time was over or their place was needed.
    pub evicted: u64,
}

pub struct PendingPeers<S> {
    secret: SharedSecret,
    callers: Vec<Caller<S>>,
    /// The rank that lives here, once it is known.
    rank: Option<u32>,
    /// Who lives here introduces the others.
    is_root: bool,
    paused_until: Option<Instant>,
    /// Why the last that came could not be taken.
    shortage: Option<i32>,
    pub tally: AdmissionStats,
}

impl<S: ByteStream> PendingPeers<S> {
    pub fn new(secret: SharedSecret) -> PendingPeers<S> {
        let (callers, tally) = (Vec::with_capacity(MOST_UNPROVED), AdmissionStats::default());
        let (rank, paused_until, shortage) = (None, None, None);
        PendingPeers { secret, callers, rank, is_root: false, paused_until, shortage, tally }
    }

    /// From now on callers that mean another rank are turned away.
    pub fn set_rank(&mut self, rank: u32) {
        self.rank = Some(rank);
    }

    /// Callers that mean the root are right here.
    pub fn set_root(&mut self) {
        self.is_root = true;
    }

    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// Go on with every caller that can, and take new ones from `accept` until it has none.
    pub fn advance(
        &mut self,
        now: Instant,
        mut accept: impl FnMut() -> io::Result<Option<(S, SocketAddr)>>,
    ) -> Vec<ProvenConnection<S>> {
        let mut proved = Vec::new();
        for caller in std::mem::take(&mut self.callers) {
            self.examine(caller, now, &mut proved);
        }
        for _ in 0..MOST_AT_ONCE {
            if !self.is_open(now) {
                break;
            }
            let accepted = accept();
            self.shortage = accepted.as_ref().err().and_then(io::Error::raw_os_error);
            match accepted {
                Ok(Some((stream, address))) => self.admit(stream, address, now, &mut proved),
                Ok(None) => break,
                Err(_) => {
                    // Out of descriptors or memory: whoever has not greeted gives its own back.
                    self.evict_silent();
                    self.paused_until = Some(now + EXHAUSTED);
                }
            }
        }
        proved
    }

    /// What the system answered, if somebody has come since whom it does not give us.
    pub fn shortage(&self) -> Option<i32> {
        self.shortage
    }

    /// Whether a new caller would be taken now.
    pub fn is_open(&self, now: Instant) -> bool {
        let pausing = self.paused_until.is_some_and(|until| now < until);
        !pausing && (self.callers.len() < MOST_UNPROVED || self.least_worthy(now).is_some())
    }

    /// The caller whose place goes first.
    fn least_worthy(&self, now: Instant) -> Option<usize> {
        let silent = self.callers.iter().position(|caller| !caller.handshake.is_greeted());
        // Callers are in the order in which they came.
        silent.or_else(|| (now >= self.callers.first()?.since + SETTLED).then_some(0))
    }

    fn admit(
        &mut self,
        stream: S,
        address: SocketAddr,
        now: Instant,
        proved: &mut Vec<ProvenConnection<S>>,
    ) {
        let Ok(handshake) = Handshake::gate(&self.secret) else { return };
        if self.callers.len() >= MOST_UNPROVED {
            let Some(index) = self.least_worthy(now) else { return };
            self.callers.remove(index);
            self.tally.evicted += 1;
        }
        self.examine(Caller { stream, address, since: now, handshake }, now, proved);
    }

    fn evict_silent(&mut self) {
        let before = self.callers.len();
        self.callers.retain(|caller| caller.handshake.is_greeted());
        self.tally.evicted += (before - self.callers.len()) as u64;
    }

    /// One caller's turn: it stays, is through, or is gone.
    fn examine(
        &mut self,
        mut caller: Caller<S>,
        now: Instant,
        proved: &mut Vec<ProvenConnection<S>>,
    ) {
        let shaken = shake(&mut caller.stream, &mut caller.handshake);
        match shaken {
            Ok(_) if self.is_elsewhere(&caller.handshake) => self.tally.refused += 1,
            Ok(Some(keys)) => {
                let greeting = caller.handshake.greeting().cloned();
                let greeting = greeting.expect("a gate has keys only after a greeting");
                self.tally.proved += 1;
                let Caller { stream, address, since, .. } = caller;
                let took = now.saturating_duration_since(since);
                proved.push(ProvenConnection { stream, greeting, keys, address, took });
            }
            Ok(None) if now >= caller.since + PROOF_TIME => self.tally.evicted += 1,
            Ok(None) => self.callers.push(caller),
            Err(_) => self.tally.refused += 1,
        }
    }

    /// Whether the caller means another rank.
    fn is_elsewhere(&self, handshake: &Handshake) -> bool {
        let Some(greeting) = handshake.greeting() else { return false };
        match greeting.to {
            ANYONE => false,
            ROOT => !self.is_root,
            to => self.rank.is_some_and(|rank| rank != to),
        }
    }

    /// Callers that wait, with whether they have something to send.
    pub fn callers(&self) -> impl Iterator<Item = (&S, bool)> {
        let sending = |caller: &Caller<S>| !caller.handshake.outgoing().is_empty();
        self.callers.iter().map(move |caller| (&caller.stream, sending(caller)))
    }

    /// When [`PendingPeers::advance`] has something to do though nothing arrives.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let resumed = self.paused_until.filter(|until| now < *until);
        let first = self.callers.first().map(|caller| caller.since);
        // Shut because it is full, it opens when the first has had its time to settle.
        let patience = if self.is_open(now) || resumed.is_some() { PROOF_TIME } else { SETTLED };
        let settled = first.map(|since| since + patience);
        [resumed, settled].into_iter().flatten().min()
    }
}

/// Why a handshake ended without keys.
#[derive(Debug)]
pub enum HandshakeBroken {
    Refused(Refusal),
    Network(io::Error),
}

/// Move what can be moved between a stream and a handshake; the keys once it is done.
pub fn shake(
    stream: &mut impl ByteStream,
    handshake: &mut Handshake,
) -> Result<Option<Keys>, HandshakeBroken> {
    loop {
        while !handshake.outgoing().is_empty() {
            match stream.send(handshake.outgoing()) {
                Ok(sent) => handshake.sent(sent),
                Err(error) if is_not_yet(&error) => return Ok(None),
                Err(error) => return Err(HandshakeBroken::Network(error)),
            }
        }
        if let Some(keys) = handshake.keys() {
            return Ok(Some(keys.clone()));
        }
        let mut bytes = [0; super::handshake::HELLO];
        match stream.receive(&mut bytes[..handshake.wanted()]) {
            Ok(0) => return Err(HandshakeBroken::Network(ended())),
            Ok(got) => handshake.feed(&bytes[..got]).map_err(HandshakeBroken::Refused)?,
            Err(error) if is_not_yet(&error) => return Ok(None),
            Err(error) => return Err(HandshakeBroken::Network(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::HELLO;
    use super::super::hello::Purpose;
    use super::*;
    use crate::bootstrap::UniqueId;

    /// Says its words, hears nothing, and stays.
    struct Line(Vec<u8>);

    impl ByteStream for Line {
        fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let got = bytes.len().min(self.0.len());
            bytes[..got].copy_from_slice(&self.0[..got]);
            self.0.drain(..got);
            if got == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(got) }
        }

        fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn finish(&mut self) {}
    }

    struct Scene {
        lobby: PendingPeers<Line>,
        hello: Vec<u8>,
        now: Instant,
    }

    impl Scene {
        fn new() -> Scene {
            let secret = SharedSecret::new(&UniqueId::generate().unwrap());
            let (purpose, rank, to) = (Purpose::Meet, 1, ANYONE);
            let greeting = Hello { purpose, rank, to, nranks: 2, lane: 0, note: 0 };
            let hello = Handshake::caller(&secret, &greeting).unwrap().outgoing().to_vec();
            assert_eq!(hello.len(), HELLO);
            Scene { lobby: PendingPeers::new(secret), hello, now: Instant::now() }
        }

        fn greeted(&self) -> usize {
            self.lobby.callers.iter().filter(|caller| caller.handshake.is_greeted()).count()
        }
    }

    /// One connection after another, each by itself.
    fn each(scene: &mut Scene, count: usize, words: &[u8]) {
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        for _ in 0..count {
            let mut next = Some((Line(words.to_vec()), from));
            let proved = scene.lobby.advance(scene.now, || Ok(next.take()));
            assert!(proved.is_empty());
        }
    }

    #[test]
    fn silent_callers_give_way_and_a_rank_keeps_its_place() {
        let mut scene = Scene::new();
        each(&mut scene, 1000, b"");
        let hello = scene.hello.clone();
        each(&mut scene, 1, &hello);
        each(&mut scene, 1000, b"ringnet");
        assert_eq!((scene.lobby.callers.len(), scene.greeted()), (MOST_UNPROVED, 1));
        assert_eq!(scene.lobby.tally.evicted, 2001 - MOST_UNPROVED as u64);
    }

    #[test]
    fn recordings_hold_their_places_for_a_moment_only() {
        let mut scene = Scene::new();
        let hello = scene.hello.clone();
        each(&mut scene, MOST_UNPROVED, &hello);
        assert_eq!(scene.greeted(), MOST_UNPROVED);
        assert!(!scene.lobby.is_open(scene.now));
        assert_eq!(scene.lobby.next_deadline(scene.now), Some(scene.now + SETTLED));
        scene.now += SETTLED;
        assert!(scene.lobby.is_open(scene.now));
        each(&mut scene, 10, &hello);
        assert_eq!((scene.greeted(), scene.lobby.tally.evicted), (MOST_UNPROVED, 10));
    }

    #[test]
    fn nobody_stays_longer_than_the_time_to_prove_itself() {
        let mut scene = Scene::new();
        let hello = scene.hello.clone();
        each(&mut scene, 3, &hello);
        each(&mut scene, 3, b"");
        scene.now += PROOF_TIME;
        assert!(scene.lobby.next_deadline(scene.now).is_some_and(|at| at <= scene.now));
        scene.lobby.advance(scene.now, || Ok(None));
        assert_eq!((scene.lobby.callers.len(), scene.lobby.tally.evicted), (0, 6));
        assert_eq!(scene.lobby.next_deadline(scene.now), None);
    }

    #[test]
    fn out_of_descriptors_the_silent_go_and_the_gate_pauses() {
        let mut scene = Scene::new();
        let hello = scene.hello.clone();
        each(&mut scene, 2, &hello);
        each(&mut scene, 3, b"");
        scene.lobby.advance(scene.now, || Err(io::Error::from_raw_os_error(libc::EMFILE)));
        assert_eq!((scene.lobby.callers.len(), scene.greeted()), (2, 2));
        assert!(!scene.lobby.is_open(scene.now));
        assert_eq!(scene.lobby.shortage(), Some(libc::EMFILE));
        scene.now += EXHAUSTED;
        assert!(scene.lobby.is_open(scene.now));
        each(&mut scene, 1, &hello);
        assert_eq!((scene.greeted(), scene.lobby.shortage()), (3, None));
    }
}
