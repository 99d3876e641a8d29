//! Rooms: how many files a folder has, and which rooms of a folder a room may name.
//!
//! A room is a folder, or a file beside it. What tests are compiled in may name any.

use super::code;
use super::names::crate_of;

/// The most files of a folder: a listing of so many answers where something is.
const MOST_FILES: usize = 12;

/// Folders whose rooms have an order. A room names rooms of the floors before its own; those of one
/// floor, in one string, may name each other. `mod` is what the folder's own file holds.
const HOUSES: [(&str, &[&str]); 8] = [
    (
        "src/communicator",
        &[
            "call",
            "control_plane",
            "observe",
            "health",
            "memory",
            "tuning",
            "gpu",
            "exec",
            "mod failure messages one_sided",
            "enqueue",
            "init",
            "shrink",
            "typed",
            "sim fuzz_hooks",
        ],
    ),
    (
        "src/communicator/gpu",
        &[
            "mod abort refuse_capture stream_order device_placement data_path staging",
            "p2p",
            "fused",
            "ipc",
        ],
    ),
    (
        "src/ffi",
        &[
            "types",
            "handle",
            "convert",
            "reductions",
            "object",
            "boundary",
            "memory",
            "comm",
            "calls",
            "mod",
        ],
    ),
    (
        "src/bootstrap",
        &[
            "addresses admission error process",
            "unique_id",
            "local",
            "tcp",
            "allgather",
            "rendezvous",
            "sim",
            "mod",
        ],
    ),
    (
        "src/executor",
        &[
            "chunk_layout progress_watch control_block balanced_reduction",
            "compile_plan links",
            "host",
            "direct",
            "shm_two_shot send_recv bounced_send_recv zero_copy",
            "device_work",
            "device_p2p",
            "mod",
        ],
    ),
    (
        "src/transport",
        &[
            "mod prefetch fifo wait wait_tests segment pidfd core_distance",
            "cma fd_mailbox shm_export shm_import",
            // An engine's lane lies beside sockets, and has their frames.
            "network tcp engine",
        ],
    ),
    ("programs/ring-perf", &["cli", "ranks", "measure", "report", "model", "run", "gpu", "main"]),
    (
        "programs/ringrun",
        &["sys", "placement", "protocol", "agent", "tools", "cli", "launcher", "main"],
    ),
];

/// A communicator keeps its thread, whose work names communicators; so does a rank on a device with
/// the ways that its calls take.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("src/communicator/mod.rs", "enqueue"),
    ("src/communicator/gpu/mod.rs", "p2p"),
    ("src/communicator/gpu/mod.rs", "fused"),
    ("src/communicator/gpu/mod.rs", "ipc"),
];

/// The folders of code with more files than one may have.
pub fn crowded<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut folders = std::collections::BTreeMap::new();
    for path in paths.filter(|path| crate_of(path).is_some()) {
        let (folder, _) = path.rsplit_once('/').expect("in a crate's folder");
        *folders.entry(folder).or_insert(0) += 1;
    }
    let crowded = folders.into_iter().filter(|(_, files)| *files > MOST_FILES);
    crowded
        .map(|(folder, files)| format!("{folder}: {files} files, {MOST_FILES} at most"))
        .collect()
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The code without comments, up to the tests at its end; every line keeps its number.
fn code_of(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(code).collect();
    let begins_tests = |at: &usize| {
        let mut rest = lines[*at + 1..].iter().filter(|line| !line.trim_start().starts_with("#["));
        let line = lines[*at].trim();
        line.starts_with("#[cfg(")
            && line.contains("test")
            && rest.next().is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    };
    let end = (0..lines.len()).find(begins_tests).unwrap_or(lines.len());
    lines[..end].join("\n")
}

/// The paths that begin here: one, or as many as a list in braces has.
fn paths_from(text: &str) -> Vec<Vec<String>> {
    let word: String = text.chars().take_while(|c| is_of_word(*c)).collect();
    if word.is_empty() {
        return Vec::new();
    }
    let Some(rest) = text[word.len()..].strip_prefix("::") else { return vec![vec![word]] };
    let mut all = Vec::new();
    let mut branches = Vec::new();
    match rest.strip_prefix('{') {
        None => branches.push(rest),
        Some(list) => {
            let (mut depth, mut start) = (1, 0);
            for (at, c) in list.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    _ => {}
                }
                if depth == 0 || (c == ',' && depth == 1) {
                    branches.push(list[start..at].trim_start());
                    start = at + 1;
                }
                if depth == 0 {
                    break;
                }
            }
        }
    }
    for branch in branches.into_iter().filter(|branch| !branch.trim().is_empty()) {
        let found = paths_from(branch);
        if found.is_empty() {
            all.push(vec![word.clone()]);
        }
        all.extend(found.into_iter().map(|path| [vec![word.clone()], path].concat()));
    }
    all
}

/// The module that a file is, from its crate's root.
fn module_of(path: &str) -> Vec<String> {
    let inner = crate_of(path).and_then(|place| path.strip_prefix(place)).unwrap_or(path);
    let inner = inner.trim_start_matches('/').trim_end_matches(".rs");
    let mut parts: Vec<String> = inner.split('/').map(String::from).collect();
    parts.pop_if(|last| ["mod", "main", "lib"].contains(&last.as_str()));
    parts
}

/// Paths that a file of a house names, from its crate's root, with their lines.
fn named(path: &str, text: &str, rooms: &[&str]) -> Vec<(usize, Vec<String>)> {
    let text = code_of(text);
    let module = module_of(path);
    let mut all = Vec::new();
    let mut words = text.char_indices().filter(|(at, c)| {
        let before = &text[..*at];
        is_of_word(*c) && !before.ends_with(is_of_word) && !before.ends_with("::")
    });
    let is_own = path.ends_with("/mod.rs") || path.ends_with("/main.rs");
    for (at, _) in words.by_ref() {
        let word = text[at..].split(|c| !is_of_word(c)).next().unwrap_or("");
        let begins =
            ["crate", "super", "self"].contains(&word) || (is_own && rooms.contains(&word));
        // What something is visible in is not named by it.
        if !begins || text[..at].ends_with("in ") || !text[at + word.len()..].starts_with("::") {
            continue;
        }
        let line = text[..at].lines().count().max(1);
        for named in paths_from(&text[at..]) {
            let mut from = if word == "crate" { Vec::new() } else { module.clone() };
            let ups = named.iter().take_while(|part| *part == "super").count();
            from.truncate(from.len().saturating_sub(ups));
            let rest = named
                .into_iter()
                .skip_while(|part| ["crate", "super", "self"].contains(&part.as_str()));
            all.push((line, from.into_iter().chain(rest).collect()));
        }
    }
    all
}

/// A room names only rooms of the floors before its own, in every house that it is in.
pub fn floors(path: &str, text: &str) -> Vec<String> {
    let is_of_tests = path.ends_with("tests.rs") || path.contains("/tests/");
    let houses = HOUSES.iter().filter(|_| !is_of_tests);
    houses.flat_map(|(house, floors)| floors_of(house, floors, path, text)).collect()
}

fn floors_of(house: &str, floors: &[&str], path: &str, text: &str) -> Vec<String> {
    let inner = path.strip_prefix(house).and_then(|rest| rest.strip_prefix('/'));
    let Some(inner) = inner else { return Vec::new() };
    let rooms: Vec<&str> = floors.iter().flat_map(|floor| floor.split(' ')).collect();
    let floor_of = |room: &str| floors.iter().position(|floor| floor.split(' ').any(|r| r == room));
    let own =
        rooms.iter().find(|room| ["mod", "main"].contains(room)).expect("the folder's own file");
    let room = inner.split('/').next().unwrap_or("").trim_end_matches(".rs");
    let Some(floor) = floor_of(room) else {
        return vec![format!("{path}: {room} has no floor; give it one in tests/tidy/rooms.rs")];
    };
    let base = module_of(&format!("{house}/mod.rs"));
    let rooms_named = named(path, text, &rooms).into_iter().filter_map(|(line, named)| {
        let below = named.strip_prefix(&base[..])?;
        let room = below.first().filter(|name| rooms.contains(&name.as_str()));
        Some((line, room.map_or(own.to_string(), String::clone)))
    });
    let is_wrong = |named: &str| {
        floor_of(named).is_some_and(|other| other > floor) && !EXCEPTIONS.contains(&(path, named))
    };
    let wrong = rooms_named.filter(|(_, named)| is_wrong(named));
    let told = |(line, named)| format!("{path}:{line}: {room} may not name {named} of {house}");
    let mut told: Vec<String> = wrong.map(told).collect();
    told.dedup();
    told
}

#[cfg(test)]
mod of_the_checker {
    use super::*;

    #[test]
    fn a_thirteenth_file_is_seen() {
        let paths = |files: usize| -> Vec<String> {
            (0..files).map(|file| format!("src/plan/{file}.rs")).collect()
        };
        let crowded = |paths: Vec<String>| crowded(paths.iter().map(String::as_str)).len();
        assert_eq!(crowded(paths(13)), 1);
        assert_eq!(crowded(paths(12)), 0);
        // A folder's folders are no files of it, and other trees have no bound.
        let deeper = paths(12).into_iter().chain(["src/plan/room/mod.rs".into()]);
        assert_eq!(crowded(deeper.collect()), 0);
        let others = paths(13).iter().map(|path| path.replace("src", "tests")).collect();
        assert_eq!(crowded(others), 0);
    }

    #[test]
    fn rooms_that_name_later_ones_are_seen() {
        let bad = [
            ("src/communicator/call/mod.rs", "use super::exec::Engine;"),
            ("src/communicator/call/mod.rs", "use crate::communicator::{\n    gpu::{A, B},\n};"),
            ("src/communicator/tuning/select.rs", "fn f() { crate::communicator::init::g() }"),
            ("src/communicator/tuning/select.rs", "use super::super::enqueue;"),
            ("src/communicator/gpu/ipc/mod.rs", "use crate::communicator::Communicator;"),
            ("src/communicator/exec/mod.rs", "use super::{Communicator, call::Call};"),
            ("src/communicator/mod.rs", "use init::Assembly;"),
            ("src/communicator/mod.rs", "struct A(shrink::B);"),
            ("src/communicator/novelty.rs", ""),
            ("src/communicator/gpu/p2p/threads.rs", "use super::super::fused::launch::A;"),
            ("src/ffi/comm/query.rs", "use crate::ffi::calls::group::A;"),
            ("src/bootstrap/tcp/listener.rs", "use crate::bootstrap::UniqueId;"),
            ("src/executor/links/mod.rs", "use super::direct::run::Base;"),
            ("src/transport/fifo.rs", "fn f() { super::tcp::g() }"),
            ("programs/ringrun/protocol/frame.rs", "use crate::agent::environment::A;"),
            ("programs/ring-perf/cli/sizes.rs", "use crate::say;"),
        ];
        for (path, text) in bad {
            assert_eq!(floors(path, text).len(), 1, "{path}: {text}");
        }
    }

    #[test]
    fn rooms_that_name_earlier_ones_are_good() {
        let good = [
            ("src/communicator/exec/mod.rs", "use super::{call::Call, tuning::{self, A}};"),
            ("src/communicator/exec/mod.rs", "pub(in crate::communicator) fn f() {}"),
            ("src/communicator/exec/mod.rs", "// crate::communicator::init"),
            ("src/communicator/gpu/ipc/mod.rs", "use super::super::call::Call;"),
            ("src/communicator/mod.rs", "mod init;\nuse failure::Unwinding;"),
            ("src/communicator/failure.rs", "use super::Communicator;"),
            (
                "src/communicator/call/mod.rs",
                "#[cfg(test)]\nmod tests {\n    use crate::communicator::init;",
            ),
            ("src/communicator/control_plane/tests/gossip.rs", "use crate::communicator::init;"),
            ("src/executor/host.rs", "use super::links::Links;"),
            ("programs/ring-perf/main.rs", "mod run;\nuse run::launch;"),
            ("programs/ring-perf/run/mod.rs", "use ringcomm::gpu::A;\nuse crate::cli::sizes;"),
        ];
        for (path, text) in good {
            assert_eq!(floors(path, text), Vec::<String>::new(), "{path}: {text}");
        }
    }
}
