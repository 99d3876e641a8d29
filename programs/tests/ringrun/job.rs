//! Jobs as the tests start them, and what becomes of them.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A loaded machine starts processes slowly; what takes longer than this hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of this test's own, gone with it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ringrun-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// A script in the remote shell's place: `$1` is the host, the rest its command.
    pub fn shell(&self, script: &str) -> String {
        let path = self.0.join("remote-shell");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// What became of a run.
pub struct Run {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn expect(self, status: i32) -> Run {
        assert_eq!(self.status, Some(status), "out:\n{}\nerr:\n{}", self.out, self.err);
        self
    }

    pub fn says(self, text: &str) -> Run {
        assert!(self.err.contains(text), "{text:?} is not in:\n{}", self.err);
        self
    }

    pub fn lines(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.out.lines().collect();
        lines.sort_unstable();
        lines
    }
}

pub fn command(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringrun"));
    command.args(options).args(["sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("OMP_NUM_THREADS").env_remove("RINGCOMM_SSH");
    let listens = || {
        // SAFETY: the call takes no memory and is async-signal-safe.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: as above. A shell's background jobs, these tests perhaps, ignore SIGINT, and so would
    // ringrun's ranks.
    unsafe { command.pre_exec(listens) };
    command
}

/// Wait for a child's end, with what it wrote; one that hangs is killed and fails the test.
pub fn finish(child: Child) -> Run {
    let (pid, (done, watch)) = (child.id(), std::sync::mpsc::channel::<()>());
    let guard = std::thread::spawn(move || {
        let hung = watch
            .recv_timeout(PATIENCE)
            .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout);
        if hung {
            send(pid, libc::SIGKILL);
        }
        hung
    });
    let Output { status, stdout, stderr } = child.wait_with_output().expect("ringrun's output");
    drop(done);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let run = Run { status: status.code(), out: text(stdout), err: text(stderr) };
    assert!(!guard.join().unwrap(), "ringrun hung\nout:\n{}\nerr:\n{}", run.out, run.err);
    run
}

pub fn run(options: &[&str], script: &str) -> Run {
    finish(command(options, script).spawn().expect("ringrun starts"))
}

pub fn send(pid: u32, signal: i32) {
    // SAFETY: the call touches no memory.
    unsafe { libc::kill(pid as i32, signal) };
}

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a process does, as the kernel's letter; a blank for one that is not there.
pub fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or(' ')
}

/// Processes that live and have a word among their arguments.
pub fn with_argument(word: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    })
    .collect()
}

/// A time to sleep, in seconds, that no other test and no other process has: it marks a process.
pub fn marker(number: u32) -> String {
    format!("{}{number:02}", 100_000 + std::process::id())
}

/// A rank with a child in its own process group and one that has left it, each marked.
pub fn family(own: &str, child: &str, stray: &str) -> String {
    format!("sleep {child} & setsid sleep {stray} & sleep {own}; exit 0")
}
