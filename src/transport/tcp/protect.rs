//! What guards the bytes of a connection: nothing, a checksum, or encryption.

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes256Gcm, KeyInit, Nonce, Tag};
use crc_fast::{CrcAlgorithm, checksum as crc};

/// Bytes of the tag that follows an encrypted payload.
pub const TAG_BYTES: usize = 16;

/// CRC-32C (Castagnoli), as iSCSI has it.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The two keys of a socket: one for what this end sends, one for what it receives.
#[derive(Clone)]
pub struct LaneKeys {
    pub send: [u8; 32],
    pub receive: [u8; 32],
}

/// One direction of an encrypted lane.
pub struct PayloadCipher(Box<Aes256Gcm>);

impl PayloadCipher {
    pub fn new(key: &[u8; 32]) -> PayloadCipher {
        PayloadCipher(Box::new(Aes256Gcm::new(key.into())))
    }

    /// A position is used once in a connection, and every lane has keys of its own.
    fn nonce(position: u64) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&position.to_le_bytes());
        nonce
    }

    pub fn seal(&self, position: u64, header: &[u8], payload: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = PayloadCipher::nonce(position);
        let tag = self.0.encrypt_in_place_detached(Nonce::from_slice(&nonce), header, payload);
        // A message is at most a slot, far below what the mode allows (64 GiB).
        tag.expect("a slot is not too long for AES-GCM").into()
    }

    /// Whether header and payload are what the peer sealed; the payload is then in clear.
    pub fn open(&self, position: u64, header: &[u8], payload: &mut [u8], tag: &[u8]) -> bool {
        let nonce = PayloadCipher::nonce(position);
        let (nonce, tag) = (Nonce::from_slice(&nonce), Tag::from_slice(tag));
        self.0.decrypt_in_place_detached(nonce, header, payload, tag).is_ok()
    }
}
