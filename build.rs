//! Names the shared library's interface, programs linked with it look for `libringcomm.so.1`, and
//! tells the benchmark which commit it was built from.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libringcomm.so.1");
    // Grows with every commit and checkout; not there in a package without history.
    if Path::new(".git/logs/HEAD").exists() {
        println!("cargo:rerun-if-changed=.git/logs/HEAD");
    }
    if let Some(commit) = commit() {
        println!("cargo:rustc-env=RINGCOMM_GIT_COMMIT={commit}");
    }
}

/// The commit that is checked out, marked where files differ from it.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|commit| !commit.is_empty())?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { commit } else { format!("{commit}-changed") })
}
