//! Any 128 bytes are refused, or are exactly the id that they came from; with a checksum that is
//! right as well.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::bootstrap::UniqueId;
use sha2::{Digest, Sha256};

/// Where the checksum stands.
const CHECKSUM: usize = 120;

fn read(bytes: &[u8; 128], label: &[u8]) {
    let Ok(id) = UniqueId::from_bytes(bytes) else { return };
    assert_eq!(id.as_bytes(), bytes);
    assert!(UniqueId::from_bytes(id.derive(label).as_bytes()).is_ok());
    let addresses = id.addresses();
    let moved = id.derive_at(label, &addresses);
    assert_eq!(UniqueId::from_bytes(moved.as_bytes()).unwrap().addresses(), addresses);
}

fuzz_target!(|data: &[u8]| {
    let Some((bytes, label)) = data.split_first_chunk::<128>() else { return };
    read(bytes, label);
    let mut sound = *bytes;
    let digest = Sha256::digest(&bytes[..CHECKSUM]);
    sound[CHECKSUM..].copy_from_slice(&digest[..128 - CHECKSUM]);
    read(&sound, label);
});
