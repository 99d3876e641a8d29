//! What neighbours say to each other, as bytes: one item in each sealed frame
//! ([`Sealer`]).

use super::status::{CALLS, Status};
use crate::bootstrap::tcp::{LENGTH, OVERHEAD, Opener, Sealer};
use crate::executor::control_block::shrink_board::{Announcement, MOST_RANKS, Phase, RankSet};
use crate::executor::control_block::{HOST_BYTES, Life, OperationRecord, TEXT_BYTES};

pub use crate::error::Refusal;

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// This end is there, and has read so many bytes of this connection.
    Beat { read: u64 },
    /// What a rank's page says; of two, the one with the larger version is the newer.
    Status { rank: u32, version: u64, status: Box<Status> },
    /// The rank has died, or nobody can reach it any more.
    Gone { rank: u32 },
    /// The rank has died, or could not be reached from the beginning: what became of `by`'s calls.
    Unreached { rank: u32, by: u32, why: String },
}

/// The longest item: a status with everything in it, about 2 KiB.
pub const MOST_ITEM: usize = 256 + TEXT_BYTES + HOST_BYTES + 41 * (CALLS + 1) + MOST_RANKS / 8;

/// The longest frame.
pub const MOST_FRAME: usize = MOST_ITEM + OVERHEAD;

impl Item {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Item::Beat { read } => {
                out.push(1);
                out.extend(read.to_le_bytes());
            }
            Item::Status { rank, version, status } => {
                out.push(2);
                out.extend(rank.to_le_bytes());
                out.extend(version.to_le_bytes());
                encode_status(status, &mut out);
            }
            Item::Gone { rank } => {
                out.push(3);
                out.extend(rank.to_le_bytes());
            }
            Item::Unreached { rank, by, why } => {
                out.push(4);
                out.extend(rank.to_le_bytes());
                out.extend(by.to_le_bytes());
                out.extend((why.len() as u16).to_le_bytes());
                out.extend(why.as_bytes());
            }
        }
        out
    }

    /// An item, if the bytes are exactly one.
    pub fn decode(bytes: &[u8]) -> Result<Item, Refusal> {
        let mut reader = Reader(bytes);
        let item = match reader.byte()? {
            1 => Item::Beat { read: reader.long()? },
            2 => Item::Status {
                rank: reader.word()?,
                version: reader.long()?,
                status: Box::new(decode_status(&mut reader)?),
            },
            3 => Item::Gone { rank: reader.word()? },
            4 => {
                let (rank, by) = (reader.word()?, reader.word()?);
                let length = reader.short()?.into();
                Item::Unreached { rank, by, why: reader.text(length, TEXT_BYTES)? }
            }
            _ => return Err("an item of unknown kind"),
        };
        if reader.0.is_empty() { Ok(item) } else { Err("trailing bytes after the item") }
    }
}

fn encode_status(status: &Status, out: &mut Vec<u8>) {
    debug_assert!(status.is_bounded());
    out.push(status.life as u8);
    put_rank(status.culprit, out);
    out.extend(status.pid.to_le_bytes());
    out.push(status.host.len() as u8);
    out.extend(status.host.as_bytes());
    out.extend((status.text.len() as u16).to_le_bytes());
    out.extend(status.text.as_bytes());
    out.extend(status.completed.to_le_bytes());
    out.push(status.calls.len() as u8);
    status.calls.iter().for_each(|seen| encode_seen(seen, out));
    out.push(u8::from(status.batch.is_some()));
    status.batch.iter().for_each(|seen| encode_seen(seen, out));
    let Announcement { attempt, phase, settled, port, label, dead } = &status.board;
    out.extend(attempt.to_le_bytes());
    out.extend(settled.to_le_bytes());
    out.push(*phase as u8);
    out.extend(port.to_le_bytes());
    out.extend(label.to_le_bytes());
    out.push(dead.words().len() as u8);
    out.extend(dead.words().iter().flat_map(|word| word.to_le_bytes()));
}

fn decode_status(reader: &mut Reader) -> Result<Status, Refusal> {
    let life = match reader.byte()? {
        0 => Life::Working,
        1 => Life::Failed,
        2 => Life::Left,
        _ => return Err("unknown state of a rank"),
    };
    let culprit = reader.rank()?;
    let pid = reader.word()?;
    let length = reader.byte()?.into();
    let host = reader.text(length, HOST_BYTES)?;
    let length = reader.short()?.into();
    let text = reader.text(length, TEXT_BYTES)?;
    let completed = reader.long()?;
    let ncalls = usize::from(reader.byte()?);
    if ncalls > CALLS {
        return Err("more calls than a status tells of");
    }
    let calls = (0..ncalls).map(|_| reader.seen()).collect::<Result<_, _>>()?;
    let batch = match reader.byte()? {
        0 => None,
        1 => Some(reader.seen()?),
        _ => return Err("invalid batch flag"),
    };
    let (attempt, settled) = (reader.long()?, reader.long()?);
    let phase = match reader.byte()? {
        0 => Phase::Idle,
        1 => Phase::Proposing,
        2 => Phase::Made,
        3 => Phase::GaveUp,
        4 => Phase::Closed,
        _ => return Err("a phase of unknown kind"),
    };
    let port = reader.short()?;
    let label = reader.long()?;
    let nwords = usize::from(reader.byte()?);
    let words = (0..nwords).map(|_| reader.long()).collect::<Result<Vec<u64>, _>>()?;
    let dead = RankSet::from_words(&words).ok_or("a set of more ranks than there can be")?;
    if dead.words().len() != nwords {
        return Err("a set that is longer than it need be");
    }
    let board = Announcement { attempt, phase, settled, port, label, dead };
    Ok(Status { life, culprit, text, pid, host, completed, calls, batch, board })
}

fn put_rank(rank: Option<u32>, out: &mut Vec<u8>) {
    out.extend(rank.map_or(0, |rank| rank.wrapping_add(1)).to_le_bytes());
}

fn encode_seen(seen: &OperationRecord, out: &mut Vec<u8>) {
    for word in [seen.sequence, seen.fingerprint, seen.count, seen.what, seen.waited_ms] {
        out.extend(word.to_le_bytes());
    }
    put_rank(seen.waiting_for, out);
}

/// Takes values from the front of some bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or("an item that is cut short")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, Refusal> {
        self.take::<1>().map(|bytes| bytes[0])
    }

    fn short(&mut self) -> Result<u16, Refusal> {
        self.take().map(u16::from_le_bytes)
    }

    fn word(&mut self) -> Result<u32, Refusal> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, Refusal> {
        self.take().map(u64::from_le_bytes)
    }

    fn rank(&mut self) -> Result<Option<u32>, Refusal> {
        self.word().map(|word| word.checked_sub(1))
    }

    fn text(&mut self, length: usize, most: usize) -> Result<String, Refusal> {
        if length > most {
            return Err("a text longer than any can be");
        }
        let (text, rest) = self.0.split_at_checked(length).ok_or("a text that is cut short")?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| "text is not valid UTF-8")
    }

    fn seen(&mut self) -> Result<OperationRecord, Refusal> {
        Ok(OperationRecord {
            sequence: match self.long()? {
                u64::MAX => return Err("a sequence number without a next one"),
                sequence => sequence,
            },
            fingerprint: self.long()?,
            count: self.long()?,
            what: self.long()?,
            waited_ms: self.long()?,
            waiting_for: self.rank()?,
        })
    }
}

/// Turns items into frames.
pub struct ControlSealer(Sealer);

impl ControlSealer {
    pub fn new(key: &[u8; 32]) -> ControlSealer {
        ControlSealer(Sealer::new(key))
    }

    pub fn seal(&mut self, item: &Item, into: &mut Vec<u8>) {
        let bytes = item.encode();
        debug_assert!(bytes.len() <= MOST_ITEM);
        self.0.seal(&bytes, into);
    }
}

/// Turns frames, as they come in pieces, into items.
pub struct ControlOpener {
    opener: Opener,
    /// At most one frame and what came with its end.
    bytes: Vec<u8>,
}

impl ControlOpener {
    pub fn new(key: &[u8; 32]) -> ControlOpener {
        ControlOpener { opener: Opener::new(key), bytes: Vec::new() }
    }

    /// Take what has come, and give every item that is whole to `take`.
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(Item)) -> Result<(), Refusal> {
        self.bytes.extend(bytes);
        let mut done = 0;
        while let Some(length) = self.bytes[done..].first_chunk::<LENGTH>().copied() {
            let end = done + LENGTH + Opener::rest(length, MOST_ITEM)?;
            let Some(sealed) = self.bytes.get_mut(done + LENGTH..end) else { break };
            take(Item::decode(self.opener.open(length, sealed)?)?);
            done = end;
        }
        self.bytes.drain(..done);
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests/frame.rs"]
mod tests;
