//! What a rendezvous URL says: where to meet, whom to ask for the rank, or the rank itself.
//!
//! `env://`, `slurm://`, `tcp://host:port`, `file:///path`; each may end in
//! `?rank=..&world_size=..`, as PyTorch spells it.

use super::RendezvousPlace;
use crate::error::{Error, Result};
use std::path::PathBuf;

/// What a URL asks for.
#[derive(Debug, PartialEq)]
pub(super) struct JoinUrl {
    /// The place that it names.
    pub place: Option<RendezvousPlace>,
    /// The one family that is to be asked, by name; else all in order.
    pub only: Option<&'static str>,
    pub rank: Option<usize>,
    pub nranks: Option<usize>,
}

pub(super) const TORCH: &str = "RANK/WORLD_SIZE";
pub(super) const SLURM: &str = "SLURM_*";

/// Read a URL.
pub(super) fn parse(url: &str) -> Result<JoinUrl> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (place, only) = match base {
        "env://" => (None, Some(TORCH)),
        "slurm://" => (None, Some(SLURM)),
        _ => (Some(place(base, url)?), None),
    };
    let mut request = JoinUrl { place, only, rank: None, nranks: None };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let field = match key {
            "rank" => &mut request.rank,
            "world_size" | "nranks" => &mut request.nranks,
            _ => {
                return Err(Error::argument(format!(
                    "{url:?}: there is no {key:?} in a rendezvous URL; rank and world_size are \
                     possible (write a question mark in a path as %3F)"
                )));
            }
        };
        let number = value.parse().map_err(|_| {
            Error::argument(format!("{url:?}: {key} is {value:?}, which is no whole number"))
        })?;
        *field = Some(number);
    }
    Ok(request)
}

/// A place as `tcp://host:port`, `file:///path`, or `host:port`; `whole` is what the user wrote.
pub(super) fn place(text: &str, whole: &str) -> Result<RendezvousPlace> {
    if let Some(address) = text.strip_prefix("tcp://") {
        let (host, port) = host_and_port(address, whole)?;
        return Ok(RendezvousPlace::Address { host, port });
    }
    if let Some(path) = text.strip_prefix("file://") {
        if !path.starts_with('/') || path.len() == 1 {
            return Err(Error::argument(format!(
                "{whole:?}: after file:// comes an absolute path, as in file:///shared/job-7"
            )));
        }
        return Ok(RendezvousPlace::File(PathBuf::from(decoded(path, whole)?)));
    }
    if text.contains("://") {
        return Err(Error::argument(format!(
            "{whole:?} is no rendezvous: there are env://, slurm://, tcp://host:port and \
             file:///path"
        )));
    }
    let (host, port) = host_and_port(text, whole)?;
    Ok(RendezvousPlace::Address { host, port })
}

/// `host:port`, `[v6]:port`.
fn host_and_port(text: &str, whole: &str) -> Result<(String, u16)> {
    let wrong = |why: &str| {
        Error::argument(format!("{whole:?}: {why}; write host:port, or [v6 address]:port"))
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(|| wrong("a bracket is not closed"))?,
        None if host.contains(':') => return Err(wrong("an IPv6 address needs brackets")),
        None => host,
    };
    let name = |byte: u8| byte.is_ascii_graphic() && !b"/[]?@".contains(&byte);
    if host.is_empty() || !host.bytes().all(name) {
        return Err(wrong("the host has no name"));
    }
    match port.parse() {
        Ok(port) if port > 0 => Ok((host.to_string(), port)),
        _ => Err(wrong("the port is no number from 1 to 65535")),
    }
}

/// A path without its `%41` escapes.
fn decoded(path: &str, whole: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digit = |at: usize| after.get(at).and_then(|byte| (*byte as char).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(Error::argument(format!("{whole:?}: after % come two hexadecimal digits")));
        };
        bytes.push((16 * high + low) as u8);
        rest = &after[2..];
    }
    let wrong = |_| Error::argument(format!("{whole:?}: the path is no UTF-8"));
    match bytes.contains(&0) {
        true => Err(Error::argument(format!("{whole:?}: a path has no NUL"))),
        false => String::from_utf8(bytes).map_err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(host: &str, port: u16) -> Option<RendezvousPlace> {
        Some(RendezvousPlace::Address { host: host.into(), port })
    }

    #[test]
    fn places_are_read() {
        let of = |url: &str| parse(url).unwrap().place;
        assert_eq!(of("tcp://10.0.0.1:29500"), address("10.0.0.1", 29500));
        assert_eq!(of("tcp://node-1.example:1"), address("node-1.example", 1));
        assert_eq!(of("tcp://[fe80::1%eth0]:65535"), address("fe80::1%eth0", 65535));
        assert_eq!(of("file:///a/b"), Some(RendezvousPlace::File("/a/b".into())));
        assert_eq!(of("file:///a%20b%3f?rank=1"), Some(RendezvousPlace::File("/a b?".into())));
        assert_eq!(parse("env://").unwrap().only, Some(TORCH));
        assert_eq!(parse("slurm://").unwrap().only, Some(SLURM));
        assert_eq!(of("slurm://"), None);
    }

    #[test]
    fn a_query_says_the_rank() {
        let request = parse("tcp://a:1?rank=2&world_size=3").unwrap();
        assert_eq!((request.rank, request.nranks), (Some(2), Some(3)));
        assert_eq!(parse("env://?rank=0").unwrap().nranks, None);
    }

    #[test]
    fn what_is_no_url_says_why() {
        let cases = [
            ("http://a:1", "there are env://"),
            ("tcp://a", "port is missing"),
            ("tcp://:5", "no name"),
            ("tcp://a b:5", "no name"),
            ("tcp://a/b:5", "no name"),
            ("tcp://a:0", "1 to 65535"),
            ("tcp://a:65536", "1 to 65535"),
            ("tcp://a:1/b", "1 to 65535"),
            ("tcp://::1:5", "needs brackets"),
            ("tcp://[::1:5", "not closed"),
            ("file://a/b", "absolute path"),
            ("file://", "absolute path"),
            ("file:///", "absolute path"),
            ("file:///a%2", "two hexadecimal"),
            ("file:///a%00", "NUL"),
            ("file:///a%ff", "UTF-8"),
            ("env://?rank=x", "no whole number"),
            ("env://?rang=1", "there is no \"rang\""),
            ("env://host", "there are env://"),
        ];
        for (url, why) in cases {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(url), "{url}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "(tcp|file|env)?:?/{0,3}[a-z:%0-9\\[\\]?=&/]{0,20}",
        ) {
            let _ = parse(&text);
        }
    }
}
