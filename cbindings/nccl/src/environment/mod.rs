//! NCCL's variables: from the environment, then from its files.
//!
//! Those that mean something here are told to the library by its own names, which win; [`table`]
//! has every one.
#![allow(unsafe_code)]

mod files;
pub mod log;
pub mod params;
pub mod table;

use ringcomm::os::environment;
use ringcomm::sync::Mutex;
use std::ffi::OsString;
use std::sync::OnceLock;

/// The secret of `ncclSetEncryption`.
static SECRET: Mutex<Option<String>> = Mutex::new(None);

static FILES: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Tell the library where to look. Before anything reads a variable, and as often as one likes.
pub fn begin() {
    environment::look_elsewhere(for_the_library);
}

/// A variable of NCCL's: the environment's, else that of the first file that has it.
pub fn variable(name: &str) -> Option<String> {
    environment::variable(name).or_else(|| {
        let all = FILES.get_or_init(files::read);
        all.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    })
}

/// What NCCL's variables say about one of the library's.
fn for_the_library(name: &str) -> Option<OsString> {
    if name == "RINGCOMM_SECRET"
        && let Some(secret) = SECRET.lock().clone()
    {
        return Some(secret.into());
    }
    // The library's own name may be in NCCL's files, too.
    let asked = if name.starts_with("RINGCOMM_") { table::value_of(name) } else { None };
    asked.map(OsString::from)
}

pub fn set_secret(secret: String) {
    *SECRET.lock() = Some(secret);
}
