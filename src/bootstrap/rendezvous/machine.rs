//! What tells this machine and its processes from others.
//!
//! A process number alone names nobody for long: with its namespace and the time it was started at
//! it does, as long as the machine runs.

use crate::error::{Error, Result};
use std::fs;

/// A number that is drawn anew whenever the machine starts.
pub(super) fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_string()),
        Err(error) => Err(Error::System {
            what: format!("reading {path}"),
            errno: error.raw_os_error().unwrap_or(0),
        }),
    }
}

/// The host's name, for people.
pub(super) fn name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

/// Where process numbers mean what they mean here.
pub(super) fn pid_namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.display().to_string()
}

/// What the kernel says about a process.
struct Process {
    parent: u32,
    session: u32,
    started: u64,
}

/// A process of this namespace, if it is there.
fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold any, so fields are counted from the last one.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    // proc(5): fields 4, 6 and 22 of all, of which state, the third, is the first here.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Process { parent: field(4)? as u32, session: field(6)? as u32, started: field(22)? })
}

/// When a process was started, in ticks since the machine was; `None` where there is none.
pub(super) fn started(pid: u32) -> Option<u64> {
    process(pid).map(|process| process.started)
}

/// Who started the ranks of this machine, where no variable names the job: the nearest ancestor
/// outside this process's session. Launchers give each rank a session of its own, which shells and
/// scripts between the two do not. Where the whole job is in one session it is whoever made that.
pub(super) fn launcher() -> String {
    launcher_of(std::process::id())
}

fn launcher_of(pid: u32) -> String {
    let own = process(pid);
    let session = own.as_ref().map(|process| process.session);
    let mut ancestor = own.map_or(0, |process| process.parent);
    while let Some(process) = process(ancestor) {
        if Some(process.session) != session {
            return format!("launcher {ancestor} of {}", process.started);
        }
        ancestor = process.parent;
    }
    format!("session {}", session.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_process_are_known() {
        assert_eq!(boot_id().unwrap().len(), 36);
        assert!(!name().is_empty());
        assert!(pid_namespace().starts_with("pid:["));
        assert_eq!(started(std::process::id()), started(std::process::id()));
        assert!(started(std::process::id()).is_some());
        assert_eq!(started(u32::MAX), None);
    }

    #[test]
    fn a_rank_in_a_session_of_its_own_was_launched_by_who_made_it() {
        use std::process::{Command, Stdio};
        let own = started(std::process::id()).unwrap();
        let launched = |program: &str, arguments: &[&str]| {
            let mut child =
                Command::new(program).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
            // Until `cat` runs, the child is still this program.
            let runs = |pid| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "cat\n")
            };
            while !runs(child.id()) {
                std::thread::yield_now();
            }
            let launcher = launcher_of(child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            launcher
        };
        assert_eq!(launched("cat", &[]), launcher());
        let wanted = format!("launcher {} of {own}", std::process::id());
        assert_eq!(launched("setsid", &["cat"]), wanted);
    }
}
