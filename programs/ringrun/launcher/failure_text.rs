//! The sentences in which a failure is told: who, where, how, and what to do.

use super::policy::Failure;
use crate::protocol::messages::Ended;
use crate::sys::signals;

/// What a shell would give for such an end.
fn status_of(ended: Ended) -> u8 {
    match ended {
        Ended::Code(code) => code as u8,
        Ended::Signal(signal) => 128u8.wrapping_add(signal as u8),
    }
}

fn how(ended: Ended) -> String {
    match ended {
        Ended::Code(code) => format!("exited with status {code}"),
        Ended::Signal(signal) => format!("was killed by signal {}", signals::describe(signal)),
    }
}

/// A rank that ended badly; `None` if it ended well.
pub fn rank(rank: usize, host: &str, pid: u32, ended: Ended) -> Option<Failure> {
    if ended == Ended::Code(0) {
        return None;
    }
    let what = format!("rank {rank} (host {host}, pid {pid}) {}", how(ended));
    Some(Failure { what, status: status_of(ended), lasting: false })
}

pub fn not_started(rank: usize, host: &str, why: &str, status: u8) -> Failure {
    let what = format!("rank {rank} (host {host}) was not started: {why}");
    Failure { what, status, lasting: true }
}

/// The status for a host that is lost, as ssh has it for a connection that is.
const LOST: u8 = 255;

/// A host whose agent has gone before its ranks.
pub fn lost(host: &str, ranks: &[usize], why: &str) -> Failure {
    let all: Vec<String> = ranks.iter().map(|rank| rank.to_string()).collect();
    let noun = if all.len() == 1 { "rank" } else { "ranks" };
    let what = format!("host {host} was lost with {noun} {}: {why}", all.join(", "));
    Failure { what, status: LOST, lasting: false }
}

/// How the process that led to a host has ended, for [`lost`].
pub fn way_ended(remote: bool, ended: Option<Ended>) -> String {
    let what = if remote { "its remote shell" } else { "its agent" };
    match ended {
        Some(ended) => format!("{what} {}", how(ended)),
        None => format!("{what} closed the connection"),
    }
}

/// A host on which no agent came up.
pub fn unreached(host: &str, command: Option<&[String]>, ended: Option<Ended>) -> Failure {
    let program = command.and_then(|words| words.iter().rev().nth(1)).map_or("ringrun", |w| w);
    let (why, lasting) = match (command, ended) {
        (Some(_), Some(Ended::Code(126 | 127))) => (
            format!(
                "there is no {program} there that runs; install it, or say where it is with \
                 --remote-path"
            ),
            true,
        ),
        (Some(words), Some(Ended::Code(255))) => {
            let alone = &words[..words.len() - 2];
            (format!("it cannot be reached; try `{} true`", alone.join(" ")), false)
        }
        (_, ended) => (way_ended(command.is_some(), ended), false),
    };
    Failure { what: format!("host {host}: {why}"), status: LOST, lasting }
}

pub fn other_version(host: &str, theirs: &str) -> Failure {
    let own = env!("CARGO_PKG_VERSION");
    let what = format!(
        "host {host} has ringrun {theirs}, this is {own}: install the same there, or name \
         another with --remote-path"
    );
    Failure { what, status: LOST, lasting: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_named_with_host_pid_and_end() {
        let failure = rank(2, "a", 123, Ended::Signal(9)).unwrap();
        assert_eq!(failure.what, "rank 2 (host a, pid 123) was killed by signal 9 (SIGKILL)");
        assert_eq!(failure.status, 137);
        let failure = rank(0, "a", 5, Ended::Code(3)).unwrap();
        assert_eq!((failure.status, failure.what.ends_with("exited with status 3")), (3, true));
        assert_eq!(rank(0, "a", 5, Ended::Code(0)), None);
    }

    #[test]
    fn a_host_without_ringrun_is_told_from_one_that_is_away() {
        let words: Vec<String> = ["ssh", "b", "/bin/ringrun", "--agent"].map(String::from).to_vec();
        let missing = unreached("b", Some(&words), Some(Ended::Code(127)));
        assert!(missing.what.contains("no /bin/ringrun there"), "{}", missing.what);
        assert!(missing.what.contains("--remote-path") && missing.lasting);
        let away = unreached("b", Some(&words), Some(Ended::Code(255)));
        assert!(away.what.contains("try `ssh b true`") && !away.lasting, "{}", away.what);
    }
}
