//! Any text of any `RINGCOMM_*` variable is refused, or means the number that it spells.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::algorithm::Algorithm;
use ringcomm::config::{Config, LEAST_BUFF_SIZE};

/// What a number spells, in more bits than any setting has.
fn spelled(text: &str) -> u128 {
    let text = text.trim();
    let shift = match text.bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        _ => 0,
    };
    let digits = &text[..text.len() - usize::from(shift > 0)];
    digits.parse::<u64>().map_or(u128::MAX, |value| u128::from(value) << shift)
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let variables = || Config::variables().map(|(name, _)| name);
    // A line for each variable, in the order of the table.
    let values: Vec<&str> = text.split('\n').take(variables().count()).collect();
    let value = |name: &str| {
        let index = variables().position(|known| known == name)?;
        values.get(index).map(|value| value.to_string())
    };
    let config = match Config::from_variables(value) {
        Ok(config) => config,
        Err(error) => {
            assert!(error.to_string().contains("RINGCOMM_"));
            return;
        }
    };
    let number = |name: &str| value(name).filter(|text| !text.is_empty()).map(|t| spelled(&t));
    let means = |name: &str, value: u64| number(name).is_none_or(|n| n == u128::from(value));
    assert!(means("RINGCOMM_TIMEOUT_MS", config.timeout_ms) && config.timeout_ms > 0);
    assert!(means("RINGCOMM_BUFFSIZE", config.buff_size.unwrap_or(0) as u64));
    assert!(config.buff_size.is_none_or(|bytes| bytes >= LEAST_BUFF_SIZE));
    assert!(means("RINGCOMM_SPINS", config.spins.unwrap_or(0).into()));
    assert!(means("RINGCOMM_DEBUG", config.debug.into()));
    assert_eq!(number("RINGCOMM_DETERMINISTIC").unwrap_or(0) != 0, config.deterministic);
    if let Some(name) = config.algorithm
        && let Ok(algorithm) = Algorithm::from_name(&name)
    {
        assert!(name.trim().eq_ignore_ascii_case(algorithm.name()));
    }
});
