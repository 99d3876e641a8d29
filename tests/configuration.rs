//! `docs/configuration.md` is what the tables of `src/config.rs` say, and these say everything.
//!
//! With `WRITE_DOCS` set, which `make docs` does, the page is written anew.

use ringcomm::algorithm::Algorithm;
use ringcomm::config::docs_page;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn committed() -> PathBuf {
    root().join("docs/configuration.md")
}

#[test]
fn the_committed_page_is_up_to_date() {
    let generated = docs_page::markdown();
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(committed(), &generated).expect("write the page");
    }
    let text = fs::read_to_string(committed()).unwrap_or_default();
    let differing = text.lines().zip(generated.lines()).position(|(old, new)| old != new);
    let shorter = text.lines().count().min(generated.lines().count());
    assert!(
        text == generated,
        "docs/configuration.md is not what src/config.rs says; run `make docs` and commit it.\n\
         First difference: line {}",
        differing.unwrap_or(shorter) + 1
    );
}

/// The fields of the header's structure `ringConfig_t`, without its head.
fn fields() -> Vec<String> {
    let header = fs::read_to_string(root().join("include/ringcomm.h")).expect("the header");
    let from = header.find("typedef struct ringConfig_t {").expect("the structure");
    let body = &header[from..];
    let body = &body[..body.find("} ringConfig_t;").expect("its end")];
    let declared = body.lines().filter(|line| line.ends_with(';') && !line.contains('*'));
    let texts = body.lines().filter(|line| line.trim_start().starts_with("const char *"));
    let name = |line: &str| {
        let word = line.trim_end_matches(';').rsplit([' ', '*']).next();
        word.expect("a name").to_string()
    };
    let all = declared.chain(texts).map(name);
    all.filter(|name| !["size", "magic", "version"].contains(&name.as_str())).collect()
}

#[test]
fn the_page_has_every_field_and_every_algorithm() {
    let page = docs_page::markdown();
    let fields = fields();
    assert!(fields.len() > 10, "{fields:?}");
    let python = fs::read_to_string(root().join("python/ringcomm/config.py")).expect("its source");
    for field in &fields {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{field}` | ")));
        let row = row.unwrap_or_else(|| panic!("no row for the field {field}"));
        let name = row.split('`').nth(3).expect("the name in Python");
        assert!(python.contains(&format!("    {name}: Optional[")), "{name} of {row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, fields.len(), "rows of fields that the header does not have");
    let from = page.find("### RINGCOMM_ALGO").expect("the variable");
    let values = page[from..].lines().find(|line| line.starts_with("- Values: ")).expect("values");
    for algorithm in Algorithm::ALL {
        assert!(values.contains(algorithm.name()), "{algorithm} is not among the {values}");
    }
}
