//! What documents keep: lengths, short sentences and paragraphs, links and paths that lead
//! somewhere, and the form of the changelog.
//!
//! Each rule goes from a path and a text to complaints; the tests at the end prove what each
//! rejects.

use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// What fits the time that a newcomer gives a README.
const MOST_README_LINES: usize = 170;
const MOST_README_WORDS: usize = 1_100;
const MOST_CHANGELOG_LINES: usize = 60;
/// What is read before a first change, and the headings by which a reader finds a place in it.
const MOST_ARCHITECTURE_WORDS: usize = 3_500;
const LEAST_ARCHITECTURE_HEADINGS: usize = 20;
/// What is read about one part of the code, beside its own comments.
const MOST_INTERNALS_WORDS: usize = 1_000;
/// A sentence's words, and a paragraph's sentences.
const MOST_WORDS: usize = 25;
const MOST_SENTENCES: usize = 5;

/// Documents for users and newcomers, whose paragraphs and sentences are short.
const SHORT: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/c-tutorial.md",
    "docs/configuration.md",
    "docs/performance.md",
];

/// How the names of files end that a document about the code names.
const NAMED: [&str; 5] = [".rs", ".md", ".cu", ".cuh", ".py"];

/// The headings of a release in Keep a Changelog.
const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

type Rule = fn(&str, &str) -> Vec<String>;
const RULES: [Rule; 5] = [lengths, headings, sentences, paragraphs, changelog];

/// A paragraph's, a list item's or a table cell's line and text. What is in a block of code, a
/// heading or a table is no prose, nor is an image or a list of links.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut goes_on) = (false, false);
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            in_code = !in_code;
            goes_on = false;
            continue;
        }
        let none = in_code
            || trimmed.is_empty()
            || ["#", "|", "![", "<"].iter().any(|start| trimmed.starts_with(start));
        if none {
            goes_on = false;
            continue;
        }
        let number = trimmed.split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok());
        let item = trimmed.strip_prefix("- ").or_else(|| trimmed.strip_prefix("* "));
        if item.is_some() || number || !goes_on {
            found.push((at + 1, item.unwrap_or(trimmed).to_string()));
        } else if let Some((_, paragraph)) = found.last_mut() {
            paragraph.push(' ');
            paragraph.push_str(trimmed);
        }
        goes_on = true;
    }
    found
}

/// The words of a text, one of each `code`, without the marks of links and of emphasis.
fn words(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('`') {
        let Some(len) = rest[open + 1..].find('`') else { break };
        plain.push_str(&rest[..open]);
        plain.push_str("code");
        rest = &rest[open + len + 2..];
    }
    plain.push_str(rest);
    // The target of a link has no words.
    while let Some(from) = plain.find("](") {
        let Some(len) = plain[from..].find(')') else { break };
        plain.replace_range(from..=from + len, "");
    }
    let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
    plain.split_whitespace().filter(is_word).map(|word| word.replace(['*', '['], "")).collect()
}

/// The sentences of a paragraph, as words: a sentence ends with a full stop, a question mark or an
/// exclamation mark before a capital letter, a number or the end.
fn split(paragraph: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let words = words(paragraph);
    for (at, word) in words.iter().enumerate() {
        all.last_mut().expect("one at least").push(word.clone());
        let ends = word.trim_end_matches(['"', ')']).ends_with(['.', '?', '!']);
        let next = words.get(at + 1).and_then(|next| next.chars().find(|c| c.is_alphanumeric()));
        // `code` may begin a sentence in whichever case it has.
        let code = words.get(at + 1).is_some_and(|next| next.starts_with("code"));
        if ends && (code || next.is_some_and(|c| !c.is_lowercase())) {
            all.push(Vec::new());
        }
    }
    all.retain(|sentence| !sentence.is_empty());
    all
}

fn lengths(path: &str, text: &str) -> Vec<String> {
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    let (most_lines, most_words) = match path {
        "README.md" => (MOST_README_LINES, MOST_README_WORDS),
        "CHANGELOG.md" => (MOST_CHANGELOG_LINES, usize::MAX),
        "ARCHITECTURE.md" => (usize::MAX, MOST_ARCHITECTURE_WORDS),
        _ if is_internal(path) => (usize::MAX, MOST_INTERNALS_WORDS),
        _ => return Vec::new(),
    };
    let mut complaints = Vec::new();
    if lines > most_lines {
        complaints.push(format!("{path}: {lines} lines, {most_lines} at most"));
    }
    if words > most_words {
        complaints.push(format!("{path}: {words} words, {most_words} at most"));
    }
    complaints
}

/// Whether it is about a part of the code.
fn is_internal(path: &str) -> bool {
    path.starts_with("docs/internals/")
}

/// A map of the code is looked things up in.
fn headings(path: &str, text: &str) -> Vec<String> {
    if path != "ARCHITECTURE.md" {
        return Vec::new();
    }
    let count = outside_code(text).iter().filter(|(_, line)| line.starts_with('#')).count();
    if count >= LEAST_ARCHITECTURE_HEADINGS {
        return Vec::new();
    }
    vec![format!("{path}: {count} headings, {LEAST_ARCHITECTURE_HEADINGS} at least")]
}

fn sentences(path: &str, text: &str) -> Vec<String> {
    if !SHORT.contains(&path) && !is_internal(path) {
        return Vec::new();
    }
    let all = prose(text).into_iter();
    let all = all.flat_map(|(line, text)| split(&text).into_iter().map(move |one| (line, one)));
    let long = all.filter(|(_, sentence)| sentence.len() > MOST_WORDS);
    long.map(|(line, sentence)| {
        let (count, begins) = (sentence.len(), sentence[..5].join(" "));
        format!("{path}:{line}: a sentence of {count} words, {MOST_WORDS} at most: {begins} ...")
    })
    .collect()
}

fn paragraphs(path: &str, text: &str) -> Vec<String> {
    if !SHORT.contains(&path) {
        return Vec::new();
    }
    let counted = prose(text).into_iter().map(|(line, paragraph)| (line, split(&paragraph).len()));
    let long = counted.filter(|(_, count)| *count > MOST_SENTENCES);
    long.map(|(line, count)| {
        format!("{path}:{line}: a paragraph of {count} sentences, {MOST_SENTENCES} at most")
    })
    .collect()
}

/// Keep a Changelog: releases, and under each what was added, changed and so on.
fn changelog(path: &str, text: &str) -> Vec<String> {
    if path != "CHANGELOG.md" {
        return Vec::new();
    }
    let wrong = |(_, line): &(usize, &str)| {
        let title = line.trim_start_matches('#');
        match line.len() - title.len() {
            1 => title != " Changelog",
            2 => !(title.starts_with(" [") && title.contains(']')),
            3 => !KINDS.contains(&title.trim_start()),
            _ => true,
        }
    };
    let headings = text.lines().enumerate().filter(|(_, line)| line.starts_with('#'));
    let mut complaints: Vec<String> = headings
        .filter(wrong)
        .map(|(at, line)| format!("{path}:{}: no heading of Keep a Changelog: {line}", at + 1))
        .collect();
    if !text.contains("\n## [") {
        complaints.push(format!("{path}: no release, as `## [Unreleased]`"));
    }
    complaints
}

/// The lines that are in no block of code, with their numbers.
fn outside_code(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            found.push((at + 1, line));
        }
    }
    found
}

/// The targets of links and images outside code, with their lines.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in outside_code(text) {
        let ends = line.match_indices("](").map(|(from, _)| &line[from + 2..]);
        let named = ends.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        found.extend(named.map(|target| (number, target.to_string())));
    }
    found
}

/// A path without `..`, from the root of the project; `None` where it leads out of it.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !whole.pop() {
                    return None;
                }
            }
            part => whole.push(part),
        }
    }
    Some(whole)
}

/// Relative links lead to what is there, as `exists` says of a path from the root.
fn links(path: &str, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let folder = Path::new(path).parent().expect("a file is in a folder");
    let elsewhere = ["http://", "https://", "mailto:", "#"];
    let broken = |target: &str| {
        let file = target.split('#').next().unwrap_or(target);
        !elsewhere.iter().any(|start| target.starts_with(start))
            && !normal(&folder.join(file)).is_some_and(|found| exists(&found))
    };
    let all = targets(text).into_iter().filter(|(_, target)| broken(target));
    all.map(|(line, target)| format!("{path}:{line}: a link to {target}, which is not there"))
        .collect()
}

/// Files that a document about the code names, as `folder/file.rs`, are there: from the root or
/// from src.
fn named_files(path: &str, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    if path != "ARCHITECTURE.md" && !is_internal(path) {
        return Vec::new();
    }
    let is_file = |name: &str| {
        let is_one = name.contains('/') && !name.contains(' ');
        is_one && NAMED.iter().any(|end| name.ends_with(end))
    };
    let is_there = |name: &str| exists(Path::new(name)) || exists(&Path::new("src").join(name));
    let mut complaints = Vec::new();
    for (number, line) in outside_code(text) {
        // Every second part stands between backquotes.
        for name in line.split('`').skip(1).step_by(2) {
            if is_file(name) && !is_there(name) {
                complaints.push(format!("{path}:{number}: names {name}, which is not there"));
            }
        }
    }
    complaints
}

/// Every document that git has.
fn documents() -> Vec<(String, String)> {
    let root = super::root();
    let git = Command::new("git").args(["ls-files", "-z", "*.md"]).current_dir(&root).output();
    let listed = git.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let listed = listed.and_then(|names| String::from_utf8(names).ok()).unwrap_or_default();
    let tracked = listed.split('\0').filter(|name| !name.is_empty()).map(str::to_string);
    let mut names: Vec<String> = tracked.collect();
    // A source archive has no git.
    if names.is_empty() {
        names = SHORT.iter().map(|name| name.to_string()).collect();
        names.push("CHANGELOG.md".into());
    }
    let read = |name: String| Some((name.clone(), std::fs::read_to_string(root.join(name)).ok()?));
    names.into_iter().filter_map(read).collect()
}

#[test]
fn documents_keep_their_rules() {
    let all = documents();
    for name in SHORT.iter().chain(&["CHANGELOG.md"]) {
        assert!(all.iter().any(|(path, _)| path == name), "{name} is not among the documents");
    }
    let root = super::root();
    let exists = |path: &Path| root.join(path).exists();
    let complaints: Vec<String> = all
        .iter()
        .flat_map(|(path, text)| {
            let kept = RULES.iter().flat_map(move |rule| rule(path, text));
            let led =
                links(path, text, &exists).into_iter().chain(named_files(path, text, &exists));
            kept.chain(led)
        })
        .collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

mod of_the_rules {
    use super::*;

    #[test]
    fn a_long_readme_and_a_long_changelog_are_seen() {
        assert_eq!(lengths("README.md", &"a\n".repeat(171)).len(), 1);
        assert_eq!(lengths("README.md", &"a ".repeat(1_101)).len(), 1);
        assert_eq!(lengths("CHANGELOG.md", &"a\n".repeat(61)).len(), 1);
        assert!(lengths("README.md", &"a\n".repeat(170)).is_empty());
        assert!(lengths("docs/a.md", &"a\n".repeat(171)).is_empty());
    }

    #[test]
    fn long_documents_about_the_code_are_seen() {
        let wrong = |path: &str, words: usize| lengths(path, &"a ".repeat(words)).len();
        assert_eq!(wrong("ARCHITECTURE.md", 3_501), 1);
        assert_eq!(wrong("ARCHITECTURE.md", 3_500), 0);
        assert_eq!(wrong("docs/internals/a.md", 1_001), 1);
        assert_eq!(wrong("docs/internals/a.md", 1_000), 0);
        assert_eq!(wrong("docs/a.md", 9_000), 0);
        assert!(lengths("ARCHITECTURE.md", &"a\n".repeat(500)).is_empty());
    }

    #[test]
    fn a_map_with_few_headings_is_seen() {
        let wrong = |text: &str| headings("ARCHITECTURE.md", text).len();
        assert_eq!(wrong(&"## A\n\na\n\n".repeat(19)), 1);
        assert_eq!(wrong(&"## A\n\na\n\n".repeat(20)), 0);
        // What is in a block of code is none.
        assert_eq!(wrong(&"```sh\n# a\n```\n".repeat(20)), 1);
        assert!(headings("README.md", "# A\n").is_empty());
    }

    #[test]
    fn files_that_are_not_there_are_seen() {
        let exists = |path: &Path| {
            ["src/a/b.rs", "tests/c.rs", "kernels/d.cuh"].iter().any(|one| path == Path::new(one))
        };
        let wrong = |text: &str| named_files("ARCHITECTURE.md", text, &exists).len();
        for broken in ["b/b.rs", "src/c.rs", "docs/e.md", "kernels/d.cu", "f/g.py", "src/d.cuh"] {
            assert_eq!(wrong(&format!("see `{broken}`, and `a`")), 1, "{broken}");
        }
        for good in
            ["a/b.rs", "src/a/b.rs", "tests/c.rs", "kernels/d.cuh", "c.rs", "a/b", "a b/c.rs"]
        {
            assert_eq!(wrong(&format!("see `{good}`, and `a`")), 0, "{good}");
        }
        assert_eq!(wrong("| `x/a.rs` | `a/b.rs`, `x/b.rs` |\n- `x/c.rs`"), 3);
        assert_eq!(wrong("```text\n`x/a.rs`\n```\nx/a.rs"), 0);
        assert_eq!(named_files("docs/internals/a.md", "`x/a.rs`", &exists).len(), 1);
        assert!(named_files("README.md", "`x/a.rs`", &exists).is_empty());
    }

    #[test]
    fn long_sentences_are_seen() {
        let of = |count: usize| format!("Begin {}end.", "word ".repeat(count - 2));
        let wrong = |text: &str| sentences("README.md", text).len();
        assert_eq!(wrong(&of(26)), 1);
        assert_eq!(wrong(&format!("A short one. {} Another.", of(25))), 0);
        assert_eq!(wrong(&format!("- {}\n- {}", of(26), of(26))), 2);
        // Over lines, with code and links, which count as what is read.
        assert_eq!(wrong(&of(26).replace("word word", "word\nword")), 1);
        assert_eq!(wrong(&of(25).replacen("word", "`a b c`", 1)), 0);
        assert_eq!(wrong(&of(25).replacen("word", "[word](a/b c)", 1)), 0);
        assert_eq!(wrong(&of(26).replacen("word", "[word](a/b)", 1)), 1);
        // Code, tables and headings are no prose.
        for around in ["```text\n{}\n```", "| {} |", "# {}"] {
            assert_eq!(wrong(&around.replace("{}", &of(30))), 0, "{around}");
        }
        assert_eq!(sentences("ARCHITECTURE.md", &of(26)).len(), 1);
        assert_eq!(sentences("docs/internals/a.md", &of(26)).len(), 1);
        assert!(sentences("docs/a.md", &of(30)).is_empty());
    }

    #[test]
    fn long_paragraphs_are_seen() {
        let wrong = |text: &str| paragraphs("CONTRIBUTING.md", text).len();
        assert_eq!(wrong(&"It is so. ".repeat(6)), 1);
        assert_eq!(wrong(&"Is it so?\n".repeat(6)), 1);
        assert_eq!(wrong(&"`code` is so. ".repeat(6)), 1);
        assert_eq!(wrong(&"It is so. ".repeat(5)), 0);
        assert_eq!(wrong(&"It is so.\n\n".repeat(6)), 0);
        assert_eq!(wrong(&"- It is so.\n".repeat(6)), 0);
        assert_eq!(wrong(&"as 0.1.0 is, e.g. here ".repeat(6)), 0);
        assert_eq!(paragraphs("ARCHITECTURE.md", &"It is so. ".repeat(6)).len(), 1);
    }

    #[test]
    fn other_headings_than_a_changelogs_are_seen() {
        let good = "# Changelog\n\n## [Unreleased]\n\n### Added\n- a\n\n## [0.1.0] - 2026-01-01\n";
        assert!(changelog("CHANGELOG.md", good).is_empty());
        for (old, new) in [
            ("# Changelog", "# Changes"),
            ("## [Unreleased]", "## Unreleased"),
            ("### Added", "### News"),
            ("### Added", "#### Added"),
        ] {
            assert_eq!(changelog("CHANGELOG.md", &good.replacen(old, new, 1)).len(), 1, "{new}");
        }
        assert_eq!(changelog("CHANGELOG.md", "# Changelog\n").len(), 1);
    }

    #[test]
    fn links_that_lead_nowhere_are_seen() {
        let exists = |path: &Path| path == Path::new("docs/a.md") || path == Path::new("README.md");
        let wrong = |text: &str| links("docs/python/x.md", text, &exists).len();
        for broken in ["b.md", "../b.md", "a.md#part", "../../../README.md", "docs/a.md"] {
            assert_eq!(wrong(&format!("see [it]({broken})")), 1, "{broken}");
        }
        for good in ["../a.md", "../a.md#part", "../../README.md", "#part", "https://a.b/c"] {
            assert_eq!(wrong(&format!("![it]({good}) and `code`")), 0, "{good}");
        }
        assert_eq!(wrong("[a](../a.md) and [b](b.md), [c](c.md)"), 2);
        assert_eq!(wrong("```text\n[it](b.md)\n```"), 0);
    }
}
