//! What comments and documents mention: a name that is gone sends the reader to nothing.

use std::collections::HashSet;

/// The tests below mention what is not there.
const THIS: &str = "tests/tidy/mentions.rs";

/// The words of a text that could be names of code.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The comments of a file of code, or a whole document.
fn prose<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    if path.ends_with(".md") {
        return lines.collect();
    }
    lines.filter_map(|(at, line)| Some((at, &line[line.find("//")?..]))).collect()
}

/// What stands in backquotes in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// `Type::name` without what follows it, as its two last parts.
fn pair(text: &str) -> Option<(&str, &str)> {
    let path = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').next()?;
    let mut parts = path.rsplit("::");
    let (name, owner) = (parts.next()?, parts.next()?);
    (!name.is_empty() && !owner.is_empty()).then_some((owner, name))
}

/// The names in a file of code: those of its path, and those outside its comments.
fn names_of<'a>(path: &'a str, text: &'a str) -> HashSet<&'a str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    path.split(['/', '.']).chain(code.flat_map(identifiers)).collect()
}

/// What is mentioned as `owner::name` though no file of code has both, or as `file.rs` though the
/// tree has no such file.
pub fn stale(files: &[(String, String)]) -> Vec<String> {
    const CODE: [&str; 7] = [".rs", ".py", ".cu", ".cuh", ".h", ".hpp", ".cmake.in"];
    let is_code = |path: &str| CODE.iter().any(|end| path.ends_with(end));
    let code: Vec<HashSet<&str>> = files
        .iter()
        .filter(|(path, _)| is_code(path))
        .map(|(path, text)| names_of(path, text))
        .collect();
    let file_name = |path: &str| path.rsplit('/').next().expect("a name").to_string();
    let names: HashSet<String> = files.iter().map(|(path, _)| file_name(path)).collect();
    let is_there =
        |owner, name| code.iter().any(|file| file.contains(owner) && file.contains(name));
    let is_read = |path: &str| path.ends_with(".rs") || path.ends_with(".md");
    let mut complaints = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| is_read(path) && path != THIS) {
        for (line, text) in prose(path, text) {
            for words in quoted(text) {
                if pair(words).is_some_and(|(owner, name)| !is_there(owner, name)) {
                    complaints.push(format!("{path}:{line}: `{words}` is not in the code"));
                }
                let is_file = words.ends_with(".rs") && !words.contains(['*', ' ', '<']);
                if is_file && !names.contains(&file_name(words)) {
                    complaints.push(format!("{path}:{line}: there is no file `{words}`"));
                }
            }
        }
    }
    complaints
}

#[cfg(test)]
mod of_the_checker {
    use super::*;

    #[test]
    fn a_mention_of_what_is_gone_is_found() {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        let code =
            file("src/a.rs", "impl Worker { fn run(&self) {} }\n// `Worker::obey` in `b.rs`\n");
        let text = file(
            "README.md",
            "`Worker::run(x)` of `src/a.rs`, not `Gone::run` or `Worker::gone`\n",
        );
        let found = stale(&[code, text]);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("src/a.rs:2: `Worker::obey`"), "{found:?}");
        assert!(found[1].contains("no file `b.rs`"), "{found:?}");
    }
}
