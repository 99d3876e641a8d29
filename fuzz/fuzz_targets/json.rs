//! Text is refused as JSON, or written and read to the same value; as a row of a report too.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../../programs/ring-perf/report/json.rs"]
mod json;
#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../../programs/ring-perf/report/row.rs"]
mod row;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(value) = json::parse(text) else { return };
    let written = value.to_string();
    assert_eq!(json::parse(&written).as_ref(), Ok(&value), "{written}");
    if let Some(row) = row::Row::from_json(&value) {
        let again = row::Row::from_json(&row.to_json()).expect("a row is one");
        assert_eq!(again.key(), row.key());
    }
});
