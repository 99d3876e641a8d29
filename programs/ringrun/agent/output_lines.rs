//! A rank's output, cut into lines and marked with where each came from.
//!
//! Only whole lines are let through, so that no line ever holds the output of two ranks. Bytes are
//! never changed: whatever is not a line end is passed on as it came.

use crate::protocol::messages::Stream;
use std::io::Write;

/// A line longer than this is cut: what is held of an unfinished line needs a bound, and a megabyte
/// on one line is no text.
const MOST_LINE_BYTES: usize = 1 << 20;

/// Collects bytes until a line is whole. A carriage return ends a line too, unless a line feed
/// follows: progress bars redraw themselves with it.
#[derive(Default)]
pub struct Lines {
    held: Vec<u8>,
}

impl Lines {
    /// Take more bytes; every line that they complete goes to `line`, with its end.
    pub fn push(&mut self, bytes: &[u8], line: &mut impl FnMut(&[u8])) {
        let mut rest = bytes;
        // Whether the carriage return that came last was a line's end shows only now.
        if let (Some(b'\r'), Some(next)) = (self.held.last(), rest.first())
            && *next != b'\n'
        {
            line(&std::mem::take(&mut self.held));
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let end = match rest[end..] {
                [b'\r', b'\n', ..] => end + 2,
                [b'\r'] => break,
                _ => end + 1,
            };
            let (whole, more) = rest.split_at(end);
            rest = more;
            if self.held.is_empty() {
                line(whole);
            } else {
                self.held.extend_from_slice(whole);
                line(&std::mem::take(&mut self.held));
            }
        }
        self.held.extend_from_slice(rest);
        if self.held.len() > MOST_LINE_BYTES {
            self.finish(line);
        }
    }

    /// There is no more: what is held is the last line, which gets the end that it lacks.
    pub fn finish(&mut self, line: &mut impl FnMut(&[u8])) {
        if self.held.is_empty() {
            return;
        }
        if self.held.last() != Some(&b'\r') {
            self.held.push(b'\n');
        }
        line(&std::mem::take(&mut self.held));
    }
}

/// What stands before a line, `[3]<stdout>:`, as horovodrun writes it.
pub struct Prefix {
    pub tag: bool,
    pub timestamp: bool,
}

impl Prefix {
    pub fn write(&self, out: &mut Vec<u8>, rank: usize, stream: Stream) {
        // Writing to a vector cannot fail.
        if self.timestamp {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let _ = write!(out, "{} ", stamp(since.unwrap_or_default().as_millis() as u64));
        }
        if self.tag {
            let _ = write!(out, "[{rank}]<{}>:", stream.name());
        }
    }
}

/// A moment as ISO 8601 has it, in UTC: hosts in two time zones stay comparable.
pub fn stamp(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (mut year, mut left) = (1970, days);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    let day = left + 1;
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.push(chunk, &mut |line| found.push(line.to_vec()));
        }
        lines.finish(&mut |line| found.push(line.to_vec()));
        found
    }

    #[test]
    fn lines_are_whole_however_their_bytes_arrive() {
        let text = b"one\ntwo\r\n\n\xff\0three\rfour\r\rfive";
        let whole = all(&[text]);
        let expected: [&[u8]; 7] =
            [b"one\n", b"two\r\n", b"\n", b"\xff\0three\r", b"four\r", b"\r", b"five\n"];
        assert_eq!(whole, expected);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(all(&bytes), whole);
        for cut in 0..text.len() {
            assert_eq!(all(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_without_end_is_cut_and_loses_nothing() {
        let long = vec![b'x'; MOST_LINE_BYTES + 10];
        let lines = all(&[&long, b"y\n"]);
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].len(), lines[1].as_slice()), (long.len() + 1, b"y\n".as_slice()));
    }

    #[test]
    fn a_prefix_says_rank_and_stream() {
        let mut out = Vec::new();
        Prefix { tag: true, timestamp: false }.write(&mut out, 3, Stream::Error);
        assert_eq!(out, b"[3]<stderr>:");
    }

    #[test]
    fn moments_are_dates() {
        assert_eq!(stamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(stamp(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(stamp(1_704_067_199_999), "2023-12-31T23:59:59.999Z");
    }
}
