//! Names the shared library's interface, programs linked with it look for `libringcomm.so.1`;
//! compiles the GPU kernels; tells the library which commit it was compiled from.

#[path = "kernels/build.rs"]
mod kernels;

use std::path::Path;
use std::process::Command;

/// What the library is compiled from.
const SOURCES: [&str; 4] = ["src", "kernels", "Cargo.toml", "Cargo.lock"];

const SONAME: &str = "libringcomm.so.1";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // For every target here, since Cargo hands arguments for a library alone on to the libraries of
    // dependents, which have names of their own. A program has no such name, and ignores it.
    println!("cargo:rustc-link-arg=-Wl,-soname,{SONAME}");
    // It stays where it is once it is loaded: threads of its own, handlers of `fork` and of a
    // thread's end run its code after a `dlclose`.
    println!("cargo:rustc-link-arg=-Wl,-z,nodelete");
    // Not at every commit, which would compile everything again for a name: a commit that leaves
    // the library's sources alone leaves it what it was.
    println!("cargo:rerun-if-changed=src");
    kernels::build();
    link_soname();
    if let Some(commit) = commit() {
        println!("cargo:rustc-env=RINGCOMM_GIT_COMMIT={commit}");
    }
}

/// Lets a program start that was linked with Cargo's own file: beside it lies the name that the
/// program asks for.
fn link_soname() {
    // Cargo's folder of a script's results is PROFILE/build/PACKAGE/out.
    let out = std::env::var("OUT_DIR").expect("Cargo sets it");
    let profile = Path::new(&out).ancestors().nth(3).expect("as Cargo lays folders out");
    let link = profile.join(SONAME);
    if link.symlink_metadata().is_err() {
        // Another build may make it at the same time.
        let _ = std::os::unix::fs::symlink("libringcomm.so", link);
    }
}

/// The commit that is checked out, marked where the library's sources differ from it; none in a
/// package without history.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|commit| !commit.is_empty())?;
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let changed = git(&[&status[..], &SOURCES].concat())?;
    Some(if changed.is_empty() { commit } else { format!("{commit}-changed") })
}
