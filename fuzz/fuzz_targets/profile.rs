//! A profile file of any content is refused with its line, or is written and read to the same bits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::algorithm::select::Costs;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Costs::from_text(text) {
        Ok(costs) => assert_eq!(Costs::from_text(&costs.to_text()), Ok(costs)),
        Err(error) => assert!(error.to_string().contains("line ")),
    }
});
