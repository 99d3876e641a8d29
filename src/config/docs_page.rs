//! The page `docs/configuration.md`, from the tables of variables; `make docs` writes it.

use super::other_variables::{KERNELS, ONLOOKERS, PROGRAMS, RENDEZVOUS};
use super::{VARIABLES, Variable};
use std::fmt::Write;

/// A heading with the variables under it.
pub(super) struct Section {
    title: &'static str,
    introduction: &'static str,
    pub(super) variables: &'static [Variable],
}

pub(super) static SECTIONS: [Section; 5] = [
    Section {
        title: "Settings of a communicator",
        introduction: "All ranks need the same values, except of the fields `spins`, `debug`, \
             `interfaces`, `ports` and `device`. When they meet, they compare \
             those that change results or memory.",
        variables: &VARIABLES,
    },
    Section {
        title: "Joining a job",
        introduction: "`ringCommInitUrl`, `ringcomm.init()` and the PyTorch backend read these. \
             `ringrun` sets them for its ranks; docs/launchers.md has the rules.",
        variables: &RENDEZVOUS,
    },
    Section {
        title: "Watching a job",
        introduction: "docs/debugging.md tells how to use these.",
        variables: &ONLOOKERS,
    },
    Section { title: "Building kernels", introduction: "", variables: &KERNELS },
    Section { title: "Programs around the library", introduction: "", variables: &PROGRAMS },
];

const BEGINNING: &str = "\
# Configuration

Set an environment variable, or the field of `ringConfig_t` that belongs to it:

```sh
RINGCOMM_TIMEOUT_MS=60000 ringrun -np 2 ./program
```

```c
ringConfig_t config = RING_CONFIG_INITIALIZER;
config.timeoutMs = 60000;
ringCommInitRankConfig(&comm, nranks, id, rank, &config);
```

A field that is set wins over the variable, and the variable wins over the default. An empty \
variable counts as not set. A number may end in K, M or G, which are powers of 1024. An unusable \
value is an error that names the variable.

The Python package has the same fields in `ringcomm.Config`, as `timeout_ms` for `timeoutMs`.

This page is generated from `src/config.rs`; `make docs` writes it anew.
";

const FIELDS: &str = "
## Fields of ringConfig_t

Begin with `RING_CONFIG_INITIALIZER`, in which nothing is set.

| field | Python | variable |
|---|---|---|
";

/// The field that no variable sets.
const INIT_TIMEOUT: &str = "initTimeoutMs";

/// A file that a text names becomes a link from the page to it.
fn linked(text: &str) -> String {
    let mut text = text.to_string();
    for page in ["launchers.md", "debugging.md"] {
        let (named, link) = (format!("docs/{page}"), format!("[docs/{page}]({page})"));
        text = text.replace(&named, &link);
    }
    text
}

/// The name of a field in the Python package: `timeout_ms` for `timeoutMs`.
fn in_python(field: &str) -> String {
    let letter = |c: char| match c {
        'A'..='Z' => format!("_{}", c.to_ascii_lowercase()),
        c => c.to_string(),
    };
    field.chars().map(letter).collect()
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or(String::new(), |first| first.to_uppercase().to_string() + letters.as_str())
}

fn entry(page: &mut String, variable: &Variable) -> std::fmt::Result {
    let Variable { name, help, values, default, more, field, .. } = variable;
    write!(page, "\n### {name}\n\n{}.\n\n", capitalized(help))?;
    writeln!(page, "- Values: {values}")?;
    writeln!(page, "- Default: {default}")?;
    if !field.is_empty() {
        writeln!(page, "- Field: `{field}`")?;
    }
    if !more.is_empty() {
        write!(page, "\n{}\n", linked(more))?;
    }
    Ok(())
}

fn written() -> std::result::Result<String, std::fmt::Error> {
    let mut page = BEGINNING.to_string();
    for section in &SECTIONS {
        write!(page, "\n## {}\n", section.title)?;
        if !section.introduction.is_empty() {
            write!(page, "\n{}\n", linked(section.introduction))?;
        }
        section.variables.iter().try_for_each(|variable| entry(&mut page, variable))?;
    }
    page.push_str(FIELDS);
    for variable in VARIABLES.iter().filter(|variable| !variable.field.is_empty()) {
        let (field, name) = (variable.field, variable.name);
        writeln!(page, "| `{field}` | `{}` | `{name}` |", in_python(field))?;
    }
    writeln!(page, "| `{INIT_TIMEOUT}` | `{}` | none |", in_python(INIT_TIMEOUT))?;
    write!(
        page,
        "\n`{INIT_TIMEOUT}` is the deadline, in milliseconds, for making a communicator. Where it \
         is not set, `timeoutMs` is.\n"
    )?;
    Ok(page)
}

/// The page.
pub fn markdown() -> String {
    written().expect("a String takes any text")
}
