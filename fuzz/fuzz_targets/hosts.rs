//! A host list or hostfile of any content is refused, or names hosts that ranks can be placed on.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../../programs/ringrun/placement/mod.rs"]
mod placement;
use placement::hosts;

/// Ranks to place: more take long and show nothing else.
const NRANKS: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for hosts in [hosts::parse_list(text), hosts::parse_file(text)].into_iter().flatten() {
        assert!(!hosts.is_empty());
        for host in &hosts {
            // It is an argument of the remote shell, and must not be one of its options.
            assert!(!host.name.is_empty() && !host.name.starts_with('-') && host.slots > 0);
            assert!(!host.name.contains(char::is_whitespace));
            let _ = host.is_here("box.site.org");
        }
        match placement::place(Some(NRANKS), &hosts) {
            Ok(places) => {
                assert_eq!(places.len(), NRANKS);
                assert!(places.iter().enumerate().all(|(rank, place)| place.rank == rank));
            }
            Err(why) => assert!(why.contains("slots")),
        }
    }
});
