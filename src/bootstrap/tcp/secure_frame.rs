//! Frames on a proved connection: sealed by one end, opened by the other, in order.
//!
//! ```text
//! length (4 bytes) | its complement (4) | AES-128-GCM of that many bytes | tag (16 bytes)
//! ```
//!
//! A length that was damaged is found before as many bytes are waited for. The nonce counts the
//! frames of a direction and the length is authenticated with them, so that a frame that was
//! altered, repeated, left out or moved does not open.

use super::Refusal;
use super::handshake::Keys;
use super::stream_traits::{ByteStream, is_not_yet, unexpected_eof};
use crate::crypto::{Aead, TAG_BYTES as TAG};
use std::io;

/// Most bytes in a frame: large enough that its 24 bytes of overhead do not count.
pub const MAX_FRAME: usize = 64 << 10;
/// Bytes that a frame takes on the wire beside its own.
pub const OVERHEAD: usize = LENGTH + TAG;
pub const LENGTH: usize = 8;

const ALTERED: Refusal = "a frame that was altered on its way";

/// A length and its complement.
pub(crate) fn encoded(length: u32) -> [u8; LENGTH] {
    (u64::from(length) | u64::from(!length) << 32).to_le_bytes()
}

/// The sending end of one direction.
pub struct Sealer {
    cipher: Aead,
    count: u64,
}

impl Sealer {
    pub fn new(key: &[u8; 32]) -> Sealer {
        Sealer { cipher: Aead::new(key), count: 0 }
    }

    /// Append the frame of `bytes`, at most [`MAX_FRAME`] of them, to `into`.
    pub fn seal(&mut self, bytes: &[u8], into: &mut Vec<u8>) {
        assert!(bytes.len() <= MAX_FRAME, "a frame longer than any can be");
        let length = encoded(bytes.len() as u32);
        into.extend(length);
        let start = into.len();
        into.extend(bytes);
        let tag = self.cipher.seal(self.count, &length, &mut into[start..]);
        into.extend(tag);
        self.count += 1;
    }
}

/// The receiving end of one direction.
pub struct Opener {
    cipher: Aead,
    count: u64,
}

impl Opener {
    pub fn new(key: &[u8; 32]) -> Opener {
        Opener { cipher: Aead::new(key), count: 0 }
    }

    /// Bytes that follow the length of a frame that has at most `most`.
    pub fn rest(length: [u8; LENGTH], most: usize) -> Result<usize, Refusal> {
        let number = u32::from_le_bytes(length[..4].try_into().expect("four of them"));
        if length != encoded(number) {
            return Err(ALTERED);
        }
        let length = number as usize;
        if length > most { Err("a frame longer than any can be") } else { Ok(length + TAG) }
    }

    /// What is in a frame: its length as it came, and all that followed it, which is opened where
    /// it lies.
    pub fn open<'a>(
        &mut self,
        length: [u8; LENGTH],
        sealed: &'a mut [u8],
    ) -> Result<&'a [u8], Refusal> {
        let plain = sealed.len().checked_sub(TAG).ok_or("a frame cut short")?;
        let (bytes, tag) = sealed.split_at_mut(plain);
        if !self.cipher.open(self.count, &length, bytes, tag) {
            return Err(ALTERED);
        }
        self.count += 1;
        Ok(bytes)
    }
}

/// A stream of frames in both directions; no call waits.
pub struct Framed<S> {
    pub stream: S,
    sealer: Sealer,
    opener: Opener,
    arrived: Vec<u8>,
    leaving: Vec<u8>,
    sent: usize,
}

/// Why a stream of frames ended.
#[derive(Debug)]
pub enum StreamEnd {
    /// The other end closed, or the network cut it off.
    Closed(io::Error),
    /// What came is not what was sent.
    Garbled(Refusal),
}

impl<S: ByteStream> Framed<S> {
    pub fn new(stream: S, keys: &Keys) -> Framed<S> {
        let (sealer, opener) = (Sealer::new(&keys.send), Opener::new(&keys.receive));
        let (arrived, leaving) = (Vec::new(), Vec::new());
        Framed { stream, sealer, opener, arrived, leaving, sent: 0 }
    }

    /// Whether a frame is on its way out.
    pub fn is_sending(&self) -> bool {
        self.sent < self.leaving.len()
    }

    /// Begin to send a frame; the one before must have left.
    pub fn begin(&mut self, bytes: &[u8]) {
        assert!(!self.is_sending(), "one frame after the other");
        self.leaving.clear();
        self.sent = 0;
        self.sealer.seal(bytes, &mut self.leaving);
    }

    /// Send what fits now; true when nothing is left of the frame.
    pub fn push(&mut self) -> Result<bool, StreamEnd> {
        while self.is_sending() {
            match self.stream.send(&self.leaving[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if is_not_yet(&error) => return Ok(false),
                Err(error) => return Err(StreamEnd::Closed(error)),
            }
        }
        Ok(true)
    }

    /// The next frame, if all of it has come.
    pub fn pull(&mut self) -> Result<Option<Vec<u8>>, StreamEnd> {
        loop {
            let due = match self.arrived.first_chunk::<LENGTH>() {
                None => LENGTH,
                Some(length) => {
                    LENGTH + Opener::rest(*length, MAX_FRAME).map_err(StreamEnd::Garbled)?
                }
            };
            let have = self.arrived.len();
            if have == due {
                let (length, sealed) = self.arrived.split_first_chunk_mut().expect("it is there");
                let bytes = self.opener.open(*length, sealed).map_err(StreamEnd::Garbled)?.to_vec();
                self.arrived.clear();
                return Ok(Some(bytes));
            }
            self.arrived.resize(due, 0);
            let got = self.stream.receive(&mut self.arrived[have..]);
            self.arrived.truncate(have + *got.as_ref().unwrap_or(&0));
            match got {
                Ok(0) => return Err(StreamEnd::Closed(unexpected_eof())),
                Ok(_) => {}
                Err(error) if is_not_yet(&error) => return Ok(None),
                Err(error) => return Err(StreamEnd::Closed(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn open(opener: &mut Opener, frame: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (length, sealed) = frame.split_first_chunk().unwrap();
        assert_eq!(Opener::rest(*length, MAX_FRAME)?, sealed.len());
        opener.open(*length, &mut sealed.to_vec()).map(<[u8]>::to_vec)
    }

    fn frames(texts: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut sealer = Sealer::new(&KEY);
        let seal = |text: &&[u8]| {
            let mut frame = Vec::new();
            sealer.seal(text, &mut frame);
            frame
        };
        texts.iter().map(seal).collect()
    }

    #[test]
    fn frames_open_in_order_only() {
        let all = frames(&[b"one", b"", &[3; MAX_FRAME]]);
        let mut opener = Opener::new(&KEY);
        assert!(open(&mut opener, &all[1]).is_err(), "one was left out");
        assert_eq!(open(&mut opener, &all[0]).unwrap(), b"one");
        assert!(open(&mut opener, &all[0]).is_err(), "one came twice");
        assert_eq!(open(&mut opener, &all[1]).unwrap(), b"");
        assert_eq!(open(&mut opener, &all[2]).unwrap().len(), MAX_FRAME);
        assert_eq!(all[0].len(), 3 + OVERHEAD);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let frame = &frames(&[b"some words"])[0];
        for bit in 0..frame.len() * 8 {
            let mut altered = frame.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let (length, sealed) = altered.split_first_chunk().unwrap();
            assert!(Opener::new(&KEY).open(*length, &mut sealed.to_vec()).is_err(), "bit {bit}");
            // Nobody waits for bytes that were never sent.
            assert_eq!(Opener::rest(*length, MAX_FRAME).is_err(), bit < LENGTH * 8, "bit {bit}");
        }
        assert!(Opener::rest(encoded(2 << 16), MAX_FRAME).is_err());
    }
}
