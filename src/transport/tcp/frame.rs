//! The header of a message on a socket: its place in the connection and the stamp of its operation.
//!
//! Fixed length, little endian, closed by a CRC-32C of its own, so that a receiver believes no
//! length, no position and no stamp that was damaged on the way.

use super::protect::checksum;
use crate::transport::fifo::Stamp;

/// Bytes of a header.
pub const FRAME_BYTES: usize = 52;

/// "RC", and the version of the format.
const MAGIC: u32 = u32::from_le_bytes(*b"RC\x01\0");

/// What precedes every payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Frame {
    /// Messages of the connection before this one.
    pub position: u64,
    /// Payload bytes.
    pub length: u32,
    /// CRC-32C of the payload, where the connection uses checksums.
    pub payload_check: u32,
    pub stamp: Stamp,
}

impl Frame {
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        let mut at = 0;
        let mut put = |word: &[u8]| {
            bytes[at..at + word.len()].copy_from_slice(word);
            at += word.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&self.length.to_le_bytes());
        put(&self.position.to_le_bytes());
        put(&self.stamp.sequence.to_le_bytes());
        put(&self.stamp.fingerprint.to_le_bytes());
        put(&self.stamp.communicator.to_le_bytes());
        put(&self.stamp.epoch.to_le_bytes());
        put(&self.stamp.source.to_le_bytes());
        put(&self.payload_check.to_le_bytes());
        let check = checksum(&bytes[..FRAME_BYTES - 4]);
        bytes[FRAME_BYTES - 4..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// A header that came over a socket, or why it cannot be one.
    pub fn decode(bytes: &[u8; FRAME_BYTES]) -> Result<Frame, &'static str> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if word(0) != MAGIC {
            return Err("a frame does not begin as one");
        }
        if word(FRAME_BYTES - 4) != checksum(&bytes[..FRAME_BYTES - 4]) {
            return Err("a frame's header was damaged on the way");
        }
        Ok(Frame {
            length: word(4),
            position: long(8),
            stamp: Stamp {
                sequence: long(16),
                fingerprint: long(24),
                communicator: word(32),
                epoch: word(36),
                source: word(40),
            },
            payload_check: word(44),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> Frame {
        Frame {
            position: 7,
            length: 9,
            payload_check: 11,
            stamp: Stamp { communicator: 1, epoch: 2, sequence: 3, fingerprint: 4, source: 5 },
        }
    }

    #[test]
    fn a_frame_survives_its_bytes() {
        assert_eq!(Frame::decode(&frame().encode()), Ok(frame()));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_found(at in 0..FRAME_BYTES, bit in 0u8..8) {
            let mut bytes = frame().encode();
            bytes[at] ^= 1 << bit;
            prop_assert!(Frame::decode(&bytes).is_err());
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), FRAME_BYTES)) {
            let bytes: [u8; FRAME_BYTES] = bytes.try_into().expect("as many bytes");
            prop_assert!(Frame::decode(&bytes).is_err());
        }
    }
}
