//! Texts of variables become settings, or errors that say why not.

use super::*;

#[test]
fn variables_override_defaults() {
    let config = Config::from_variables(|name| match name {
        "RINGCOMM_TIMEOUT_MS" => Some("250".into()),
        "RINGCOMM_BUFFSIZE" => Some("2M".into()),
        "RINGCOMM_DETERMINISTIC" => Some("1".into()),
        _ => None,
    })
    .unwrap();
    assert_eq!((config.timeout_ms, config.buff_size), (250, Some(2 << 20)));
    assert!(config.deterministic);
}

#[test]
fn a_port_range_has_two_ends_in_order() {
    assert_eq!(ports("20000-20100"), Ok(20000..=20100));
    assert_eq!(ports("8080"), Ok(8080..=8080));
    for bad in ["", "0", "9-8", "1-2-3", "70000", "-5", "0-9"] {
        assert!(ports(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_value_that_does_not_fit_is_refused_and_not_cut() {
    for (variable, text) in [("RINGCOMM_SPINS", "4G"), ("RINGCOMM_BUFFSIZE", "17179869184G")] {
        let lookup = |name: &str| (name == variable).then(|| text.to_string());
        let error = Config::from_variables(lookup).unwrap_err().to_string();
        assert!(error.contains("is too large"), "{error}");
    }
}

#[test]
fn a_bad_value_names_the_variable_and_the_reason() {
    let error =
        Config::from_variables(|name| (name == "RINGCOMM_TIMEOUT_MS").then(|| "soon".to_string()))
            .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("RINGCOMM_TIMEOUT_MS=\"soon\" is not a whole number"), "{text}");
}
