//! A connection that has proved nothing yet: bounded in bytes and in time.

use super::socket::{UnixSocket, is_not_yet};
use super::wire::{CHALLENGE_HEAD, Challenge, HELLO, LocalHello, PROOF};
use super::{COORDINATOR, LocalRendezvous, MEMBER, nonce};
use crate::bootstrap::admission::Unproven;
use crate::os::sockets::PeerCredentials;
use std::time::Instant;

pub(super) struct LocalHandshake {
    pub socket: UnixSocket,
    pub peer: PeerCredentials,
    pub since: Instant,
    bytes: [u8; HELLO],
    have: usize,
    challenged: Option<Challenged>,
}

/// A handshake in which the coordinator has given its proof.
struct Challenged {
    hello: LocalHello,
    said: [u8; HELLO],
    answered: [u8; CHALLENGE_HEAD],
}

pub(in crate::bootstrap) enum HandshakeProgress {
    Waiting,
    Proved(LocalHello),
    /// It cannot prove itself, or it hung up.
    Refused,
}

impl Unproven for LocalHandshake {
    fn since(&self) -> Instant {
        self.since
    }

    /// Whether it has our challenge, and so would understand a frame.
    fn has_greeted(&self) -> bool {
        self.challenged.is_some()
    }
}

impl LocalHandshake {
    /// `None` if the kernel says that it runs under another user.
    pub fn new(socket: UnixSocket) -> Option<LocalHandshake> {
        let peer = socket.peer().ok().filter(PeerCredentials::is_ours)?;
        let since = Instant::now();
        Some(LocalHandshake { socket, peer, since, bytes: [0; HELLO], have: 0, challenged: None })
    }

    /// Read what has come and answer it.
    pub fn advance(&mut self, rendezvous: &LocalRendezvous) -> HandshakeProgress {
        loop {
            let need = if self.challenged.is_some() { PROOF } else { HELLO };
            match self.socket.receive(&mut self.bytes[self.have..need], None) {
                Ok(0) => return HandshakeProgress::Refused,
                Ok(got) => self.have += got,
                Err(error) if is_not_yet(&error) => return HandshakeProgress::Waiting,
                Err(_) => return HandshakeProgress::Refused,
            }
            if self.have < need {
                continue;
            }
            self.have = 0;
            let Some(challenged) = &self.challenged else {
                if !self.challenge(rendezvous) {
                    return HandshakeProgress::Refused;
                }
                continue;
            };
            let tag = self.bytes[..PROOF].try_into().expect("a proof's length");
            if !rendezvous.proves(MEMBER, &challenged.said, &challenged.answered, tag) {
                return HandshakeProgress::Refused;
            }
            return HandshakeProgress::Proved(challenged.hello.clone());
        }
    }

    /// Answer the hello with a challenge; false if it was none.
    fn challenge(&mut self, rendezvous: &LocalRendezvous) -> bool {
        let (Ok(hello), Ok(nonce)) = (LocalHello::decode(&self.bytes), nonce()) else {
            return false;
        };
        let (rank, nranks) = (rendezvous.rank as u32, rendezvous.nranks as u32);
        let mut challenge = Challenge { rank, nranks, nonce, tag: [0; 32] };
        let (said, answered) = (self.bytes, challenge.head());
        challenge.tag = rendezvous.tag(COORDINATOR, &said, &answered);
        let bytes = challenge.encode();
        self.challenged = Some(Challenged { hello, said, answered });
        // The first bytes on this connection: they fit, or the other end is gone.
        self.socket.send(&bytes, &[]).is_ok_and(|sent| sent == bytes.len())
    }
}

#[cfg(test)]
pub(in crate::bootstrap) mod tests {
    use super::*;
    use crate::bootstrap::local::wire::CHALLENGE;
    use crate::bootstrap::{LivenessProbe, UniqueId};
    use proptest::prelude::*;
    use std::io::{Read, Write, stderr};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    pub fn rendezvous(id: &UniqueId) -> LocalRendezvous<'_> {
        let now = Instant::now();
        let deadline = now + Duration::from_secs(5);
        LocalRendezvous {
            id,
            rank: 0,
            nranks: 3,
            started: now,
            deadline,
            liveness_probe: LivenessProbe::default(),
        }
    }

    pub fn connection() -> (UnixStream, LocalHandshake) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (theirs, LocalHandshake::new(UnixSocket::from(std::os::fd::OwnedFd::from(ours))).unwrap())
    }

    #[test]
    fn a_connection_of_another_user_is_refused() {
        let me = crate::bootstrap::process::user();
        assert!(LocalHandshake::new(UnixSocket::of_user(me).expect("no change")).is_some());
        match UnixSocket::of_user(me + 1) {
            Some(socket) => assert!(LocalHandshake::new(socket).is_none()),
            None => {
                // Past the harness, which keeps what a test prints that passes.
                let test = "a_connection_of_another_user_is_refused";
                let why = "only root may act as another user";
                let _ = writeln!(stderr(), "skipped: {}::{test}: {why}", module_path!());
            }
        }
    }

    pub fn hello(nonce: u8) -> [u8; HELLO] {
        LocalHello { rank: 1, nranks: 3, remaining_ms: 5000, nonce: [nonce; 32] }.encode()
    }

    /// Greet, have `tamper` change the proof, and see what comes of it.
    fn handshake(
        rendezvous: &LocalRendezvous,
        said: &[u8; HELLO],
        proof_of: &[u8; HELLO],
        tamper: impl FnOnce(&mut [u8; PROOF]),
    ) -> HandshakeProgress {
        let (mut stream, mut candidate) = connection();
        stream.write_all(said).unwrap();
        assert!(matches!(candidate.advance(rendezvous), HandshakeProgress::Waiting));
        let mut bytes = [0; CHALLENGE];
        stream.read_exact(&mut bytes).unwrap();
        let challenge = Challenge::decode(&bytes).unwrap();
        assert!(rendezvous.proves(COORDINATOR, said, &challenge.head(), &challenge.tag));
        let mut proof = rendezvous.tag(MEMBER, proof_of, &challenge.head());
        tamper(&mut proof);
        stream.write_all(&proof).unwrap();
        candidate.advance(rendezvous)
    }

    #[test]
    fn only_the_secret_proves() {
        let (id, other) = (UniqueId::generate().unwrap(), UniqueId::generate().unwrap());
        let (rendezvous, stranger) = (rendezvous(&id), self::rendezvous(&other));
        let said = hello(1);
        let HandshakeProgress::Proved(known) = handshake(&rendezvous, &said, &said, |_| {}) else {
            panic!()
        };
        assert_eq!((known.rank, known.nranks), (1, 3));
        let forged = |proof: &mut [u8; PROOF]| *proof = stranger.tag(MEMBER, &said, &[0; 52]);
        assert!(matches!(handshake(&rendezvous, &said, &said, forged), HandshakeProgress::Refused));
    }

    #[test]
    fn a_replayed_or_reflected_proof_is_refused() {
        let id = UniqueId::generate().unwrap();
        let rendezvous = rendezvous(&id);
        let said = hello(1);
        let mut recorded = [0; PROOF];
        handshake(&rendezvous, &said, &said, |proof| recorded = *proof);
        let replay = |proof: &mut [u8; PROOF]| *proof = recorded;
        assert!(matches!(handshake(&rendezvous, &said, &said, replay), HandshakeProgress::Refused));
        // The coordinator's own tag, sent back to it.
        let (mut stream, mut candidate) = connection();
        stream.write_all(&said).unwrap();
        candidate.advance(&rendezvous);
        let mut bytes = [0; CHALLENGE];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes[CHALLENGE_HEAD..]).unwrap();
        assert!(matches!(candidate.advance(&rendezvous), HandshakeProgress::Refused));
    }

    proptest! {
        #[test]
        fn a_flipped_byte_is_refused(at in 0usize..HELLO + PROOF, flip in 1u8..) {
            let id = UniqueId::generate().unwrap();
            let rendezvous = rendezvous(&id);
            let said = hello(1);
            // What the rank meant, and what arrived.
            let mut arrived = said;
            if at < HELLO {
                arrived[at] ^= flip;
            }
            if LocalHello::decode(&arrived).is_ok() {
                let tamper = |proof: &mut [u8; PROOF]| {
                    if at >= HELLO {
                        proof[at - HELLO] ^= flip;
                    }
                };
                let progress = handshake(&rendezvous, &arrived, &said, tamper);
                prop_assert!(matches!(progress, HandshakeProgress::Refused));
            } else {
                let (mut stream, mut candidate) = connection();
                stream.write_all(&arrived).unwrap();
                prop_assert!(matches!(candidate.advance(&rendezvous), HandshakeProgress::Refused));
            }
        }

        #[test]
        fn random_bytes_never_prove(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let id = UniqueId::generate().unwrap();
            let (mut stream, mut candidate) = connection();
            stream.write_all(&bytes).unwrap();
            drop(stream);
            let progress = candidate.advance(&rendezvous(&id));
            prop_assert!(!matches!(progress, HandshakeProgress::Proved(_)));
        }
    }
}
