//! A profile file of any content is refused with its line, or is written and read to the same bits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::algorithm::select::Profile;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Profile::from_text(text) {
        Ok(profile) => assert_eq!(Profile::from_text(&profile.to_text()), Ok(profile)),
        Err(error) => assert!(error.to_string().contains("line ")),
    }
});
