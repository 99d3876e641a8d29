//! What travels between a rank and the coordinator, as bytes: fixed sizes, little endian.
//!
//! Three handshake messages of fixed size come first (hello, challenge, proof); only after them
//! does a length mean anything, and even then none above [`MAX_PAYLOAD`] is believed. Everything
//! here is pure, so that it can be fuzzed.

use crate::bootstrap::error::{Blame, BootstrapError};
use crate::error::{Error, Operation, RankProcess, cut};
use crate::host;

/// Most bytes of a rank's contribution, and so of any frame's body.
pub const MAX_PAYLOAD: usize = 4096;

pub const HELLO: usize = 56;
pub const CHALLENGE: usize = 84;
pub const PROOF: usize = 32;
pub const HEADER: usize = 24;

/// Bytes of a challenge that its tag covers.
pub const CHALLENGE_HEAD: usize = CHALLENGE - 32;

const HELLO_MAGIC: [u8; 8] = *b"ringhelo";
const CHALLENGE_MAGIC: [u8; 8] = *b"ringchal";
const VERSION: u32 = 1;

pub use crate::error::Refusal;

/// The first words of whoever connects. Nothing in it is believed before the proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalHello {
    pub rank: u32,
    pub nranks: u32,
    /// Milliseconds that this rank will still wait.
    pub remaining_ms: u32,
    pub nonce: [u8; 32],
}

/// The coordinator's answer, with its own proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    pub rank: u32,
    pub nranks: u32,
    pub nonce: [u8; 32],
    pub tag: [u8; 32],
}

/// What a frame after the handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FrameKind {
    /// A rank's contribution, to the coordinator.
    Offer = 1,
    /// One rank's contribution, from the coordinator.
    Member = 2,
    /// The rendezvous failed; the body is a [`Failure`]. In both directions.
    Failure = 3,
    /// The rank has received every contribution.
    Done = 4,
    /// Every rank has.
    Go = 5,
    /// Connect again: the coordinator needed the place, or the proof came too late.
    Retry = 6,
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: FrameKind,
    /// Descriptors that the rank contributes.
    pub fds: u16,
    /// Bytes of the body that follows.
    pub bytes: u32,
    pub process: u64,
    pub rank: u32,
    pub pid: u32,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn start(bytes: &mut [u8], magic: &[u8; 8], words: &[u32]) {
    bytes[..8].copy_from_slice(magic);
    for (cell, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
        cell.copy_from_slice(&word.to_le_bytes());
    }
}

impl LocalHello {
    pub fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        start(&mut bytes, &HELLO_MAGIC, &[VERSION, self.rank, self.nranks, self.remaining_ms]);
        bytes[24..].copy_from_slice(&self.nonce);
        bytes
    }

    pub fn decode(bytes: &[u8; HELLO]) -> Result<LocalHello, Refusal> {
        check_start(bytes, &HELLO_MAGIC)?;
        Ok(LocalHello {
            rank: word(bytes, 12),
            nranks: word(bytes, 16),
            remaining_ms: word(bytes, 20),
            nonce: bytes[24..].try_into().expect("the last 32 bytes"),
        })
    }
}

fn check_start(bytes: &[u8], magic: &[u8; 8]) -> Result<(), Refusal> {
    if bytes[..8] != magic[..] {
        Err("not a ringcomm handshake")
    } else if word(bytes, 8) != VERSION {
        Err("a handshake of another version")
    } else {
        Ok(())
    }
}

impl Challenge {
    /// The bytes that the tag covers.
    pub fn head(&self) -> [u8; CHALLENGE_HEAD] {
        let mut bytes = [0; CHALLENGE_HEAD];
        start(&mut bytes, &CHALLENGE_MAGIC, &[VERSION, self.rank, self.nranks]);
        bytes[20..].copy_from_slice(&self.nonce);
        bytes
    }

    pub fn encode(&self) -> [u8; CHALLENGE] {
        let mut bytes = [0; CHALLENGE];
        bytes[..CHALLENGE_HEAD].copy_from_slice(&self.head());
        bytes[CHALLENGE_HEAD..].copy_from_slice(&self.tag);
        bytes
    }

    pub fn decode(bytes: &[u8; CHALLENGE]) -> Result<Challenge, Refusal> {
        check_start(bytes, &CHALLENGE_MAGIC)?;
        Ok(Challenge {
            rank: word(bytes, 12),
            nranks: word(bytes, 16),
            nonce: bytes[20..52].try_into().expect("32 bytes"),
            tag: bytes[52..].try_into().expect("the last 32 bytes"),
        })
    }
}

impl FrameHeader {
    /// A frame without body or descriptors.
    pub fn bare(kind: FrameKind) -> FrameHeader {
        FrameHeader { kind, fds: 0, bytes: 0, process: 0, rank: 0, pid: 0 }
    }

    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&self.fds.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.process.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rank.to_le_bytes());
        bytes[20..].copy_from_slice(&self.pid.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER]) -> Result<FrameHeader, Refusal> {
        let kind = match u16::from_le_bytes([bytes[0], bytes[1]]) {
            1 => FrameKind::Offer,
            2 => FrameKind::Member,
            3 => FrameKind::Failure,
            4 => FrameKind::Done,
            5 => FrameKind::Go,
            6 => FrameKind::Retry,
            _ => return Err("a frame of unknown kind"),
        };
        let fds = u16::from_le_bytes([bytes[2], bytes[3]]);
        let length = word(bytes, 4);
        if length as usize > MAX_PAYLOAD {
            return Err("a frame longer than any can be");
        }
        if usize::from(fds) > super::MAX_FDS {
            return Err("a frame with more descriptors than any can have");
        }
        Ok(FrameHeader {
            kind,
            fds,
            bytes: length,
            process: long(bytes, 8),
            rank: word(bytes, 16),
            pid: word(bytes, 20),
        })
    }
}

/// Bytes of a failure report before its list or text.
const REPORT: usize = 20;

/// Ranks that a failure report lists at most.
const MOST_LISTED: usize = (MAX_PAYLOAD - REPORT) / 4;

/// Why a rendezvous failed, in a form that every rank can turn into its own error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Missing {
        waited_ms: u64,
        missing: Vec<u32>,
        /// How many more there are: a frame has room for [`MOST_LISTED`].
        unlisted: u32,
    },
    Died {
        rank: u32,
        pid: u32,
        /// Empty where it is not known.
        host: Box<str>,
    },
    Stuck {
        rank: u32,
        pid: u32,
        host: Box<str>,
        waited_ms: u64,
    },
    Usage {
        text: String,
    },
    System {
        rank: u32,
        pid: u32,
        host: Box<str>,
        errno: i32,
        what: String,
    },
    /// The rank learned from elsewhere that the rendezvous has no point any more.
    CalledOff {
        rank: u32,
        pid: u32,
        host: Box<str>,
    },
}

impl Failure {
    /// The death of a rank that is on this machine.
    pub fn died_here(rank: u32, pid: u32) -> Failure {
        Failure::Died { rank, pid, host: host::name().into() }
    }

    /// As [`Failure::died_here`], of one that lives and goes no further.
    pub fn stuck_here(rank: u32, pid: u32, waited_ms: u64) -> Failure {
        Failure::Stuck { rank, pid, host: host::name().into(), waited_ms }
    }

    /// What the operating system refused to this process, which is the rank.
    pub fn system_here(rank: u32, errno: i32, what: impl Into<String>) -> Failure {
        let (pid, host) = (std::process::id(), host::name().into());
        Failure::System { rank, pid, host, errno, what: what.into() }
    }

    /// This process, which is the rank, has heard that the rendezvous has no point.
    pub fn called_off_here(rank: u32) -> Failure {
        Failure::CalledOff { rank, pid: std::process::id(), host: host::name().into() }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (tag, rank, pid, number) = match self {
            Failure::Missing { waited_ms, missing, unlisted } => {
                let cut = missing.len().saturating_sub(MOST_LISTED) as u32;
                (1u32, unlisted.saturating_add(cut), 0, *waited_ms)
            }
            Failure::Died { rank, pid, .. } => (2, *rank, *pid, 0),
            Failure::Stuck { rank, pid, waited_ms, .. } => (3, *rank, *pid, *waited_ms),
            Failure::Usage { .. } => (4, 0, 0, 0),
            // Where the host's name ends and the text begins, and why.
            Failure::System { rank, pid, host, errno, .. } => {
                (5, *rank, *pid, (host.len() as u64) << 32 | u64::from(*errno as u32))
            }
            Failure::CalledOff { rank, pid, .. } => (6, *rank, *pid, 0),
        };
        for part in [tag, rank, pid] {
            bytes.extend(part.to_le_bytes());
        }
        bytes.extend(number.to_le_bytes());
        match self {
            Failure::Missing { missing, .. } => {
                bytes.extend(missing.iter().take(MOST_LISTED).flat_map(|rank| rank.to_le_bytes()));
            }
            Failure::Usage { text } => bytes.extend(cut(text, MAX_PAYLOAD - REPORT).as_bytes()),
            Failure::System { host, what, .. } => {
                let room = (MAX_PAYLOAD - REPORT).saturating_sub(host.len());
                bytes.extend([host.as_bytes(), cut(what, room).as_bytes()].concat());
            }
            Failure::Died { host, .. }
            | Failure::Stuck { host, .. }
            | Failure::CalledOff { host, .. } => bytes.extend(host.as_bytes()),
        }
        bytes.truncate(MAX_PAYLOAD);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Failure, Refusal> {
        if bytes.len() < REPORT {
            return Err("a failure report that is too short");
        }
        let (rank, pid, number, rest) =
            (word(bytes, 4), word(bytes, 8), long(bytes, 12), &bytes[REPORT..]);
        let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let text = || read(rest);
        match word(bytes, 0) {
            1 => Ok(Failure::Missing {
                waited_ms: number,
                missing: rest.chunks_exact(4).map(|rank| word(rank, 0)).collect(),
                unlisted: rank,
            }),
            2 => Ok(Failure::Died { rank, pid, host: text().into() }),
            3 => Ok(Failure::Stuck { rank, pid, host: text().into(), waited_ms: number }),
            4 => Ok(Failure::Usage { text: text() }),
            5 => {
                let parts = rest.split_at_checked((number >> 32) as usize);
                let (host, what) = parts.ok_or("a host's name that is longer than its report")?;
                let host = str::from_utf8(host).map_err(|_| "a host's name that is no text")?;
                let (host, what) = (host.into(), read(what));
                Ok(Failure::System { rank, pid, host, errno: number as u32 as i32, what })
            }
            6 => Ok(Failure::CalledOff { rank, pid, host: text().into() }),
            _ => Err("a failure report of unknown kind"),
        }
    }

    /// On whose account it is, as rank `me` sees it.
    fn cause(&self, me: usize) -> Blame {
        match self {
            Failure::Missing { .. } | Failure::Stuck { .. } => Blame::Late,
            Failure::CalledOff { rank, .. } if *rank > 0 => Blame::CalledOff,
            Failure::Died { .. } | Failure::CalledOff { .. } => Blame::There,
            Failure::System { rank, .. } if *rank as usize != me => Blame::There,
            Failure::System { .. } | Failure::Usage { .. } => Blame::Here,
        }
    }

    /// What it is to rank `me` of `nranks`.
    pub fn into_unmet(self, me: usize, nranks: usize) -> BootstrapError {
        BootstrapError { cause: self.cause(me), error: self.into_error(me, nranks) }
    }

    pub fn into_error(self, me: usize, nranks: usize) -> Error {
        let operation = || Operation::aside("in the rendezvous");
        let who = |rank, pid, host| RankProcess { rank: rank as usize, host, pid };
        match self {
            Failure::Missing { waited_ms, missing, unlisted } => {
                let mut missing: Vec<usize> = missing.into_iter().map(|r| r as usize).collect();
                missing.retain(|rank| *rank < nranks);
                missing.dedup();
                missing.truncate(nranks);
                let unlisted = (unlisted as usize).min(nranks - missing.len());
                Error::Missing { nranks, missing, unlisted, waited_ms }
            }
            Failure::Died { rank, .. } if rank as usize == me => Error::System {
                what: format!(
                    "the rendezvous's root lost its connection with rank {me}, which lives"
                ),
                errno: libc::ECONNRESET,
            },
            Failure::Died { rank, pid, host } => {
                Error::PeerDied { rank: me, peer: who(rank, pid, host), operation: None }
            }
            Failure::Stuck { rank, pid, host, waited_ms } => Error::Timeout {
                rank: me,
                peer: who(rank, pid, host),
                operation: operation(),
                waited_ms,
                peer_state: "it came to the rendezvous and then stopped answering".into(),
            },
            Failure::Usage { text } => Error::InvalidUsage(text),
            Failure::CalledOff { rank, pid, host } => Error::Remote {
                rank: me,
                peer: who(rank, pid, host),
                operation: None,
                text: "it called the rendezvous off".into(),
            },
            Failure::System { rank, errno, what, .. } if rank as usize == me => {
                Error::System { what, errno }
            }
            Failure::System { rank, pid, host, errno, what } => Error::Remote {
                rank: me,
                peer: who(rank, pid, host),
                operation: None,
                text: Error::System { what, errno }.to_string(),
            },
        }
    }
}

/// A whole frame: a header with the right length, and its body.
pub fn frame(mut header: FrameHeader, body: &[u8]) -> Vec<u8> {
    header.bytes = u32::try_from(body.len()).expect("bodies are bounded");
    [&header.encode()[..], body].concat()
}

/// The frame that reports a failure.
pub fn failure_frame(failure: &Failure) -> Vec<u8> {
    frame(FrameHeader::bare(FrameKind::Failure), &failure.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn handshake_messages_survive(
            rank: u32,
            nranks: u32,
            ms: u32,
            nonce: [u8; 32],
            tag: [u8; 32],
        ) {
            let hello = LocalHello { rank, nranks, remaining_ms: ms, nonce };
            prop_assert_eq!(LocalHello::decode(&hello.encode()).unwrap(), hello);
            let challenge = Challenge { rank, nranks, nonce, tag };
            prop_assert_eq!(Challenge::decode(&challenge.encode()).unwrap(), challenge);
        }

        /// Whatever decodes encodes to the same bytes: there is one way to write a message.
        #[test]
        fn random_headers_are_refused_or_exact(
            mut bytes: [u8; HEADER],
            kind in 0u8..9,
            len in 0u32..9000,
        ) {
            (bytes[0], bytes[1], bytes[2], bytes[3]) = (kind, 0, bytes[2] % 6, 0);
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
            if let Ok(header) = FrameHeader::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(len as usize <= MAX_PAYLOAD);
                prop_assert!(bytes[2] as usize <= crate::bootstrap::MAX_FDS);
                prop_assert!((1..=6).contains(&kind));
            } else {
                let known = (1..=6).contains(&kind);
                prop_assert!(len as usize > MAX_PAYLOAD || bytes[2] > 4 || !known);
            }
        }

        #[test]
        fn failures_survive_and_garbage_does_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            tag in 0u8..8,
        ) {
            let mut bytes = bytes;
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&[tag, 0, 0, 0]);
            }
            if let Ok(failure) = Failure::decode(&bytes) {
                prop_assert_eq!(Failure::decode(&failure.encode()).unwrap(), failure.clone());
                let _ = failure.into_unmet(0, 4).error.to_string();
            }
        }
    }

    #[test]
    fn whoever_failed_or_called_it_off_is_named_with_host_and_process() {
        let host: Box<str> = "node7".into();
        let (rank, pid, errno, what) = (2, 41, libc::EMFILE, "opening".to_string());
        let system = Failure::System { rank, pid, host: host.clone(), errno, what };
        let off = Failure::CalledOff { rank, pid, host };
        for (failure, rest) in [(system, "opening: "), (off, "it called the rendezvous off")] {
            let told = Failure::decode(&failure.encode()).unwrap();
            assert_eq!(told, failure);
            let text = told.into_error(0, 3).to_string();
            let start = "rank 2 (host node7, pid 41) failed and rank 0 cannot go on: ";
            assert!(text.starts_with(&format!("{start}{rest}")), "{text}");
        }
    }

    #[test]
    fn a_long_list_of_missing_ranks_fits_a_frame() {
        let missing = (0..5000).collect();
        let failure = Failure::Missing { waited_ms: 5, missing, unlisted: 0 };
        let body = failure.encode();
        assert!(body.len() <= MAX_PAYLOAD);
        let told = Failure::decode(&body).unwrap();
        assert_eq!(Failure::decode(&told.encode()).as_ref(), Ok(&told), "whoever passes it on");
        let Failure::Missing { missing, unlisted, .. } = &told else { panic!() };
        assert_eq!(*missing, (0..missing.len() as u32).collect::<Vec<_>>());
        assert_eq!((missing.len(), *unlisted as usize), (MOST_LISTED, 5000 - MOST_LISTED));
        // What was told elsewhere counts as what was found here.
        let text = |failure: Failure| failure.into_error(5000, 6000).to_string();
        let texts = [text(failure), text(told)];
        assert!(texts[0].contains("only 1000 of 6000 ranks") && texts[0].contains("4999]; start"));
        assert!(texts[1].contains("only 1000 of 6000 ranks"), "{}", texts[1]);
        assert!(texts[1].contains("1018] and 3981 more; start"), "{}", texts[1]);
    }
}
