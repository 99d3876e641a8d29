//! The hosts that an elastic job may use, as a program of the user's prints them again and again.

use crate::agent::children::{self, Orphan};
use crate::cli::options::Options;
use crate::placement::hosts::{self, Host};
use crate::sys::poll::{self, Chunk, Watch};
use crate::sys::terminal::complain;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How often the program is asked, as Horovod does.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the program says now, where it differs from before.
pub struct Discovery {
    /// Readable when there is something.
    pub wake: PipeReader,
    said: Receiver<Result<Vec<Host>, String>>,
    /// The program, while it runs; 0 while it does not.
    running: Arc<AtomicU32>,
}

impl Drop for Discovery {
    fn drop(&mut self) {
        kill(&self.running);
    }
}

fn kill(running: &AtomicU32) {
    match running.swap(0, Ordering::Relaxed) {
        0 => {}
        leader => children::signal_group(leader, libc::SIGKILL),
    }
}

impl Discovery {
    /// Ask for as long as this process lives. The job has begun with `known`.
    pub fn start(options: &Options, mut known: Vec<Host>) -> io::Result<Option<Discovery>> {
        let Some(script) = options.host_discovery_script.clone() else { return Ok(None) };
        let (slots, limit) = (options.slots_per_host, options.start_timeout);
        let running = Arc::new(AtomicU32::new(0));
        let own = running.clone();
        let (wake, mut waker) = io::pipe()?;
        let (say, said) = channel();
        std::thread::Builder::new().name("discovery".into()).spawn(move || {
            let mut failed = false;
            loop {
                std::thread::sleep(INTERVAL);
                let now = ask(&script, slots, limit, &own);
                let is_news = match &now {
                    Ok(hosts) => !same(hosts, &known),
                    Err(_) => !failed,
                };
                failed = now.is_err();
                known = now.clone().unwrap_or(known);
                if is_news && (say.send(now).is_err() || waker.write_all(&[0]).is_err()) {
                    return;
                }
            }
        })?;
        Ok(Some(Discovery { wake, said, running }))
    }

    /// What has been said since the last call, all of it: hosts, and failures after them.
    pub fn news(&mut self) -> Vec<Result<Vec<Host>, String>> {
        // As many wake-ups as came are one.
        let _ = self.wake.read(&mut [0; 64]);
        self.said.try_iter().collect()
    }
}

/// The hosts to begin with, and how many ranks: when there are as many slots as the job needs.
pub fn first(options: &Options, script: &str) -> Result<(Vec<Host>, usize), String> {
    let until = Instant::now() + options.start_timeout;
    let least = options.min_np.or(options.ranks).unwrap_or(1);
    let mut told = false;
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(INTERVAL);
        let found = ask(script, options.slots_per_host, left, &AtomicU32::new(0));
        let slots = found.iter().flatten().map(|host| host.slots).sum();
        if slots >= least
            && let Ok(hosts) = found
        {
            let wanted = options.ranks.unwrap_or(slots).min(options.most(usize::MAX));
            return Ok((hosts, wanted.min(slots)));
        }
        if Instant::now() >= until {
            let limit = options.start_timeout.as_secs_f64();
            let why = match found {
                Ok(_) => format!("its hosts have {slots} slots, and {least} ranks are needed"),
                Err(why) => why,
            };
            return Err(format!("{script}: {why}, after {limit} s (--start-timeout)"));
        }
        if !std::mem::replace(&mut told, true) {
            complain(&format!("waiting for hosts with {least} slots, as {script} prints them"));
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Whether the hosts are the same, in whatever order.
fn same(one: &[Host], other: &[Host]) -> bool {
    one.len() == other.len() && one.iter().all(|host| other.contains(host))
}

/// What the program prints: a line `host:slots` or `host` for each.
fn ask(
    script: &str,
    slots: usize,
    limit: Duration,
    running: &AtomicU32,
) -> Result<Vec<Host>, String> {
    let mut command = Command::new("/bin/sh");
    // A dot at the end says that it has succeeded: the launcher reaps it, whoever started it.
    command.args(["-c", "\"$0\" && echo .", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    children::prepare(&mut command, Orphan::Dies, None);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    running.store(child.id(), Ordering::Relaxed);
    let said = child.stdout.take().map(|output| read_all(output, limit));
    match said {
        Some(Ok(text)) => {
            running.store(0, Ordering::Relaxed);
            let _ = child.wait();
            let lines = text.strip_suffix(".\n").ok_or("it has failed")?;
            hosts::parse_lines(lines, slots)
        }
        other => {
            kill(running);
            let _ = child.wait();
            Err(match other {
                Some(Err(error)) => error.to_string(),
                _ => "it has no output".into(),
            })
        }
    }
}

/// Everything up to the end, which comes within the limit.
fn read_all(output: ChildStdout, limit: Duration) -> io::Result<String> {
    let output = OwnedFd::from(output);
    poll::set_nonblocking(&output)?;
    let (mut file, until) = (File::from(output), Instant::now() + limit);
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match poll::read(&mut file, &mut buffer) {
            Chunk::Bytes(count) => all.extend_from_slice(&buffer[..count]),
            Chunk::End => return Ok(String::from_utf8_lossy(&all).into_owned()),
            Chunk::NotYet => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let seconds = limit.as_secs_f64();
                    return Err(io::Error::other(format!("it has not ended within {seconds} s")));
                }
                let mut watch = Watch::default();
                watch.reading(&file);
                watch.wait(Some(left))?;
            }
        }
    }
}
