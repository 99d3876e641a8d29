//! Names: no type of the library, or of a program, has the name of another of it.

use super::code;
use std::collections::BTreeMap;

/// What has one name in several places all the same, and why.
const EXCEPTIONS: [(&str, &str); 2] = [
    ("Words", "32-bit lanes, once for each instruction set, behind the same traits"),
    ("Doubles", "64-bit lanes, in the same way"),
];

/// The folders of the library's and the programs' own code.
pub const CRATES: [&str; 3] = ["src", "programs/ring-perf", "programs/ringrun"];

/// The crate whose own code a file is.
pub fn crate_of(path: &str) -> Option<&'static str> {
    let is_in = |place: &&str| path.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'));
    CRATES.into_iter().find(is_in)
}

/// What only tests are compiled in; the simulators of its parts are alike.
fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.contains("/sim/") || path.ends_with("tests.rs")
}

/// The name of a type that a line defines, beside those that belong to a trait or an impl.
fn defined(line: &str) -> Option<&str> {
    let line = code(line);
    let is_within = line.starts_with(' ');
    let mut words = line.split_whitespace().filter(|word| !word.starts_with("pub"));
    let word = words.by_ref().find(|word| !["unsafe", "crate)", "super)"].contains(word))?;
    // As in `pub(in crate::bootstrap) struct Peer`.
    let word = if word.starts_with("crate::") { words.next()? } else { word };
    if !["struct", "enum", "union", "trait", "type"].contains(&word) || word == "type" && is_within
    {
        return None;
    }
    let name = words.next()?;
    // What C knows begins small.
    name.split(|c: char| !c.is_alphanumeric())
        .next()
        .filter(|name| name.starts_with(char::is_uppercase))
}

/// Names that several types have, with the places of all.
pub fn twice<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (path, text) in files.filter(|(path, _)| !is_test(path)) {
        let Some(own) = crate_of(path) else { continue };
        let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        for name in text[..tests].lines().filter_map(defined) {
            places.entry((own, name)).or_default().push(path);
        }
    }
    let is_known = |name: &str| EXCEPTIONS.iter().any(|(known, _)| *known == name);
    let several = places.iter().filter(|((_, name), at)| at.len() > 1 && !is_known(name));
    several.map(|((_, name), at)| format!("{name}: {}", at.join(", "))).collect()
}

#[test]
fn a_name_that_two_types_have_is_told() {
    let complaints = |files: &[(&str, &str)]| twice(files.iter().copied());
    let lane = ("src/a.rs", "/// A lane.\npub struct Lane<S> {\n");
    for other in [
        "pub(in crate::bootstrap) enum Lane {",
        "unsafe trait Lane {",
        "type Lane = u8;",
        "    struct Lane(u8);",
        "pub(super) union Lane {",
    ] {
        assert_eq!(complaints(&[lane, ("src/b.rs", other)]), ["Lane: src/a.rs, src/b.rs"]);
        // Of another crate, and of tests.
        assert!(complaints(&[lane, ("programs/ringrun/b.rs", other)]).is_empty());
        assert!(complaints(&[lane, ("src/sim/b.rs", other)]).is_empty());
        let text = format!("#[cfg(test)]\nmod tests {{\n{other}\n");
        assert!(complaints(&[lane, ("src/b.rs", &text)]).is_empty());
    }
    // A trait's own, a word in a comment, a use.
    for other in ["    type Lane;", "// struct Lane", "use a::Lane;", "struct Lanes;"] {
        assert!(complaints(&[lane, ("src/b.rs", other)]).is_empty(), "{other}");
    }
    assert!(complaints(&[("src/a.rs", "struct Words;"), ("src/b.rs", "struct Words;")]).is_empty());
}
