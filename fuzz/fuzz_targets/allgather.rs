//! What ranks of several hosts say to each other while they meet: refused, or read and written to
//! the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::bootstrap::allgather::{AllgatherMessage, entries};
use ringcomm::communicator::fuzz_hooks::host_peer_info;

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = AllgatherMessage::decode(data) {
        let again = message.encode();
        assert_eq!(AllgatherMessage::decode(&again).as_ref(), Ok(&message));
        if let AllgatherMessage::Table { first, count, body } = &message {
            let found = entries(body).expect("it was read before");
            assert!(found.iter().map(|entry| entry.from.rank).eq(*first..*first + *count));
        }
    }
    if let Ok(found) = entries(data) {
        // A contribution's head has twelve bytes.
        let bytes: usize = found.iter().map(|entry| 12 + entry.payload.len()).sum();
        assert_eq!(bytes, data.len());
    }
    if let Some(again) = host_peer_info(data) {
        // A name that is no UTF-8 has changed, and an IPv4 address is written in one way.
        assert_eq!(host_peer_info(&again), Some(again));
    }
});
