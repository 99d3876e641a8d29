//! The built library exports the committed list and nothing else, under its promised name.

use std::process::Command;

/// The library that `cargo build` made; `RINGCOMM_LIBRARY` names it, which scripts/test sets.
fn library() -> String {
    std::env::var("RINGCOMM_LIBRARY").expect("RINGCOMM_LIBRARY names the built libringcomm.so")
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_exported_symbols_are_the_committed_list() {
    let listing = output("nm", &["-D", "--defined-only", &library()]);
    let mut exported: Vec<&str> =
        listing.lines().filter_map(|line| line.split_whitespace().last()).collect();
    exported.sort_unstable();
    let committed = ringcomm_abi::root().join("cbindings/symbols.txt");
    let committed = std::fs::read_to_string(committed).expect("cbindings/symbols.txt");
    let committed: Vec<&str> = committed.lines().collect();
    assert_eq!(
        exported, committed,
        "a symbol that is gone breaks programs; a new one belongs in cbindings/symbols.txt"
    );
    assert!(exported.iter().all(|symbol| symbol.starts_with("ring")), "{exported:?}");
}

#[test]
fn the_soname_is_the_promised_one() {
    let dynamic = output("readelf", &["-d", &library()]);
    assert!(dynamic.contains("soname: [libringcomm.so.1]"), "{dynamic}");
}

#[test]
fn the_library_loads_without_cuda() {
    let dynamic = output("readelf", &["-d", &library()]);
    let needed: Vec<&str> = dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(!needed.is_empty() && !needed.iter().any(|line| line.contains("cuda")), "{needed:?}");
}
