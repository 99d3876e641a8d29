//! Text is refused as a row of a report, or written and read to the same row.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../../programs/ring-perf/report/row.rs"]
mod row;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(row) = serde_json::from_str::<row::Row>(text) else { return };
    let written = serde_json::to_string(&row).expect("a row is JSON");
    let again: row::Row = serde_json::from_str(&written).expect("a row is one");
    assert_eq!(again.key(), row.key());
});
