//! The committed header is what the sources say.

#[test]
fn the_committed_header_is_up_to_date() {
    let path = ringcomm_abi::root().join("include/ringcomm.h");
    let committed = std::fs::read_to_string(&path).expect("include/ringcomm.h");
    let generated = ringcomm_abi::header();
    if committed != generated {
        let differing = committed
            .lines()
            .zip(generated.lines())
            .position(|(old, new)| old != new)
            .unwrap_or(committed.lines().count().min(generated.lines().count()));
        let line = |text: &str| text.lines().nth(differing).unwrap_or("(end)").to_string();
        panic!(
            "include/ringcomm.h is not what src/ffi says; run `make header` and commit it.\n\
             First difference, line {}:\n committed: {}\n generated: {}",
            differing + 1,
            line(&committed),
            line(&generated)
        );
    }
}
