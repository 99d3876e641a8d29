//! Error message of a rank that cannot go on, which it brings to a rendezvous in place of what it
//! would say of itself. So the others end with it at once, and do not wait for it.

use crate::error::{Error, RankProcess, cut};
use crate::host;

/// What an excuse begins with: no segment of a process has this number.
const MARK: [u8; 8] = *b"excuse: ";

/// Bytes of the reason at most.
const LONGEST: usize = 1024;

/// The bytes that a rank of this process brings, which failed with this error.
pub fn pack(error: &Error) -> Vec<u8> {
    let (host, text) = (host::name(), error.to_string());
    let host = cut(host, 255);
    let mut bytes = MARK.to_vec();
    bytes.extend(std::process::id().to_le_bytes());
    bytes.push(host.len() as u8);
    bytes.extend(host.as_bytes());
    bytes.extend(cut(&text, LONGEST).as_bytes());
    bytes
}

/// What `rank` is told where another brought these bytes, if they are an excuse.
pub fn unpack(bytes: &[u8], other: usize, rank: usize) -> Option<Error> {
    let rest = bytes.strip_prefix(&MARK)?;
    let (pid, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first()?;
    let (host, text) = rest.split_at_checked(usize::from(*length))?;
    let host = String::from_utf8_lossy(host).into();
    let peer = RankProcess { rank: other, host, pid: u32::from_le_bytes(*pid) };
    let text = String::from_utf8_lossy(text).into_owned();
    Some(Error::Remote { rank, peer, operation: None, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::MAX_PAYLOAD;

    #[test]
    fn an_excuse_names_who_failed_and_why() {
        let error = Error::System { what: "opening a file".into(), errno: libc::EMFILE };
        let text = unpack(&pack(&error), 3, 1).unwrap().to_string();
        let process = format!("rank 3 (host {}, pid {})", host::name(), std::process::id());
        assert!(text.starts_with(&process), "{text}");
        assert!(text.contains("rank 1 cannot go on: opening a file"), "{text}");
        assert!(text.contains("ulimit -n"), "{text}");
        assert_eq!(unpack(&[0; 400], 3, 1), None);
        let bytes = pack(&error);
        assert!((0..13).all(|end| unpack(&bytes[..end], 3, 1).is_none()));
    }

    #[test]
    fn the_longest_excuse_is_no_more_than_a_meeting_takes() {
        let bytes = pack(&Error::usage("x".repeat(2 * MAX_PAYLOAD)));
        assert!(bytes.len() <= MAX_PAYLOAD && unpack(&bytes, 0, 1).is_some());
    }
}
