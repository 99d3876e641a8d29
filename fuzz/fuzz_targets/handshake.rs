//! Handshake messages decode to what encodes to them, or are refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::bootstrap::local::wire::{CHALLENGE, Challenge, HELLO, LocalHello};

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = data.first_chunk::<HELLO>()
        && let Ok(hello) = LocalHello::decode(bytes)
    {
        assert_eq!(&hello.encode(), bytes);
    }
    if let Some(bytes) = data.first_chunk::<CHALLENGE>()
        && let Ok(challenge) = Challenge::decode(bytes)
    {
        assert_eq!(&challenge.encode(), bytes);
    }
});
