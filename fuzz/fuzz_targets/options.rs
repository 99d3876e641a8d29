//! Any command line of ring-perf is refused, or is one that it can run.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod program;
use program::cli::{self, options};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let arguments: Vec<String> = text.split('\n').map(str::to_string).collect();
    match options::parse(&arguments) {
        Ok(options) => {
            assert!(!options.operations.is_empty());
            assert_eq!(options.arguments, arguments);
        }
        Err(answer) => assert!(!answer.to_string().is_empty()),
    }
});
