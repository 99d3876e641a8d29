//! `ringrun --check` where not every pair can talk: each pair of hosts by itself.
//!
//! One bad pair ends the job of all ranks. A job of two hosts fails by itself, so this program
//! starts itself once for each pair, and the matrix shows which ones fail.

use super::check::{self, PairResult};
use crate::sys::terminal::{complain, say};
use std::process::{Command, Stdio};

/// Which hosts, by their places in the list.
pub const ARGUMENT: &str = "--check-hosts";

/// From here on a status says that somebody wanted the end (128 + signal, 130 for Ctrl-C) or that a
/// host was lost, which no pair tells more of.
const ENDED: u8 = 128;

/// Whether a check that ended so has found that ranks cannot talk.
pub fn is_finding(status: u8) -> bool {
    (1..ENDED).contains(&status)
}

/// Check every pair of hosts and print the matrix; the exit status.
pub fn check(names: &[String]) -> u8 {
    let count = names.len();
    complain("check: not all ranks can talk; every pair of hosts by itself:");
    let mut all = vec![None; count * count];
    let mut failures = Vec::new();
    for low in 0..count {
        for high in low + 1..count {
            match one_pair(low, high) {
                Ok(found) => all[low * count + high] = Some(found),
                Err(PairFailure::Ended(status)) => return status,
                Err(PairFailure::Found(text)) => {
                    let [low, high] = [&names[low], &names[high]];
                    failures.push(format!("check: {low} and {high} cannot talk: {text}"));
                }
            }
        }
    }
    let pairs = count * (count - 1) / 2;
    let mut text = format!("{count} hosts, {} of {pairs} pairs talk\n", pairs - failures.len());
    for (host, name) in names.iter().enumerate() {
        text += &format!("  host {host}: {name}\n");
    }
    say(&(text + &check::matrices("host", count, &all)));
    failures.iter().for_each(|failure| complain(failure));
    if failures.is_empty() {
        complain("check: every two hosts can talk, but not all ranks together");
    }
    1
}

enum PairFailure {
    /// The pair was not to be checked to its end; the exit status.
    Ended(u8),
    /// Why the two cannot talk.
    Found(String),
}

fn one_pair(low: usize, high: usize) -> Result<PairResult, PairFailure> {
    let found = |text: String| PairFailure::Found(text);
    let program = std::env::current_exe().map_err(|error| found(error.to_string()))?;
    let output = Command::new(program)
        .args(std::env::args_os().skip(1))
        .args([ARGUMENT, &format!("{low},{high}")])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| found(error.to_string()))?;
    let status = output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(ENDED);
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match status {
        0 => read(&text).ok_or_else(|| found(format!("an answer that says nothing: {text}"))),
        status if is_finding(status) => {
            let why = errors.lines().find_map(|line| line.split_once("check: "));
            let why = why.map_or(errors.trim(), |(_, why)| why);
            Err(found(why.to_string()))
        }
        status => Err(PairFailure::Ended(status)),
    }
}

/// What the report of two ranks says.
fn read(report: &str) -> Option<PairResult> {
    let row = |line: &str| {
        let cells = line.strip_prefix("rank ")?.split_whitespace().skip(1);
        cells
            .filter(|cell| *cell != "-")
            .map(|cell| cell.parse().ok())
            .collect::<Option<Vec<f64>>>()
    };
    let rows: Vec<Vec<f64>> = report.lines().filter_map(row).collect();
    match &rows[..] {
        [latency, _, there, back] => Some(PairResult {
            microseconds: *latency.first()?,
            there: *there.first()?,
            back: *back.first()?,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_two_is_read_back() {
        let found = PairResult { microseconds: 12.5, there: 1.25, back: 3.0 };
        let text =
            format!("2 ranks\n  rank 0: a\n{}", check::matrices("rank", 2, &[None, Some(found)]));
        let again = read(&text).unwrap();
        assert_eq!((again.microseconds, again.there, again.back), (12.5, 1.25, 3.0));
        assert!(read("nothing").is_none());
    }

    #[test]
    fn a_pair_that_found_nothing_fails_in_the_matrix() {
        let text = check::matrices("host", 2, &[None; 4]);
        assert_eq!(text.matches("FAILS").count(), 4, "{text}");
    }
}
