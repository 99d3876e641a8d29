//! Every way a call can fail, and the text that tells the user what to do about it.
//!
//! One enum for the whole library. `Display` names who, what, which rank and which operation; the
//! C boundary maps each variant to one of NCCL's result codes and keeps the text for
//! `ringGetLastError`.

use std::fmt;

/// What a rank was doing, for an error text: `in AllReduce(count=8, type=f32, op=sum) #12`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The call as its user wrote it, without the buffers.
    pub call: String,
    /// Its sequence number on the communicator, from 0; none for what is no call of the user's:
    /// `while the communicator was made`.
    pub sequence: Option<u64>,
}

impl Operation {
    /// What the library does for itself, as it ends a sentence.
    pub fn aside(text: &str) -> Operation {
        Operation { call: text.into(), sequence: None }
    }

    /// `" in CALL"`, or what else was done.
    fn during(&self) -> String {
        let word = if self.sequence.is_some() { "in " } else { "" };
        format!(" {word}{self}")
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sequence {
            Some(sequence) => write!(f, "{} #{sequence}", self.call),
            None => f.write_str(&self.call),
        }
    }
}

/// A rank's process, for an error text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankProcess {
    pub rank: usize,
    /// The name of its machine; empty where it is not known.
    pub host: Box<str>,
    pub pid: u32,
}

impl RankProcess {
    /// A rank of which no more is known.
    pub fn unmet(rank: usize) -> RankProcess {
        RankProcess { rank, host: "".into(), pid: 0 }
    }
}

impl fmt::Display for RankProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            // It has not come so far as to say it.
            return write!(f, "rank {}", self.rank);
        }
        if self.host.is_empty() {
            return write!(f, "rank {} (pid {})", self.rank, self.pid);
        }
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// An argument that can never be right: NULL, a bad enum, a stale handle, overlapping buffers.
    InvalidArgument(String),
    /// A call that is right by itself but not here: mixed up groups, a failed communicator.
    InvalidUsage(String),
    /// The operating system refused; the text says what was tried, `errno` what it answered.
    System { what: String, errno: i32 },
    /// The CUDA driver is missing, too old, or refused something.
    Cuda(String),
    /// A broken invariant of the library itself.
    Internal(String),
    /// Two ranks made different calls under one sequence number.
    Mismatch { rank: usize, mine: Operation, peer: RankProcess, theirs: Box<Operation> },
    /// A peer's process is gone.
    PeerDied { rank: usize, peer: RankProcess, operation: Option<Operation> },
    /// Nobody has reached a peer since the ranks met: its process is gone, or something lies in
    /// between. `by` tried, and `why` is what became of that, after `rank {by} `.
    Unreached {
        rank: usize,
        peer: RankProcess,
        operation: Option<Operation>,
        by: usize,
        why: Box<str>,
    },
    /// The deadline passed while waiting for `peer`.
    Timeout {
        rank: usize,
        peer: RankProcess,
        operation: Operation,
        waited_ms: u64,
        peer_state: Box<str>,
    },
    /// A rank failed first and told the others; `text` is its own error.
    Remote { rank: usize, peer: RankProcess, operation: Option<Operation>, text: String },
    /// The connection to a peer that seems to live is gone: reset, or damaged bytes came.
    Disconnected {
        rank: Option<usize>,
        peer: RankProcess,
        operation: Option<Operation>,
        why: String,
    },
    /// `ringCommAbort` was called on this rank.
    Aborted { rank: usize, operation: Option<Operation> },
    /// The rendezvous did not complete before its deadline: `missing`, and so many `unlisted` ones,
    /// for whom there was no room in what told this rank, did not come.
    Missing { nranks: usize, missing: Vec<usize>, unlisted: usize, waited_ms: u64 },
    /// Ranks that count as one host, and had met over the network, have not met on that host.
    Apart { ranks: Vec<usize>, missing: Vec<usize>, unlisted: usize, waited_ms: u64 },
    /// The ranks that were to meet at a place did not; `why` is how far it came.
    NotMet { place: String, why: String, waited_ms: u64 },
}

/// What the system answered, and what to do where a process, or a machine, has as many files open
/// as it may.
fn answered(what: &str, errno: i32) -> String {
    let advice = match errno {
        libc::EMFILE if !what.contains("ulimit -n") => {
            "; raise `ulimit -n` for the processes of the job"
        }
        libc::ENFILE if !what.contains("fs.file-max") => "; raise fs.file-max on that machine",
        _ => "",
    };
    format!("{}{advice}", std::io::Error::from_raw_os_error(errno))
}

/// Why bytes were not what they should have been.
pub type Refusal = &'static str;

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The last operating system error, with what was being done.
    pub fn system(what: impl Into<String>) -> Error {
        Error::os(what, std::io::Error::last_os_error())
    }

    /// What a system call answered, with what was being done.
    pub fn os(what: impl Into<String>, error: impl Into<std::io::Error>) -> Error {
        Error::System { what: what.into(), errno: error.into().raw_os_error().unwrap_or(0) }
    }

    /// The same where ranks were counted in another way: `name` gives their own numbers, also for
    /// those that the error's texts name.
    pub fn renumbered(self, name: impl Fn(usize) -> usize) -> Error {
        let who = |peer: RankProcess| RankProcess { rank: name(peer.rank), ..peer };
        let told = |text: &str| retold(text, &name);
        match self {
            Error::PeerDied { rank, peer, operation } => {
                Error::PeerDied { rank: name(rank), peer: who(peer), operation }
            }
            Error::Unreached { rank, peer, operation, by, why } => {
                Error::Unreached { rank: name(rank), peer: who(peer), operation, by: name(by), why }
            }
            Error::Timeout { rank, peer, operation, waited_ms, peer_state } => {
                let (rank, peer, peer_state) = (name(rank), who(peer), told(&peer_state).into());
                Error::Timeout { rank, peer, operation, waited_ms, peer_state }
            }
            Error::Remote { rank, peer, operation, text } => {
                let (rank, peer, text) = (name(rank), who(peer), told(&text));
                Error::Remote { rank, peer, operation, text }
            }
            Error::Aborted { rank, operation } => Error::Aborted { rank: name(rank), operation },
            Error::System { what, errno } => Error::System { what: told(&what), errno },
            Error::InvalidUsage(text) => Error::InvalidUsage(told(&text)),
            Error::Mismatch { rank, mine, peer, theirs } => {
                Error::Mismatch { rank: name(rank), mine, peer: who(peer), theirs }
            }
            Error::Disconnected { rank, peer, operation, why } => {
                let (rank, peer, why) = (rank.map(&name), who(peer), told(&why));
                Error::Disconnected { rank, peer, operation, why }
            }
            Error::Missing { nranks, missing, unlisted, waited_ms } => {
                let missing = missing.into_iter().map(name).collect();
                Error::Missing { nranks, missing, unlisted, waited_ms }
            }
            Error::Apart { ranks, missing, unlisted, waited_ms } => {
                let [ranks, missing] =
                    [ranks, missing].map(|list| list.into_iter().map(&name).collect());
                Error::Apart { ranks, missing, unlisted, waited_ms }
            }
            other => other,
        }
    }

    pub fn argument(text: impl Into<String>) -> Error {
        Error::InvalidArgument(text.into())
    }

    /// The same, with the name of the call whose argument was refused.
    pub fn of(self, call: &str) -> Error {
        match self {
            Error::InvalidArgument(text) => Error::InvalidArgument(format!("{call}: {text}")),
            other => other,
        }
    }

    pub fn usage(text: impl Into<String>) -> Error {
        Error::InvalidUsage(text.into())
    }
}

/// A text about ranks that were counted in another way: their own numbers after every `rank `, and
/// in lists after `ranks ` and `missing: `.
fn retold(text: &str, name: impl Fn(usize) -> usize) -> String {
    let mut told = String::with_capacity(text.len());
    let mut is_listed = false;
    for word in text.split_inclusive(' ') {
        let is_first = told.ends_with("ranks ") || told.ends_with("missing: ");
        is_listed |= is_first && word.starts_with('[');
        let number = word.trim_start_matches('[');
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        match number[..end].parse() {
            Ok(rank) if is_listed || told.ends_with("rank ") => {
                told += &word[..word.len() - number.len()];
                told += &name(rank).to_string();
                told += &number[end..];
            }
            _ => told += word,
        }
        is_listed &= !word.contains(']');
    }
    told
}

/// At most so many bytes of a text. It does not end in a part of a number: that may be a rank's,
/// and would be read as another's.
pub fn cut(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    let (kept, rest) = text.split_at(end.unwrap_or(0));
    match rest.starts_with(|c: char| c.is_ascii_digit()) {
        true => kept.trim_end_matches(|c: char| c.is_ascii_digit()),
        false => kept,
    }
}

/// Ranks, and how many more there are.
pub fn list(ranks: &[usize], unlisted: usize) -> String {
    match unlisted {
        0 => format!("{ranks:?}"),
        _ => format!("{ranks:?} and {unlisted} more"),
    }
}

/// `" in CALL"`, or nothing where no operation was running.
fn during(operation: &Option<Operation>) -> String {
    operation.as_ref().map(Operation::during).unwrap_or_default()
}

/// What calls that disagree are told, also what those differ in that read alike: of a `v` form's
/// counts the text has the sum.
fn advice(mine: &Operation, theirs: &Operation) -> &'static str {
    match mine == theirs {
        true => {
            "; the block counts differ: sender and receiver of a block must give the same count"
        }
        false => "; every rank must make the same calls in the same order",
    }
}

/// What is known of a rank that was never reached, and what to do about it.
const OUT_OF_REACH: &str = "died or cannot be reached";
const OPEN: &str = "if it lives, let the hosts reach each other's ports (RINGCOMM_PORT_RANGE says \
                    which) or name the interfaces that do (RINGCOMM_SOCKET_IFNAME), else shrink \
                    the communicator or restart the job";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidArgument(text) => write!(f, "invalid argument: {text}"),
            Error::InvalidUsage(text) => write!(f, "invalid usage: {text}"),
            Error::System { what, errno } => {
                write!(f, "{what}: {}", answered(what, *errno))
            }
            Error::Cuda(text) => write!(f, "CUDA: {text}"),
            Error::Internal(text) => {
                write!(f, "internal error: {text}; this is a defect of ringcomm, please report it")
            }
            Error::Mismatch { rank, mine, peer, theirs } => write!(
                f,
                "ranks disagree: rank {rank} called {mine} but {peer} called {theirs}{}",
                advice(mine, theirs)
            ),
            Error::PeerDied { rank, peer, operation } => write!(
                f,
                "{peer} died: rank {rank} cannot go on{}; shrink the communicator or restart \
                 the job",
                during(operation)
            ),
            Error::Unreached { rank, peer, operation, by, why } => write!(
                f,
                "{peer} {OUT_OF_REACH}: rank {rank} cannot go on{}; rank {by} {why}; {OPEN}",
                during(operation)
            ),
            Error::Timeout { rank, peer, operation, waited_ms, peer_state } => write!(
                f,
                "timeout: rank {rank} waited {waited_ms} ms for {peer}{}; {peer_state}; if this is \
                 expected raise RINGCOMM_TIMEOUT_MS or the config's timeout_ms",
                operation.during()
            ),
            Error::Remote { rank, peer, operation, text } => {
                write!(f, "{peer} failed and rank {rank} cannot go on{}: {text}", during(operation))
            }
            Error::Disconnected { rank, peer, operation, why } => write!(
                f,
                "the connection {}to {peer} broke{}: {why}; look for what cuts connections \
                 between the two hosts, then shrink the communicator or restart the job",
                rank.map(|rank| format!("of rank {rank} ")).unwrap_or_default(),
                during(operation)
            ),
            Error::Aborted { rank, operation } => write!(
                f,
                "the communicator of rank {rank} was aborted{}; make another to go on",
                during(operation)
            ),
            Error::Missing { nranks, missing, unlisted, waited_ms } => write!(
                f,
                "after {waited_ms} ms only {} of {nranks} ranks had arrived; missing: {}; \
                 start them, or raise RINGCOMM_TIMEOUT_MS",
                nranks - missing.len() - unlisted,
                list(missing, *unlisted)
            ),
            Error::Apart { ranks, missing, unlisted, waited_ms } => write!(
                f,
                "ranks {ranks:?} count as one host, and after {waited_ms} ms only {} of them had \
                 met there; missing: {}; set RINGCOMM_HOSTID if they are on several, or raise \
                 RINGCOMM_TIMEOUT_MS",
                ranks.len() - missing.len() - unlisted,
                list(missing, *unlisted)
            ),
            Error::NotMet { place, why, waited_ms } => write!(
                f,
                "after {waited_ms} ms the ranks had not met ({place}): {why}; start all ranks with \
                 the same settings, or raise RINGCOMM_TIMEOUT_MS"
            ),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_names_no_other_rank() {
        let text = "rank 12 told ranks [3, 45] of a café";
        let cuts = [(5, "rank "), (6, "rank "), (7, "rank 12"), (22, "rank 12 told ranks [3,")];
        for (most, wanted) in cuts {
            assert_eq!(cut(text, most), wanted);
        }
        assert_eq!(cut(text, 24), "rank 12 told ranks [3, ");
        assert_eq!(cut(text, 25), "rank 12 told ranks [3, 45");
        assert_eq!((cut(text, text.len()), cut(text, text.len() - 1)), (text, &text[..35]));
        // Whole numbers stay at the end of a text that fits.
        assert_eq!(cut("rank 12", 7), "rank 12");
    }

    #[test]
    fn a_text_is_told_with_the_numbers_of_the_ranks() {
        let name = |rank: usize| 10 + rank;
        let told = [
            ("rank 0 tried for 10 ms to reach rank 1", "rank 10 tried for 10 ms to reach rank 11"),
            ("rank 2; rank 3 (host b, pid 4) x", "rank 12; rank 13 (host b, pid 4) x"),
            (
                "only 1 of 3 ranks came; missing: [0, 2]; 5",
                "only 1 of 3 ranks came; missing: [10, 12]; 5",
            ),
            ("ranks [1] and 3 more", "ranks [11] and 3 more"),
            ("ranks disagree: [1] frank", "ranks disagree: [1] frank"),
            ("missing: []; a rank", "missing: []; a rank"),
        ];
        for (text, wanted) in told {
            assert_eq!(retold(text, name), wanted);
        }
    }
}
