//! Processes and their machine: what tells one from another, and the randomness that the bootstrap
//! needs.
//!
//! A process number alone names nobody for long: with its namespace and the time it was started at
//! it does, as long as the machine runs.

use crate::error::{Error, Result};
use crate::host;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Bits of a token that hold the process id: the kernel's PID_MAX_LIMIT is 2^22.
const PID_BITS: u32 = 22;

/// This process image's token; 0 until it is first asked for. Only its own value matters, so all
/// accesses are relaxed and have no partner.
static TOKEN: AtomicU64 = AtomicU64::new(0);

/// Fill `bytes` from the kernel's generator.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(got) => done += got,
            Err(Errno::INTR) => {}
            Err(error) => {
                return Err(Error::os("reading the kernel's random generator (getrandom)", error));
            }
        }
    }
    Ok(())
}

/// The user that this process acts as.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What is told where `who` cannot take a connection for this reason, with what to do.
pub(super) fn out_of_sockets(who: &str, errno: i32) -> String {
    let why = match errno {
        libc::EMFILE => {
            let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            format!("its process may have {most} files open; raise `ulimit -n`")
        }
        libc::ENFILE => "its machine has all the files open that it may; raise fs.file-max".into(),
        libc::ENOBUFS | libc::ENOMEM => "its machine has no memory left for sockets".into(),
        _ => "its system refuses them".to_string(),
    };
    format!("{who} can take no more connections ({why})")
}

/// A number that no other process image of this machine has: equal among the threads of a process,
/// different in a forked child. The low bits are the process id, which is how a child notices that
/// the token it inherited is not its own; no lock, so a fork at any moment is harmless.
pub fn process_token() -> Result<u64> {
    let pid = u64::from(std::process::id()) & ((1 << PID_BITS) - 1);
    let known = TOKEN.load(Relaxed);
    if known != 0 && known & ((1 << PID_BITS) - 1) == pid {
        return Ok(known);
    }
    let mut bytes = [0; 8];
    random(&mut bytes)?;
    let fresh = u64::from_le_bytes(bytes) << PID_BITS | pid;
    // Two threads may draw at once; the first to store decides for both.
    Ok(TOKEN.compare_exchange(known, fresh, Relaxed, Relaxed).map_or_else(|won| won, |_| fresh))
}

/// A number that is drawn anew whenever the machine starts.
pub(super) fn boot_id() -> Result<String> {
    match host::boot() {
        b"" => {
            Err(Error::System { what: "reading the kernel's boot id".into(), errno: libc::ENOENT })
        }
        text => Ok(String::from_utf8_lossy(text).into_owned()),
    }
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
#[allow(unsafe_code)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_a_token_and_a_forked_child_has_its_own() {
        let mine = process_token().unwrap();
        assert_eq!(std::thread::spawn(|| process_token().unwrap()).join().unwrap(), mine);
        // SAFETY: the child only computes and leaves through `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same = process_token().map_or(2, |token| i32::from(token == mine));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(same) };
        }
        let mut status = 0;
        // SAFETY: `status` is a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child kept its parent's token");
        assert_eq!(process_token().unwrap(), mine);
    }

    #[test]
    fn this_machine_and_process_are_known() {
        assert_eq!(boot_id().unwrap().len(), 36);
        assert!(!host::name().is_empty());
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
