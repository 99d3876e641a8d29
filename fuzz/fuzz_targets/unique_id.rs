//! Any 128 bytes are refused, or are exactly the id that they came from.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::bootstrap::UniqueId;

fuzz_target!(|data: &[u8]| {
    let Some(bytes) = data.first_chunk::<128>() else { return };
    if let Ok(id) = UniqueId::from_bytes(bytes) {
        assert_eq!(id.as_bytes(), bytes);
        assert!(UniqueId::from_bytes(id.derive(&data[128..]).as_bytes()).is_ok());
    }
});
