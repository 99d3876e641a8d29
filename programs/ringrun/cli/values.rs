//! The values of options: what a word on the command line means, or why it means nothing.

use super::options::Forwarded;
use crate::agent::environment;
use crate::placement::hosts::{self, Host};
use std::time::Duration;

pub fn read_hosts(path: &str) -> Result<Vec<Host>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    hosts::parse_file(&text)
}

pub fn interfaces(names: &str) -> Result<Forwarded, String> {
    variable(&format!("RINGCOMM_SOCKET_IFNAME=={names}"))
}

pub fn variable(text: &str) -> Result<Forwarded, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_string())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err("write NAME or NAME=VALUE".into());
    }
    if environment::is_own(name) {
        let instead = match name {
            "MASTER_ADDR" => "; use --master-addr",
            "MASTER_PORT" => "; use --master-port",
            _ => "",
        };
        return Err(format!("ringrun itself sets {name}{instead}"));
    }
    Ok((name.to_string(), value))
}

/// Two hosts' places.
pub fn pair(text: &str) -> Result<(usize, usize), String> {
    let (low, high) = text.split_once(',').ok_or("write two hosts' places")?;
    Ok((number(low)?, number(high)?))
}

pub fn one_or_more(text: &str) -> Result<usize, String> {
    match number(text)? {
        0 => Err("must be at least 1".into()),
        count => Ok(count),
    }
}

pub fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "is not a whole number".to_string())
}

pub fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("is not a port".into()),
    }
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| "is not a number of seconds")?;
    // A hundred years: durations and clocks can add it up.
    if (0.0..3.2e9).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err("is not a number of seconds".into())
    }
}
