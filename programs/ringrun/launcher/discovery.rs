//! The hosts that an elastic job may use, as a program of the user's prints them again and again.

use crate::agent::children::{self, Orphan};
use crate::cli::options::Options;
use crate::placement::hosts::{self, Host};
use std::io::{self, PipeReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How often the program is asked, as Horovod does.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the program says now, where it differs from before.
pub struct Discovery {
    /// Readable when there is something.
    pub wake: PipeReader,
    said: Receiver<Result<Vec<Host>, String>>,
}

impl Discovery {
    /// Ask for as long as this process lives. The job has begun with `known`.
    pub fn start(options: &Options, known: Vec<Host>) -> io::Result<Option<Discovery>> {
        let Some(script) = options.host_discovery_script.clone() else { return Ok(None) };
        let slots = options.slots_per_host;
        let (wake, mut waker) = io::pipe()?;
        let (say, said) = channel();
        std::thread::Builder::new().name("discovery".into()).spawn(move || {
            let mut before = Ok(known);
            loop {
                std::thread::sleep(INTERVAL);
                let now = ask(&script, slots);
                if now != before {
                    before = now.clone();
                    if say.send(now).is_err() || waker.write_all(&[0]).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(Some(Discovery { wake, said }))
    }

    /// The newest of what has been said.
    pub fn news(&mut self) -> Option<Result<Vec<Host>, String>> {
        // As many wake-ups as came are one.
        let _ = self.wake.read(&mut [0; 64]);
        self.said.try_iter().last()
    }
}

/// The hosts to begin with, and how many ranks: when there are as many slots as the job needs.
pub fn first(options: &Options, script: &str) -> Result<(Vec<Host>, usize), String> {
    let until = Instant::now() + options.start_timeout;
    let least = options.min_np.or(options.ranks).unwrap_or(1);
    loop {
        let found = ask(script, options.slots_per_host);
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
        std::thread::sleep(INTERVAL);
    }
}

/// What the program prints: a line `host:slots` or `host` for each.
fn ask(script: &str, slots: usize) -> Result<Vec<Host>, String> {
    let mut command = Command::new("/bin/sh");
    // A dot at the end says that it has succeeded: the launcher reaps it, whoever started it.
    command.args(["-c", "\"$0\" && echo .", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    children::prepare(&mut command, Orphan::Dies, None);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut text = String::new();
    let read = child.stdout.take().map(|mut output| output.read_to_string(&mut text));
    let _ = child.wait();
    match (read, text.strip_suffix(".\n")) {
        (Some(Ok(_)), Some(lines)) => hosts::parse_lines(lines, slots),
        (Some(Err(error)), _) => Err(error.to_string()),
        _ => Err("it has failed".into()),
    }
}
