//! Sets `cfg(loom)` for this package alone, so that no other crate is built twice.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=loom");
}
