//! The project's own rules, enforced: layers, unsafe code, lengths, words that must not stay.
//!
//! Each rule is a function from a file's path and text to complaints; the tests at the end prove
//! that each rejects what it is there to reject.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/mentions.rs"]
mod mentions;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/rooms.rs"]
mod rooms;
use names::{CRATES, crate_of};

/// A file's length that is no longer read in one sitting.
const MOST_LINES: usize = 500;
/// A function's length that no longer fits a screen.
const MOST_FUNCTION_LINES: usize = 70;
/// The width that rustfmt.toml sets, for what rustfmt does not touch: comments and strings.
const MOST_COLUMNS: usize = 100;

/// The layer of every module: arrows point to lower numbers only.
const LAYERS: [(&str, usize); 19] = [
    ("crypto", 0),
    ("error", 0),
    ("os", 0),
    ("types", 0),
    ("config", 0),
    ("sync", 0),
    ("cycle_counter", 0),
    ("fork", 0),
    ("suggest", 0),
    ("host", 0),
    ("plan", 1),
    ("device", 1),
    ("algorithm", 2),
    ("transport", 2),
    ("bootstrap", 2),
    ("executor", 3),
    ("communicator", 4),
    ("ffi", 5),
    ("lib", 6),
];

type Rule = fn(&str, &str) -> Vec<String>;

const RUST_RULES: [Rule; 6] =
    [layers, rooms::floors, locks, safety_comments, function_length, columns];
const TEXT_RULES: [Rule; 3] = [words, paths, file_length];

/// How the names of files of code end.
const CODE: [&str; 8] = [".rs", ".py", ".c", ".cpp", ".cu", ".cuh", ".h", ".hpp"];

/// Files of code that may be longer: the header is generated, and the C++ wrapper is a header that
/// a program includes as one file.
const LONGER: [&str; 2] = ["include/ringcomm.h", "include/ringcomm.hpp"];

/// The module of the top level that a file of src belongs to.
fn module_of(path: &str) -> Option<&str> {
    path.strip_prefix("src/")?.split(['/', '.']).next()
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

/// The code of a line: without its comment. A `//` inside a string cuts too much, never too little.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

/// Modules named after `crate::`, in `use crate::{a::b, c}` too.
fn modules_named(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // As one text, since a list of imports may go over several lines.
    let mut all = String::new();
    let mut starts = Vec::new();
    for line in text.lines() {
        starts.push(all.len());
        all.push_str(code(line));
        all.push('\n');
    }
    let word = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    for (at, _) in all.match_indices("crate::") {
        let line = starts.partition_point(|start| *start <= at);
        let rest = &all[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.push((line, word(rest)));
            continue;
        };
        let (mut depth, mut fresh) = (1, true);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => fresh = true,
                c if fresh && c.is_alphanumeric() => {
                    found.push((line, word(&list[i..])));
                    fresh = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

/// Arrows point to lower layers only, and siblings of one layer do not name each other. Layer 0 is
/// the common vocabulary, whose files may.
fn layers(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let Some(layer) = layer_of(module) else {
        return vec![format!("{path}: module {module} has no layer; give it one in tests/tidy.rs")];
    };
    let wrong = |named: &str| match layer_of(named) {
        Some(other) => named != module && (other > layer || (other == layer && layer > 0)),
        None => false,
    };
    modules_named(text)
        .into_iter()
        .filter(|(_, named)| wrong(named))
        .map(|(line, named)| {
            format!("{path}:{line}: {module} (layer {layer}) may not name {named}")
        })
        .collect()
}

/// The library's locks are those of `sync`, which counts them. Programs and tests may have others.
fn locks(path: &str, text: &str) -> Vec<String> {
    if !path.starts_with("src/")
        || path == "src/sync.rs"
        || path.ends_with("tests.rs")
        || path.contains("/tests/")
    {
        return Vec::new();
    }
    let is_foreign = |line: &&str| {
        let code = code(line);
        let of_std = code.contains("std::sync")
            && ["Mutex", "RwLock", "Condvar"].iter().any(|name| code.contains(name));
        of_std || code.contains("parking_lot")
    };
    let foreign = text.lines().filter(is_foreign);
    foreign.map(|line| format!("{path}: a lock that is not of sync: {}", line.trim())).collect()
}

/// Every unsafe block and implementation has a comment of its own that says why it is sound.
fn safety_comments(path: &str, text: &str) -> Vec<String> {
    if path == "tests/tidy.rs" {
        // It holds examples of what it rejects.
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let is_unsafe = |line: &str| {
        let code = code(line);
        code.contains("unsafe {") || code.trim_start().starts_with("unsafe impl")
    };
    let explained = |at: usize| {
        for line in lines[..at].iter().rev() {
            if line.contains("SAFETY:") {
                return true;
            }
            if is_unsafe(line) || line.trim().is_empty() {
                return false;
            }
        }
        false
    };
    (0..lines.len())
        .filter(|at| is_unsafe(lines[*at]) && !explained(*at))
        .map(|at| format!("{path}:{}: unsafe without a SAFETY comment of its own", at + 1))
        .collect()
}

fn file_length(path: &str, text: &str) -> Vec<String> {
    let is_bound = CODE.iter().any(|end| path.ends_with(end)) && !LONGER.contains(&path);
    let lines = text.lines().count();
    let long = is_bound && lines > MOST_LINES;
    long.then(|| format!("{path}: {lines} lines, {MOST_LINES} at most")).into_iter().collect()
}

/// Whether a line is `fn name...`, with any of the words that may stand before.
fn begins_function(line: &str) -> bool {
    let mut rest = line;
    loop {
        if rest.starts_with("fn ") {
            return true;
        }
        let Some((word, after)) = rest.split_once(' ') else { return false };
        let qualifier = word.starts_with("pub")
            || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word);
        if !qualifier {
            return false;
        }
        rest = after;
    }
}

/// Functions by their indentation, which rustfmt keeps: from the line with `fn` to the closing
/// brace under it.
fn function_length(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut complaints = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        if !begins_function(trimmed) || trimmed.ends_with('}') || trimmed.ends_with(';') {
            continue;
        }
        let closing = format!("{}}}", &line[..line.len() - trimmed.len()]);
        let Some(len) = lines[start..].iter().position(|line| **line == closing) else { continue };
        if len + 1 > MOST_FUNCTION_LINES {
            complaints.push(format!(
                "{path}:{}: a function of {} lines, {MOST_FUNCTION_LINES} at most",
                start + 1,
                len + 1
            ));
        }
    }
    complaints
}

fn columns(path: &str, text: &str) -> Vec<String> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| line.chars().count() > MOST_COLUMNS)
        .map(|(at, _)| format!("{path}:{}: more than {MOST_COLUMNS} columns", at + 1))
        .collect()
}

/// Complaints about every line that contains one of `forbidden`.
fn containing(path: &str, text: &str, forbidden: &[String]) -> Vec<String> {
    text.lines()
        .enumerate()
        .flat_map(|(at, line)| {
            let found = forbidden.iter().filter(move |word| line.contains(word.as_str()));
            found.map(move |word| format!("{path}:{}: contains {word:?}", at + 1))
        })
        .collect()
}

/// Words that mean that something is not finished, or not run. Spelled in halves, so that this file
/// does not contain them.
fn words(path: &str, text: &str) -> Vec<String> {
    let halves =
        [("TO", "DO"), ("FIX", "ME"), ("unimplemented", "!"), ("to", "do!("), ("#[ig", "nore")];
    containing(path, text, &halves.map(|(a, b)| format!("{a}{b}")))
}

/// Paths of one machine.
fn paths(path: &str, text: &str) -> Vec<String> {
    let halves = [("/wo", "rk/"), ("/ro", "ot/"), ("/ho", "me/")];
    containing(path, text, &halves.map(|(a, b)| format!("{a}{b}")))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the project that people write, with its path from the root.
fn files() -> Vec<(String, String)> {
    let mut all = Vec::new();
    let folders = "src programs tests benches cbindings scripts include python kernels fuzz docs";
    let mut folders: Vec<PathBuf> = folders.split(' ').map(|name| root().join(name)).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("an entry").path();
            let hidden = ["target", "__pycache__", ".venv"].iter().any(|name| path.ends_with(name));
            if path.is_dir() && !hidden {
                folders.push(path);
            } else if path.is_file() {
                all.push(path);
            }
        }
    }
    let top = fs::read_dir(root()).expect("the root");
    // Files of git and editors begin with a dot and are nobody's text.
    let hidden =
        |path: &Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
    let top = top.map(|entry| entry.expect("an entry").path());
    all.extend(top.filter(|path| path.is_file() && !hidden(path)));
    let relative = |path: &Path| path.strip_prefix(root()).expect("below").display().to_string();
    // What is not text is no source.
    all.iter().filter_map(|path| Some((relative(path), fs::read_to_string(path).ok()?))).collect()
}

#[test]
fn the_project_keeps_its_rules() {
    let files = files();
    assert!(files.len() > 30, "the project's files were not found");
    let mut complaints = rooms::crowded(files.iter().map(|(path, _)| path.as_str()));
    let sources = files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    complaints.extend(mentions::stale(&files));
    complaints.extend(names::twice(sources.filter(|(path, _)| path.ends_with(".rs"))));
    for (path, text) in &files {
        if path.ends_with(".rs") {
            complaints.extend(RUST_RULES.iter().flat_map(|rule| rule(path, text)));
        }
        complaints.extend(TEXT_RULES.iter().flat_map(|rule| rule(path, text)));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Whether a file has an attribute that lets unsafe code in: any level but `deny` and `forbid`,
/// in any form of attribute.
fn lets_unsafe_code_in(text: &str) -> bool {
    // As one text without comments: rustfmt breaks long attributes into lines.
    let all: String = text.lines().map(|line| code(line).to_string() + "\n").collect();
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let names_lint = |at: usize| {
        let (before, after) = (&all[..at], &all[at + LINT.len()..]);
        !before.ends_with(is_of_word) && !after.starts_with(is_of_word)
    };
    // The level is the last word before a parenthesis that is still open.
    let level = |at: usize| {
        let mut closed = 0;
        let open = all[..at].rfind(|c| match c {
            ')' => {
                closed += 1;
                false
            }
            '(' if closed > 0 => {
                closed -= 1;
                false
            }
            c => c == '(',
        })?;
        all[..open].trim_end().rsplit(|c| !is_of_word(c)).next()
    };
    let harmless = [Some("deny"), Some("forbid")];
    let mut found = all.match_indices(LINT).map(|(at, _)| at).filter(|at| names_lint(*at));
    found.any(|at| !harmless.contains(&level(at)))
}

/// The lint that keeps unsafe code out. A file that names it in another way than as the argument of
/// an attribute is taken for one that lets it in.
const LINT: &str = "unsafe_code";

/// Files of the library and the programs that may hold unsafe code are listed: one more is a
/// decision.
#[test]
fn unsafe_code_is_where_the_list_says() {
    let listed = include_str!("tidy/unsafe_files.txt");
    let listed: Vec<&str> = listed.lines().filter(|line| !line.starts_with('#')).collect();
    let files = files();
    let mut found: Vec<&str> = files
        .iter()
        .filter(|(path, _)| crate_of(path).is_some() && path.ends_with(".rs"))
        .filter(|(_, text)| lets_unsafe_code_in(text))
        .map(|(path, _)| path.as_str())
        .collect();
    found.sort_unstable();
    assert_eq!(found, listed, "tests/tidy/unsafe_files.txt lists the files with unsafe code");
    // Every program and the library keep it out where nothing else is said.
    let is_root = |path: &str| {
        let root = crate_of(path).and_then(|place| path.strip_prefix(place));
        root.is_some_and(|inner| inner == "/lib.rs" || inner == "/main.rs")
    };
    let roots: Vec<_> = files.iter().filter(|(path, _)| is_root(path)).collect();
    assert_eq!(roots.len(), CRATES.len());
    for (path, text) in roots {
        assert!(text.contains("#![deny(unsafe_code)]"), "{path} lets unsafe code in");
    }
}

#[cfg(test)]
mod of_the_checker {
    use super::*;

    #[test]
    fn arrows_upwards_and_between_siblings_are_seen() {
        let bad = [
            ("src/plan/mod.rs", "use crate::executor::host;"),
            ("src/device/mod.rs", "fn f() { crate::plan::verify() }"),
            ("src/transport/fifo.rs", "use crate::{error::Error, bootstrap::{A, B}};"),
            ("src/transport/fifo.rs", "use crate::{\n    sync::atomic,\n    algorithm,\n};"),
            ("src/error.rs", "use crate::plan::Plan;"),
            ("src/novelty.rs", ""),
        ];
        for (path, text) in bad {
            assert_eq!(layers(path, text).len(), 1, "{path}: {text}");
        }
        let good = [
            ("src/executor/mod.rs", "use crate::{error::Error, plan::{A, executor}};"),
            ("src/plan/mod.rs", "use crate::plan::Step; // crate::ffi"),
            ("src/config.rs", "use crate::error::Error;"),
        ];
        for (path, text) in good {
            assert_eq!(layers(path, text), Vec::<String>::new());
        }
    }

    #[test]
    fn locks_of_others_are_seen() {
        for text in ["use parking_lot::Mutex;", "use std::sync::{Arc, Mutex};", "std::sync::RwLock"]
        {
            assert_eq!(locks("src/plan/mod.rs", text).len(), 1, "{text}");
            assert_eq!(locks("programs/ringrun/main.rs", text), Vec::<String>::new());
        }
        let good = "use crate::sync::Mutex;\nuse std::sync::Arc;";
        assert_eq!(locks("src/plan/mod.rs", good), Vec::<String>::new());
    }

    #[test]
    fn unsafe_without_its_own_reason_is_seen() {
        let reason = "// SAFETY: because.\n";
        assert_eq!(safety_comments("a.rs", "let a =\n    unsafe { b };").len(), 1);
        assert_eq!(safety_comments("a.rs", "unsafe impl Send for A {}").len(), 1);
        let shared = format!("{reason}unsafe {{ a }};\nunsafe {{ b }};");
        assert_eq!(safety_comments("a.rs", &shared).len(), 1);
        let far = format!("{reason}\nunsafe {{ a }};");
        assert_eq!(safety_comments("a.rs", &far).len(), 1);
        let own = format!("{reason}let a =\n    unsafe {{ b }};");
        assert!(safety_comments("a.rs", &own).is_empty());
    }

    #[test]
    fn whatever_lets_unsafe_code_in_is_seen() {
        let bad = [
            "#![allow(unsafe_code)]",
            "#[allow(unsafe_code)]\nfn f() {}",
            "#[allow(unsafe_code, dead_code)]",
            "#[allow(dead_code, unsafe_code)]",
            "#[allow(\n    dead_code,\n    unsafe_code, // why\n    reason = \"it must\"\n)]",
            "# ! [ allow ( unsafe_code ) ]",
            "#[expect(unsafe_code)]",
            "#![warn(unsafe_code)]",
            "#[cfg_attr(test, allow(unsafe_code))]",
            "#[cfg_attr(all(test, not(loom)), deny(dead_code), allow(unsafe_code))]",
            "#![deny(unsafe_code)]\n#[allow(unsafe_code)]",
            "#[deny(dead_code)] #[allow(unsafe_code)]",
            "allow_all!(unsafe_code);",
            "const LINT: &str = stringify!(unsafe_code);",
        ];
        for text in bad {
            assert!(lets_unsafe_code_in(text), "{text}");
        }
        let good = [
            "",
            "#![deny(unsafe_code)]",
            "#![forbid(dead_code, unsafe_code)]",
            "#![cfg_attr(not(test), deny(\n    unsafe_code\n))]",
            "// #![allow(unsafe_code)]",
            "#[allow(unsafe_code_of_others, my_unsafe_code)]",
            "#![allow(unsafe_op_in_unsafe_fn)]",
        ];
        for text in good {
            assert!(!lets_unsafe_code_in(text), "{text}");
        }
    }

    #[test]
    fn lengths_are_seen() {
        let file = |lines: usize| "\n".repeat(lines);
        assert_eq!(file_length("a.rs", &file(501)).len(), 1);
        assert!(file_length("a.rs", &file(500)).is_empty());
        for path in ["a/b.py", "a.c", "a.cpp", "a.cu", "a.cuh", "include/a.h", "a.hpp"] {
            assert_eq!(file_length(path, &file(501)).len(), 1, "{path}");
        }
        for path in ["a.md", "a.lock", "include/ringcomm.h", "include/ringcomm.hpp"] {
            assert!(file_length(path, &file(501)).is_empty(), "{path}");
        }
        let function =
            |head: &str, lines: usize| format!("{head} {{\n{}}}\n", "    a;\n".repeat(lines - 2));
        let heads = [
            "fn f()",
            "pub fn f(a: u8)",
            "pub(super) unsafe fn f()",
            "pub unsafe extern \"C\" fn f()",
        ];
        for head in heads {
            assert_eq!(function_length("a.rs", &function(head, 71)).len(), 1, "{head}");
            assert!(function_length("a.rs", &function(head, 70)).is_empty());
        }
        assert!(function_length("a.rs", &function("type A = fn()", 90)).is_empty());
        assert_eq!(columns("a.rs", &"é".repeat(101)).len(), 1);
        assert!(columns("a.rs", &"é".repeat(100)).is_empty());
    }

    #[test]
    fn unfinished_work_and_local_paths_are_seen() {
        for (a, b) in [("// TO", "DO: later"), ("#[ig", "nore]"), ("unimplemented", "!()")] {
            assert_eq!(words("a.rs", &format!("{a}{b}")).len(), 1);
        }
        for (a, b) in [("see /wo", "rk/main"), ("/ho", "me/me/x")] {
            assert_eq!(paths("a.md", &format!("{a}{b}")).len(), 1);
        }
        assert!(words("a.rs", "done").is_empty() && paths("a.rs", "a/worker/b").is_empty());
    }
}
