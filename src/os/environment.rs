//! The environment's variables, as far as this process may trust them.
//!
//! A program that runs with more rights than whoever starts it (set-user-id, file capabilities) has
//! variables of that caller's choosing: which file to write, which kernels to load. None of them
//! counts there, as with the C library's own.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::sync::OnceLock;

/// Whether the environment is of somebody with fewer rights than this process.
fn is_of_a_stranger() -> bool {
    // SAFETY: reads a number that the kernel gave the process when it started.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Where a variable's text is found if the environment has none.
type OtherNames = fn(&str) -> Option<OsString>;

static OTHERWISE: OnceLock<OtherNames> = OnceLock::new();

/// Where to look for variables that the environment does not have: an interface whose users know
/// them by other names sets it once, before its first call.
pub fn look_elsewhere(lookup: OtherNames) {
    let _ = OTHERWISE.set(lookup);
}

/// The variable's text, where it has one.
pub fn variable(name: &str) -> Option<String> {
    variable_os(name).map(OsString::into_string).and_then(Result::ok)
}

/// As [`variable`], of any bytes.
pub fn variable_os(name: &str) -> Option<OsString> {
    if is_of_a_stranger() {
        return None;
    }
    env::var_os(name).or_else(|| OTHERWISE.get().and_then(|lookup| lookup(name)))
}
