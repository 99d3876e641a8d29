//! Makes the C header from the library's sources.
//!
//! The functions' comments in `src/ffi` are the header's documentation; what cannot be said in Rust
//! (initializers, aliases, the introduction) is in `header_begin.h` and `header_end.h` beside this
//! crate.

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// The files of the C API, in the header's order.
const SOURCES: [&str; 11] = [
    "types",
    "comm/query",
    "comm/lifecycle",
    "comm/launched",
    "calls/group",
    "calls/collective",
    "calls/vector",
    "calls/stream",
    "memory",
    "calls/red_op",
    "comm/explain",
];

/// The Rust files of a folder below the root, and of the folders in it.
pub fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the root") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found
}

/// The text of `include/ringcomm.h`.
pub fn header() -> String {
    let bindings = root().join("cbindings");
    let read = |name: &str| std::fs::read_to_string(bindings.join(name)).expect(name);
    let mut config =
        cbindgen::Config::from_file(bindings.join("cbindgen.toml")).expect("the config");
    config.header = Some(read("abi/header_begin.h").trim_end().to_string());
    config.trailer = Some(read("abi/header_end.h").trim_end().to_string());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root().join(format!("src/ffi/{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().expect("cbindgen reads src/ffi").write(&mut text);
    for_c_readers(&String::from_utf8(text).expect("sources are UTF-8"))
}

/// Rust's comments call a caller's duties "Safety"; a C programmer calls them requirements. A
/// negative macro needs parentheses, and the least `int` has no literal of its own in C.
fn for_c_readers(text: &str) -> String {
    let line = |line: &str| {
        let macro_value = line.strip_prefix("#define ").and_then(|rest| rest.split_once(" -"));
        match macro_value {
            Some((name, "2147483648")) => format!("#define {name} (-2147483647 - 1)\n"),
            Some((name, value)) => format!("#define {name} (-{value})\n"),
            None => format!("{line}\n"),
        }
    };
    text.replace("# Safety\n", "Requires:\n").lines().map(line).collect()
}
