//! NCCL's log: its levels, its line, its file.
#![allow(unsafe_code)]

use super::variable;
use crate::comm::{COMMS, Comm};
use crate::types::*;
use ringcomm::ffi::object;
use ringcomm::sync::Mutex;
use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Nobody has looked yet.
const UNKNOWN: u32 = u32::MAX;
const VERSION: u32 = 1;
const WARN: u32 = 2;
const INFO: u32 = 3;

/// The level, and whether collectives are told above it.
static LEVEL: AtomicU32 = AtomicU32::new(UNKNOWN);
/// Whether each collective is told: 0 or 1, or [`UNKNOWN`].
static COLLECTIVES: AtomicU32 = AtomicU32::new(UNKNOWN);
/// `None` is the standard output.
static FILE: Mutex<Option<File>> = Mutex::new(None);

/// Read the variables anew when next asked.
pub fn reset() {
    LEVEL.store(UNKNOWN, Relaxed);
    COLLECTIVES.store(UNKNOWN, Relaxed);
}

fn level() -> u32 {
    match LEVEL.load(Relaxed) {
        UNKNOWN => read(),
        level => level,
    }
}

#[cold]
fn read() -> u32 {
    // Two threads may come at once: the second finds what the first has read.
    let mut file = FILE.lock();
    let known = LEVEL.load(Relaxed);
    if known != UNKNOWN {
        return known;
    }
    let text = variable("NCCL_DEBUG").unwrap_or_default().to_ascii_uppercase();
    let level = match text.trim() {
        "VERSION" => VERSION,
        "WARN" => WARN,
        "INFO" | "ABORT" | "TRACE" => INFO,
        _ => 0,
    };
    let path = variable("NCCL_DEBUG_FILE").filter(|path| !path.is_empty() && level > VERSION);
    *file = path.and_then(|path| File::create(filled(&path)).ok());
    let subsystems = variable("NCCL_DEBUG_SUBSYS").unwrap_or_default().to_ascii_uppercase();
    COLLECTIVES.store(u32::from(level == INFO && names(&subsystems, "COLL")), Relaxed);
    LEVEL.store(level, Relaxed);
    drop(file);
    if level > 0 {
        write(&format!(
            "NCCL version {} (ringcomm {}, commit {})\n",
            version(),
            env!("CARGO_PKG_VERSION"),
            ringcomm::COMMIT.unwrap_or("unknown"),
        ));
    }
    level
}

/// Whether a list of subsystems, `^` before one that is left out, has this one.
fn names(list: &str, subsystem: &str) -> bool {
    let all = list.trim_start_matches('^').split(',').map(str::trim);
    let mut named = all.filter(|name| *name == subsystem || *name == "ALL");
    match list.starts_with('^') {
        true => named.next().is_none(),
        false => named.next().is_some(),
    }
}

fn version() -> String {
    let code = NCCL_VERSION_CODE;
    format!("{}.{}.{}", code / 10000, code / 100 % 100, code % 100)
}

fn host_name() -> String {
    let mut bytes = [0u8; 256];
    // SAFETY: the place is a local of that size; the last byte stays 0.
    unsafe { libc::gethostname(bytes.as_mut_ptr().cast(), bytes.len() - 1) };
    let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_string()
}

/// A file's name with `%h` and `%p` filled in.
fn filled(path: &str) -> String {
    let mut rest = path.chars();
    let mut filled = String::new();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('%', Some('h')) => filled += &host_name(),
            ('%', Some('p')) => filled += &std::process::id().to_string(),
            ('%', Some('%')) => filled.push('%'),
            _ => {
                filled.push(c);
                continue;
            }
        }
        rest.next();
    }
    filled
}

fn write(line: &str) {
    let mut file = FILE.lock();
    // A log that cannot be written is no reason to fail.
    let _ = match file.as_mut() {
        Some(file) => file.write_all(line.as_bytes()),
        None => std::io::stdout().write_all(line.as_bytes()),
    };
}

fn line(kind: &str, device: i32, text: &str) {
    // SAFETY: takes nothing.
    let thread = unsafe { libc::gettid() };
    let process = std::process::id();
    write(&format!("{}:{process}:{thread} [{device}] NCCL {kind} {text}\n", host_name()));
}

/// A line that was asked for by a call, whatever the level.
pub fn always(text: &str) {
    level();
    line("INFO", -1, text);
}

/// `rank 1 of 4, device`; nothing where it is not made.
fn place_of(comm: &Comm) -> (String, i32) {
    object::enter(comm.ring()).map_or((String::new(), -1), |made| {
        let communicator = &made.communicator;
        let ranks = format!(" rank {} nranks {}", communicator.rank(), communicator.nranks());
        (ranks, communicator.device().unwrap_or(-1))
    })
}

/// A communicator is made.
pub fn made(function: &str, comm: &Comm) {
    if level() < INFO {
        return;
    }
    let (ranks, device) = place_of(comm);
    let handle = comm.handle.load(Relaxed);
    let name = comm.name.as_ref().map_or(String::new(), |name| format!(" commName {name}"));
    line(
        "INFO",
        device,
        &format!("{function} comm {handle:#x}{ranks} cudaDev {device}{name} - Init COMPLETE"),
    );
}

/// A call on a communicator has failed.
#[cold]
pub fn warn(function: &str, comm: &Comm) {
    if level() < WARN {
        return;
    }
    let (ranks, device) = place_of(comm);
    let text = comm.last_text();
    let text = text.to_string_lossy();
    let named = if function.is_empty() { String::new() } else { format!("{function}:") };
    line("WARN", device, &format!("{named}{ranks} {text}"));
}

/// A call without a communicator has failed.
#[cold]
pub fn warn_alone(text: &CStr) {
    if level() >= WARN {
        line("WARN", -1, &text.to_string_lossy());
    }
}

/// A collective begins, where the log is to tell each.
#[inline]
pub fn collective(
    function: &str,
    comm: ncclComm_t,
    (send, recv, count): (*const c_void, *mut c_void, usize),
) {
    if COLLECTIVES.load(Relaxed) != 0 {
        tell_collective(function, comm, send, recv, count);
    }
}

#[cold]
fn tell_collective(
    function: &str,
    comm: ncclComm_t,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
) {
    level();
    if COLLECTIVES.load(Relaxed) != 1 {
        return;
    }
    let (ranks, device) =
        COMMS.enter(comm.cast()).map_or((String::new(), -1), |inside| place_of(&inside));
    let name = function.trim_start_matches("nccl");
    line(
        "INFO",
        device,
        &format!("{name}: sendbuff {send:p} recvbuff {recv:p} count {count} comm {comm:p}{ranks}"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsystems_are_a_list_or_what_a_list_leaves_out() {
        assert!(names("INIT,COLL", "COLL") && names("ALL", "COLL") && names("^INIT", "COLL"));
        assert!(!names("INIT", "COLL") && !names("", "COLL") && !names("^COLL,P2P", "COLL"));
    }

    #[test]
    fn a_files_name_has_the_host_and_the_process() {
        let process = std::process::id().to_string();
        assert_eq!(filled("/tmp/nccl.%p.%%"), format!("/tmp/nccl.{process}.%"));
        assert_eq!(filled("%h"), host_name());
        assert_eq!(filled("100%"), "100%");
    }
}
