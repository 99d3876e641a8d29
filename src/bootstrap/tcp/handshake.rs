//! Four messages of fixed size after which both ends know that the other holds the secret.
//!
//! ```text
//! caller                                        listener
//!   magic, version, Noise message 1 (greeting) ->
//!                                              <- Noise message 2
//!   proof                                      ->
//!                                              <- welcome
//! ```
//!
//! The messages 1 and 2 are Noise's `NNpsk0`: each end brings a fresh ephemeral key and both mix in
//! a key made from the unique id's secret. Message 1 can be a recording, message 2 answers it with
//! a key that no recording knows, and the proof is an HMAC under keys that only this handshake
//! gives; so whoever sends it holds the secret *now*. The welcome tells the caller that the
//! listener let it in: until then a listener that is full may hang up, and the caller tries again.
//!
//! Pure: fed with bytes, gives bytes. It never asks for more than the rest of the message that is
//! due, so that what follows a handshake on the wire stays there.

use super::Refusal;
use super::hello::{GREETING, Hello};
use crate::bootstrap::unique_id::UniqueId;
use crate::crypto::{hmac, hmac_is, noise_primitives};
use snow::resolvers::BoxedCryptoResolver;
use snow::{Builder, HandshakeState};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const MAGIC: [u8; 8] = *b"ringnet\0";
const VERSION: u32 = 2;

/// Magic and version: in clear, so that a stranger is known by its first bytes.
const PREAMBLE: usize = 12;
/// A Curve25519 public key.
const KEY: usize = 32;
/// An authentication tag of AES-GCM.
const TAG: usize = 16;

/// Bytes of the caller's first message.
pub const HELLO: usize = PREAMBLE + KEY + GREETING + TAG;
/// Bytes of the listener's answer.
pub const ANSWER: usize = KEY + TAG;
/// Bytes of the proof and of the welcome.
pub const PROOF: usize = 32;

/// The keys of one connection, fresh from its handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub send: [u8; 32],
    pub receive: [u8; 32],
}

/// Where Noise takes its primitives and its randomness from.
pub(crate) type Primitives = fn() -> BoxedCryptoResolver;

/// The key that all handshakes of one unique id share.
#[derive(Clone)]
pub struct SharedSecret {
    key: [u8; 32],
    primitives: Primitives,
}

impl SharedSecret {
    pub fn new(id: &UniqueId) -> SharedSecret {
        SharedSecret::with(id, noise_primitives)
    }

    pub(crate) fn with(id: &UniqueId, primitives: Primitives) -> SharedSecret {
        SharedSecret { key: id.mac("network handshake", &[]), primitives }
    }

    fn builder(&self) -> Builder<'_> {
        let pattern = PATTERN.parse().expect("the pattern is known");
        Builder::with_resolver(pattern, (self.primitives)())
            .psk(0, &self.key)
            .and_then(|builder| builder.prologue(&PROLOGUE))
            .expect("each is given once")
    }
}

/// What both ends must agree on before anything else.
const PROLOGUE: [u8; PREAMBLE] = {
    let mut bytes = [0; PREAMBLE];
    let mut at = 0;
    while at < PREAMBLE {
        bytes[at] = if at < 8 { MAGIC[at] } else { VERSION.to_le_bytes()[at - 8] };
        at += 1;
    }
    bytes
};

/// An HMAC under a key of this handshake of a label for its use.
fn derived(key: &[u8; 32], label: &str) -> [u8; 32] {
    hmac(key, &[label.as_bytes()])
}

/// Whether `message` is the HMAC with that label.
fn check(key: &[u8; 32], label: &str, message: &[u8]) -> Result<(), Refusal> {
    let is_right = hmac_is(key, &[label.as_bytes()], message);
    is_right.then_some(()).ok_or("a replayed or altered handshake")
}

const PROOF_LABEL: &str = "proof";
const WELCOME_LABEL: &str = "welcome";
const DATA_LABEL: &str = "after the handshake";

/// The keys of the two directions when Noise is done.
struct Split {
    from_caller: [u8; 32],
    from_gate: [u8; 32],
}

impl Split {
    fn of(noise: &mut HandshakeState) -> Split {
        let (from_caller, from_gate) = noise.dangerously_get_raw_split();
        Split { from_caller, from_gate }
    }

    fn caller_keys(&self) -> Keys {
        let send = derived(&self.from_caller, DATA_LABEL);
        Keys { send, receive: derived(&self.from_gate, DATA_LABEL) }
    }

    fn gate_keys(&self) -> Keys {
        let Keys { send, receive } = self.caller_keys();
        Keys { send: receive, receive: send }
    }
}

/// What one end waits for.
enum Awaited {
    Hello(Box<HandshakeState>),
    Answer(Box<HandshakeState>),
    Proof(Split),
    Welcome(Split),
    /// Nothing; the last message may still have to be sent.
    Done(Keys),
    Nothing,
}

/// One end of a handshake.
pub struct Handshake {
    awaited: Awaited,
    /// At the listener: from the hello, believed only when the proof has come.
    greeting: Option<Hello>,
    arrived: [u8; HELLO],
    have: usize,
    leaving: [u8; HELLO],
    /// The part of `leaving` that is still to be sent.
    unsent: std::ops::Range<usize>,
}

impl Handshake {
    /// The end that dials.
    pub fn caller(secret: &SharedSecret, greeting: &Hello) -> Result<Handshake, Refusal> {
        let built = secret.builder().build_initiator();
        let mut noise = built.map_err(|_| "the random generator failed")?;
        let mut handshake = Handshake::waiting(Awaited::Nothing);
        handshake.leaving[..PREAMBLE].copy_from_slice(&PROLOGUE);
        noise
            .write_message(&greeting.encode(), &mut handshake.leaving[PREAMBLE..])
            .map_err(|_| "the random generator failed")?;
        handshake.unsent = 0..HELLO;
        handshake.awaited = Awaited::Answer(Box::new(noise));
        Ok(handshake)
    }

    /// The end that is dialled.
    pub fn listener(secret: &SharedSecret) -> Result<Handshake, Refusal> {
        let noise = secret.builder().build_responder();
        let noise = noise.map_err(|_| "the random generator failed")?;
        Ok(Handshake::waiting(Awaited::Hello(Box::new(noise))))
    }

    fn waiting(awaited: Awaited) -> Handshake {
        let (arrived, leaving) = ([0; HELLO], [0; HELLO]);
        Handshake { awaited, greeting: None, arrived, have: 0, leaving, unsent: 0..0 }
    }

    /// Bytes of the message that is due.
    fn due(&self) -> usize {
        match self.awaited {
            Awaited::Hello(_) => HELLO,
            Awaited::Answer(_) => ANSWER,
            Awaited::Proof(_) | Awaited::Welcome(_) => PROOF,
            Awaited::Done(_) | Awaited::Nothing => 0,
        }
    }

    /// Bytes that may be fed now: never more than the rest of the message that is due.
    pub fn wanted(&self) -> usize {
        self.due() - self.have
    }

    /// Take bytes that arrived, at most [`Handshake::wanted`] of them.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        assert!(bytes.len() <= self.wanted(), "fed with more than was wanted");
        self.arrived[self.have..self.have + bytes.len()].copy_from_slice(bytes);
        self.have += bytes.len();
        if let Awaited::Hello(_) = self.awaited {
            // Whoever is no caller at all is known by its first byte.
            let known = self.have.min(PREAMBLE);
            if self.arrived[..known.min(8)] != MAGIC[..known.min(8)] {
                return Err("not a ringcomm handshake");
            }
            if self.arrived[..known] != PROLOGUE[..known] {
                return Err("a handshake of another version");
            }
        }
        if !bytes.is_empty() && self.wanted() == 0 {
            self.have = 0;
            let awaited = std::mem::replace(&mut self.awaited, Awaited::Nothing);
            self.awaited = self.understand(awaited)?;
        }
        Ok(())
    }

    /// A whole message has come: answer it, and say what is next.
    fn understand(&mut self, awaited: Awaited) -> Result<Awaited, Refusal> {
        match awaited {
            Awaited::Hello(mut noise) => {
                let mut payload = [0; GREETING];
                noise
                    .read_message(&self.arrived[PREAMBLE..HELLO], &mut payload)
                    .map_err(|_| "a caller that does not hold the secret")?;
                self.greeting = Some(Hello::decode(&payload)?);
                noise
                    .write_message(&[], &mut self.leaving)
                    .map_err(|_| "the random generator failed")?;
                self.unsent = 0..ANSWER;
                Ok(Awaited::Proof(Split::of(&mut noise)))
            }
            Awaited::Answer(mut noise) => {
                noise
                    .read_message(&self.arrived[..ANSWER], &mut [])
                    .map_err(|_| "an answer from somebody who does not hold the secret")?;
                let split = Split::of(&mut noise);
                self.leave(&derived(&split.from_caller, PROOF_LABEL));
                Ok(Awaited::Welcome(split))
            }
            Awaited::Proof(split) => {
                check(&split.from_caller, PROOF_LABEL, &self.arrived[..PROOF])?;
                self.leave(&derived(&split.from_gate, WELCOME_LABEL));
                Ok(Awaited::Done(split.gate_keys()))
            }
            Awaited::Welcome(split) => {
                check(&split.from_gate, WELCOME_LABEL, &self.arrived[..PROOF])?;
                Ok(Awaited::Done(split.caller_keys()))
            }
            Awaited::Done(_) | Awaited::Nothing => unreachable!("nothing is due"),
        }
    }

    fn leave(&mut self, message: &[u8; PROOF]) {
        self.leaving[..PROOF].copy_from_slice(message);
        self.unsent = 0..PROOF;
    }

    /// What is to be sent.
    pub fn outgoing(&self) -> &[u8] {
        &self.leaving[self.unsent.clone()]
    }

    /// The first `count` bytes of [`Handshake::outgoing`] have been sent.
    pub fn sent(&mut self, count: usize) {
        assert!(count <= self.unsent.len(), "sent more than there was");
        self.unsent.start += count;
    }

    /// At the caller: whether the proof has been given, so that the listener may have let us in.
    pub fn is_proved(&self) -> bool {
        matches!(self.awaited, Awaited::Welcome(_))
    }

    /// At the listener: whether a hello made with the secret has come, though perhaps a recorded
    /// one.
    pub fn is_greeted(&self) -> bool {
        self.greeting.is_some()
    }

    /// At the listener: the greeting, to be believed only with the keys.
    pub fn greeting(&self) -> Option<&Hello> {
        self.greeting.as_ref()
    }

    /// The keys, once this end has proved itself, the other has, and everything is sent.
    pub fn keys(&self) -> Option<&Keys> {
        match &self.awaited {
            Awaited::Done(keys) if self.unsent.is_empty() => Some(keys),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "tests/handshake.rs"]
mod tests;
