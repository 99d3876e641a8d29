//! Where callers from other hosts wait until they have proved themselves, under the policy of
//! [`admission`](crate::bootstrap::admission).

use super::Refusal;
use super::handshake::{Handshake, Keys, SharedSecret};
use super::hello::{ANYONE, Hello, ROOT};
use super::stream_traits::{ByteStream, is_not_yet, unexpected_eof};
use crate::bootstrap::admission::{Admission, PROOF_TIME, Unproven};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Connections taken in one go, so that a flood of them does not keep the listener from its
/// callers.
const MOST_AT_ONCE: usize = 1024;

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

impl<S> Unproven for Caller<S> {
    fn since(&self) -> Instant {
        self.since
    }

    fn has_greeted(&self) -> bool {
        self.handshake.is_greeted()
    }
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
    admission: Admission<Caller<S>>,
    /// The rank that lives here, once it is known.
    rank: Option<u32>,
    /// Who lives here introduces the others.
    is_root: bool,
    pub tally: AdmissionStats,
}

impl<S: ByteStream> PendingPeers<S> {
    pub fn new(secret: SharedSecret) -> PendingPeers<S> {
        let (admission, tally) = (Admission::default(), AdmissionStats::default());
        PendingPeers { secret, admission, rank: None, is_root: false, tally }
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
        for caller in std::mem::take(&mut self.admission.waiting) {
            self.examine(caller, now, &mut proved);
        }
        for _ in 0..MOST_AT_ONCE {
            if !self.is_open(now) {
                break;
            }
            match accept() {
                Ok(accepted) => {
                    self.admission.clear_shortage();
                    let Some((stream, address)) = accepted else { break };
                    self.admit(stream, address, now, &mut proved);
                }
                // Out of descriptors or memory.
                Err(error) => {
                    let before = self.admission.waiting.len();
                    self.admission.pause(error.raw_os_error(), now);
                    self.tally.evicted += (before - self.admission.waiting.len()) as u64;
                }
            }
        }
        proved
    }

    /// What the system answered, if it gives no descriptor for somebody who has come since.
    pub fn shortage(&self) -> Option<i32> {
        self.admission.shortage()
    }

    /// Whether that is so though nobody who has yet to prove himself holds any.
    pub fn is_starved(&self) -> bool {
        self.shortage().is_some() && self.admission.waiting.is_empty()
    }

    /// Whether a new caller would be taken now.
    pub fn is_open(&self, now: Instant) -> bool {
        self.admission.is_open(now)
    }

    fn admit(
        &mut self,
        stream: S,
        address: SocketAddr,
        now: Instant,
        proved: &mut Vec<ProvenConnection<S>>,
    ) {
        let Ok(handshake) = Handshake::listener(&self.secret) else { return };
        self.tally.evicted += u64::from(self.admission.make_room(now).is_some());
        self.examine(Caller { stream, address, since: now, handshake }, now, proved);
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
                let greeting = greeting.expect("a listener has keys only after a greeting");
                self.tally.proved += 1;
                let Caller { stream, address, since, .. } = caller;
                let took = now.saturating_duration_since(since);
                proved.push(ProvenConnection { stream, greeting, keys, address, took });
            }
            Ok(None) if now >= caller.since + PROOF_TIME => self.tally.evicted += 1,
            Ok(None) => self.admission.waiting.push(caller),
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
        self.admission.waiting.iter().map(move |caller| (&caller.stream, sending(caller)))
    }

    /// When [`PendingPeers::advance`] has something to do though nothing arrives.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.admission.next_deadline(now)
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
            Ok(0) => return Err(HandshakeBroken::Network(unexpected_eof())),
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
    use crate::bootstrap::admission::MOST_UNPROVED;

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
        pending_peers: PendingPeers<Line>,
        hello: Vec<u8>,
        now: Instant,
    }

    impl Scene {
        fn new() -> Scene {
            let secret = SharedSecret::new(&UniqueId::generate().unwrap());
            let (purpose, rank, to) = (Purpose::Meet, 1, ANYONE);
            let greeting = Hello { purpose, rank, to, nranks: 2, detail: 0, note: 0 };
            let hello = Handshake::caller(&secret, &greeting).unwrap().outgoing().to_vec();
            assert_eq!(hello.len(), HELLO);
            Scene { pending_peers: PendingPeers::new(secret), hello, now: Instant::now() }
        }

        fn greeted(&self) -> usize {
            self.pending_peers
                .admission
                .waiting
                .iter()
                .filter(|caller| caller.handshake.is_greeted())
                .count()
        }
    }

    /// One connection after another, each by itself.
    fn each(scene: &mut Scene, count: usize, words: &[u8]) {
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        for _ in 0..count {
            let mut next = Some((Line(words.to_vec()), from));
            let proved = scene.pending_peers.advance(scene.now, || Ok(next.take()));
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
        assert_eq!(
            (scene.pending_peers.admission.waiting.len(), scene.greeted()),
            (MOST_UNPROVED, 1)
        );
        assert_eq!(scene.pending_peers.tally.evicted, 2001 - MOST_UNPROVED as u64);
    }

    #[test]
    fn nobody_stays_longer_than_the_time_to_prove_itself() {
        let mut scene = Scene::new();
        let hello = scene.hello.clone();
        each(&mut scene, 3, &hello);
        each(&mut scene, 3, b"");
        scene.now += PROOF_TIME;
        assert!(scene.pending_peers.next_deadline(scene.now).is_some_and(|at| at <= scene.now));
        scene.pending_peers.advance(scene.now, || Ok(None));
        assert_eq!(
            (scene.pending_peers.admission.waiting.len(), scene.pending_peers.tally.evicted),
            (0, 6)
        );
        assert_eq!(scene.pending_peers.next_deadline(scene.now), None);
    }

    #[test]
    fn out_of_descriptors_the_silent_go_and_the_listener_pauses() {
        let mut scene = Scene::new();
        let hello = scene.hello.clone();
        each(&mut scene, 2, &hello);
        each(&mut scene, 3, b"");
        scene.pending_peers.advance(scene.now, || Err(io::Error::from_raw_os_error(libc::EMFILE)));
        assert_eq!((scene.pending_peers.admission.waiting.len(), scene.greeted()), (2, 2));
        assert!(!scene.pending_peers.is_open(scene.now));
        assert_eq!(scene.pending_peers.shortage(), Some(libc::EMFILE));
        scene.now += Duration::from_secs(1);
        assert!(scene.pending_peers.is_open(scene.now));
        each(&mut scene, 1, &hello);
        assert_eq!((scene.greeted(), scene.pending_peers.shortage()), (3, None));
    }
}
