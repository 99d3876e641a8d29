//! Frame headers are bounded and exact; failure reports never panic and survive a round.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::bootstrap::local::wire::{Failure, FrameHeader, HEADER, MAX_PAYLOAD};

fuzz_target!(|data: &[u8]| {
    let Some((head, body)) = data.split_first_chunk::<HEADER>() else { return };
    if let Ok(header) = FrameHeader::decode(head) {
        assert_eq!(&header.encode(), head);
        assert!(header.bytes as usize <= MAX_PAYLOAD);
    }
    let body = &body[..body.len().min(MAX_PAYLOAD)];
    if let Ok(failure) = Failure::decode(body) {
        let again = failure.encode();
        assert!(again.len() <= MAX_PAYLOAD);
        assert_eq!(Failure::decode(&again).map(|failure| failure.encode()), Ok(again));
        let _ = failure.into_error(0, 4).to_string();
    }
});
