//! What guards the bytes of a connection: nothing, a checksum, or encryption.

use crc_fast::{CrcAlgorithm, checksum as crc};

/// CRC-32C (Castagnoli), as iSCSI has it.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The two keys of a socket: one for what this end sends, one for what it receives.
#[derive(Clone)]
pub struct SocketKeys {
    pub send: [u8; 32],
    pub receive: [u8; 32],
}
