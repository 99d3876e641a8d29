//! Makes the library pass for NCCL's: its SONAME, its exports, and a folder of its own in which it
//! has NCCL's file name.

use std::path::Path;

const SONAME: &str = "libnccl.so.2";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        &format!("-soname,{SONAME}"),
        // Handlers of `fork` and of a thread's end run its code after a `dlclose`.
        "-z,nodelete",
        // What ringcomm exports for C stays inside.
        "--exclude-libs,ALL",
        // A weak name leads to its twin here, whoever else defines one.
        "-Bsymbolic-functions",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    link_soname();
}

/// Lets `LD_LIBRARY_PATH=target/release/nccl` put Cargo's own file in NCCL's place. A folder of its
/// own: no program finds it there unasked.
fn link_soname() {
    // Cargo's folder of a script's results is PROFILE/build/PACKAGE/out.
    let out = std::env::var("OUT_DIR").expect("Cargo sets it");
    let folder =
        Path::new(&out).ancestors().nth(3).expect("as Cargo lays folders out").join("nccl");
    // Another build may make them at the same time.
    let _ = std::fs::create_dir_all(&folder);
    let link = folder.join(SONAME);
    if link.symlink_metadata().is_err() {
        let _ = std::os::unix::fs::symlink("../libringcomm_nccl.so", link);
    }
}
