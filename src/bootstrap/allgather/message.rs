//! What ranks say to each other while they meet. Pure, so that it can be fuzzed.

use crate::bootstrap::local::wire::{Failure, MAX_PAYLOAD};
use crate::bootstrap::tcp::Refusal;
use crate::bootstrap::tcp::listener::MOST_ADDRESSES;
use crate::bootstrap::tcp::secure_frame::MAX_FRAME;
use crate::bootstrap::unique_id::{decode_address, encode_address};
use std::net::SocketAddr;
use std::sync::Arc;

/// Bytes of an encoded address.
const ADDRESS: usize = 24;
/// Bytes of a host's name at most: as many as Linux allows.
const MOST_NAME: usize = 64;
/// Bytes in front of a contribution: rank, pid, length.
const ENTRY: usize = 12;
/// Most bytes of contributions in one message, beside its kind.
pub const MAX_BODY: usize = MAX_FRAME - 1;

const _: () = assert!(ENTRY + MAX_PAYLOAD <= MAX_BODY);

/// A rank's process, or the root's that is no rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerId {
    /// [`NO_RANK`] for a root that is no rank.
    pub rank: u32,
    pub pid: u32,
}

/// In place of the number of a root that is no rank.
pub const NO_RANK: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllgatherMessage {
    /// A rank to the root: I am here, on this host, and my listener is there. `remaining_ms`: how
    /// long I wait.
    Here { pid: u32, remaining_ms: u32, host: Box<str>, addresses: Vec<SocketAddr> },
    /// The root to a rank: `parent` is above you in the tree, dial it.
    Place { root: PeerId, parent: PeerId, addresses: Vec<SocketAddr> },
    /// A rank to its parent.
    Join { pid: u32 },
    /// A parent, or the root itself, to a rank: I am above you, and you are so deep in the tree;
    /// this connection stays.
    Adopted { parent: PeerId, depth: u32 },
    /// A rank to the root: I am in the tree, this contact can end.
    Attached,
    /// Up: contributions of the tree below.
    Offers(Arc<[u8]>),
    /// Down: contributions of `count` ranks from `first` on, in order of rank.
    Table { first: u32, count: u32, body: Arc<[u8]> },
    /// Up: this rank has the whole table.
    Done { rank: u32 },
    /// Down: everybody has.
    Go,
    /// Everywhere: it failed.
    Failure(Failure),
}

/// One rank's contribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankContribution<'a> {
    pub from: PeerId,
    pub payload: &'a [u8],
}

/// Append a contribution to the body of a message.
pub fn push_entry(body: &mut Vec<u8>, entry: &RankContribution) {
    let PeerId { rank, pid } = entry.from;
    for word in [rank, pid, entry.payload.len() as u32] {
        body.extend(word.to_le_bytes());
    }
    body.extend(entry.payload);
}

/// Bytes that a contribution takes in a message.
pub fn entry_bytes(payload: &[u8]) -> usize {
    ENTRY + payload.len()
}

/// The contributions in a message.
pub fn entries(body: &[u8]) -> Result<Vec<RankContribution<'_>>, Refusal> {
    let (mut found, mut rest) = (Vec::new(), body);
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(ENTRY).ok_or("a contribution cut short")?;
        let length = word(head, 8)? as usize;
        if length > MAX_PAYLOAD {
            return Err("a contribution longer than any can be");
        }
        let (payload, after) = after.split_at_checked(length).ok_or("a contribution cut short")?;
        let from = PeerId { rank: word(head, 0)?, pid: word(head, 4)? };
        found.push(RankContribution { from, payload });
        rest = after;
    }
    Ok(found)
}

/// A part of the table, if it is one: at least one rank, and none left out.
fn table(body: Arc<[u8]>) -> Result<AllgatherMessage, Refusal> {
    let found = entries(&body)?;
    let first = found.first().ok_or("an empty part of the table")?.from.rank;
    let mut ranks = (first..=u32::MAX).zip(&found);
    let count = found.len() as u32;
    if first.checked_add(count).is_none() || ranks.any(|(rank, entry)| entry.from.rank != rank) {
        return Err("a table out of order");
    }
    Ok(AllgatherMessage::Table { first, count, body })
}

fn word(bytes: &[u8], at: usize) -> Result<u32, Refusal> {
    let cell = bytes.get(at..at + 4).ok_or("a message cut short")?;
    Ok(u32::from_le_bytes(cell.try_into().expect("four bytes")))
}

fn party(bytes: &[u8], at: usize) -> Result<PeerId, Refusal> {
    Ok(PeerId { rank: word(bytes, at)?, pid: word(bytes, at + 4)? })
}

fn addresses(bytes: &[u8], at: usize) -> Result<Vec<SocketAddr>, Refusal> {
    let cells = bytes.get(at..).ok_or("a message cut short")?;
    if cells.len() > MOST_ADDRESSES * ADDRESS {
        return Err("a message with more addresses than any has");
    }
    let decode = |cell| decode_address(cell).and_then(|found| found.ok_or("an empty address"));
    cells.chunks(ADDRESS).map(decode).collect()
}

/// A host's name, its length in front.
fn push_name(bytes: &mut Vec<u8>, name: &str) {
    let end = (0..=name.len().min(MOST_NAME)).rev().find(|end| name.is_char_boundary(*end));
    let name = &name.as_bytes()[..end.unwrap_or(0)];
    bytes.push(name.len() as u8);
    bytes.extend(name);
}

/// A host's name, and what follows it.
fn name(bytes: &[u8], at: usize) -> Result<(Box<str>, &[u8]), Refusal> {
    let rest = bytes.get(at..).ok_or("a message cut short")?;
    let (length, rest) = rest.split_first().ok_or("a message cut short")?;
    if usize::from(*length) > MOST_NAME {
        return Err("a host's name longer than any is");
    }
    let split = rest.split_at_checked(usize::from(*length));
    let (name, rest) = split.ok_or("a message cut short")?;
    let name = str::from_utf8(name).map_err(|_| "a host's name that is no text")?;
    Ok((name.into(), rest))
}

fn exactly(bytes: &[u8], length: usize) -> Result<(), Refusal> {
    if bytes.len() == length { Ok(()) } else { Err("a message of wrong length") }
}

impl AllgatherMessage {
    fn kind(&self) -> u8 {
        match self {
            AllgatherMessage::Here { .. } => 1,
            AllgatherMessage::Place { .. } => 2,
            AllgatherMessage::Join { .. } => 3,
            AllgatherMessage::Adopted { .. } => 4,
            AllgatherMessage::Attached => 5,
            AllgatherMessage::Offers(_) => 6,
            AllgatherMessage::Table { .. } => 7,
            AllgatherMessage::Done { .. } => 8,
            AllgatherMessage::Go => 9,
            AllgatherMessage::Failure(_) => 10,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind()];
        let words = |bytes: &mut Vec<u8>, words: &[u32]| {
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        };
        let places = |bytes: &mut Vec<u8>, addresses: &[SocketAddr]| {
            bytes.extend(addresses.iter().take(MOST_ADDRESSES).flat_map(encode_address));
        };
        match self {
            AllgatherMessage::Here { pid, remaining_ms, host, addresses } => {
                words(&mut bytes, &[*pid, *remaining_ms]);
                push_name(&mut bytes, host);
                places(&mut bytes, addresses);
            }
            AllgatherMessage::Place { root, parent, addresses } => {
                words(&mut bytes, &[root.rank, root.pid, parent.rank, parent.pid]);
                places(&mut bytes, addresses);
            }
            AllgatherMessage::Join { pid: number } | AllgatherMessage::Done { rank: number } => {
                words(&mut bytes, &[*number]);
            }
            AllgatherMessage::Adopted { parent, depth } => {
                words(&mut bytes, &[parent.rank, parent.pid, *depth]);
            }
            AllgatherMessage::Offers(body) | AllgatherMessage::Table { body, .. } => {
                bytes.extend(&body[..])
            }
            AllgatherMessage::Failure(failure) => bytes.extend(failure.encode()),
            AllgatherMessage::Attached | AllgatherMessage::Go => {}
        }
        bytes
    }

    /// The message in a frame.
    pub fn decode(frame: &[u8]) -> Result<AllgatherMessage, Refusal> {
        let (kind, body) = frame.split_first().ok_or("an empty message")?;
        Ok(match kind {
            1 => {
                let (host, rest) = name(body, 8)?;
                AllgatherMessage::Here {
                    pid: word(body, 0)?,
                    remaining_ms: word(body, 4)?,
                    host,
                    addresses: addresses(rest, 0)?,
                }
            }
            2 => AllgatherMessage::Place {
                root: party(body, 0)?,
                parent: party(body, 8)?,
                addresses: addresses(body, 16)?,
            },
            3 | 8 => {
                exactly(body, 4)?;
                let number = word(body, 0)?;
                if *kind == 3 {
                    AllgatherMessage::Join { pid: number }
                } else {
                    AllgatherMessage::Done { rank: number }
                }
            }
            4 => {
                exactly(body, 12)?;
                AllgatherMessage::Adopted { parent: party(body, 0)?, depth: word(body, 8)? }
            }
            6 => {
                entries(body)?;
                AllgatherMessage::Offers(body.into())
            }
            7 => table(body.into())?,
            10 => AllgatherMessage::Failure(Failure::decode(body)?),
            5 | 9 => {
                exactly(body, 0)?;
                if *kind == 5 { AllgatherMessage::Attached } else { AllgatherMessage::Go }
            }
            _ => return Err("a message of unknown kind"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples() -> Vec<AllgatherMessage> {
        let (one, two) = (PeerId { rank: 1, pid: 20 }, PeerId { rank: 2, pid: 30 });
        let apart = PeerId { rank: NO_RANK, pid: 40 };
        let addresses: Vec<SocketAddr> =
            vec!["10.0.0.1:5".parse().unwrap(), "[fe80::1%3]:6".parse().unwrap()];
        let mut body = Vec::new();
        push_entry(&mut body, &RankContribution { from: one, payload: b"abc" });
        push_entry(&mut body, &RankContribution { from: two, payload: b"" });
        let failure = Failure::Missing { waited_ms: 3, missing: vec![1, 2], unlisted: 0 };
        vec![
            AllgatherMessage::Here {
                pid: 7,
                remaining_ms: 900,
                host: "node7".into(),
                addresses: addresses.clone(),
            },
            AllgatherMessage::Here {
                pid: 7,
                remaining_ms: 0,
                host: "".into(),
                addresses: Vec::new(),
            },
            AllgatherMessage::Place { root: apart, parent: one, addresses },
            AllgatherMessage::Join { pid: 8 },
            AllgatherMessage::Adopted { parent: one, depth: 3 },
            AllgatherMessage::Attached,
            AllgatherMessage::Offers(body.clone().into()),
            AllgatherMessage::Table { first: 1, count: 2, body: body.into() },
            AllgatherMessage::Done { rank: 2 },
            AllgatherMessage::Go,
            AllgatherMessage::Failure(failure),
        ]
    }

    #[test]
    fn messages_survive_and_cut_ones_are_refused() {
        for message in samples() {
            let bytes = message.encode();
            assert_eq!(AllgatherMessage::decode(&bytes), Ok(message.clone()));
            for cut in 0..bytes.len() {
                assert_ne!(AllgatherMessage::decode(&bytes[..cut]), Ok(message.clone()));
            }
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_between_two_letters() {
        let host = "é".repeat(40) + "x";
        let here = AllgatherMessage::Here {
            pid: 7,
            remaining_ms: 0,
            host: host.into(),
            addresses: vec![],
        };
        let read = AllgatherMessage::decode(&here.encode());
        assert!(
            matches!(read, Ok(AllgatherMessage::Here { host, .. }) if *host == *"é".repeat(32))
        );
    }

    #[test]
    fn a_table_has_every_rank_in_order() {
        let encoded = |ranks: &[u32]| {
            let mut bytes = vec![7];
            for rank in ranks {
                let from = PeerId { rank: *rank, pid: 1 };
                push_entry(&mut bytes, &RankContribution { from, payload: b"x" });
            }
            AllgatherMessage::decode(&bytes)
        };
        assert!(encoded(&[4, 5, 6]).is_ok());
        for wrong in [&[][..], &[5, 4], &[4, 6], &[4, 4], &[u32::MAX]] {
            assert!(encoded(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn contributions_keep_their_order() {
        let AllgatherMessage::Offers(body) = &samples()[6] else { panic!() };
        let found = entries(body).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].from.rank, found[0].payload), (1, &b"abc"[..]));
        assert_eq!(entry_bytes(b"abc") + entry_bytes(b""), body.len());
    }

    proptest! {
        #[test]
        fn whatever_decodes_survives(kind in 0u8..12, mut bytes: Vec<u8>, cells in 0usize..5) {
            bytes.insert(0, kind);
            bytes.resize(1 + cells * 24 + 8 * usize::from(kind < 3) * usize::from(kind), 0);
            if let Ok(message) = AllgatherMessage::decode(&bytes) {
                prop_assert_eq!(AllgatherMessage::decode(&message.encode()), Ok(message));
            }
        }
    }
}
