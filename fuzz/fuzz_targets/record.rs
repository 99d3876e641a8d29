//! An operation's packed words, and what a rank says of itself at the rendezvous: refused, or
//! exactly what they came from.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::communicator::call::signature::CallSignature;
use ringcomm::communicator::fuzz_hooks::peer_info;

mod support;
use support::Input;

fuzz_target!(|data: &[u8]| {
    if let Some(written) = peer_info(data) {
        assert_eq!(written, data[..written.len()]);
    }
    let mut input = Input(data);
    let (Some(what), Some(count)) = (input.long(), input.long()) else { return };
    if let Some(descriptor) = CallSignature::unpack(what, count) {
        assert!(!descriptor.text().is_empty());
        assert_ne!(descriptor.fingerprint(count), 0);
        let again = CallSignature::unpack(descriptor.pack(), descriptor.count as u64);
        assert_eq!(again, Some(descriptor));
        // Of a batch of messages only the count means anything.
        if descriptor.collective.is_some() {
            assert_eq!((descriptor.pack(), descriptor.count as u64), (what, count));
        }
    }
});
