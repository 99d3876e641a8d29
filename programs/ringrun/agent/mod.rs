//! The agent: holds the ranks of one host for a launcher, at the other end of two pipes.
//!
//! Every host has one, this machine too, because somebody must outlive a launcher that is killed
//! and end what it started. When its standard input ends, so does everything below it.

pub(super) mod children;
mod compat_path;
pub(super) mod environment;
mod nccl_preload;
pub(super) mod output_lines;
pub(super) mod rank_processes;
pub(super) mod status_dir;

use crate::protocol::frame::{Greeting, Inbox};
use crate::sys::poll::{self, Chunk, Outbox, Watch};
use rank_processes::Crew;
use status_dir::Folder;

use crate::protocol::messages::{Job, ToAgent, ToLauncher};
use crate::sys::signals::Signals;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// More than this is not read from the ranks before the launcher has taken what there is: some
/// pipes full, so that a chatty rank does not wait for every turn.
const MOST_WAITING_BYTES: usize = 256 << 10;

/// How often a launcher on another host says that it lives.
pub const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Its silence after which it is taken for dead: four times that, as ssh's own keepalive is set.
const MOST_SILENCE: Duration = Duration::from_secs(60);

/// Signals that end an agent: they come from people and from login sessions that are closed.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

struct Agent {
    input: File,
    output: File,
    signals: Signals,
    inbox: Inbox,
    outbox: Outbox,
    crew: Crew,
    job: Option<Job>,
    folder: Option<Folder>,
    heard: Instant,
    /// The ranks were stopped with the launcher, which therefore cannot say anything.
    stopped: bool,
}

/// Why an agent ends before its ranks.
struct Gone;

/// Ports that nobody has at the moment, of a range where there is one; 0 where none is free.
/// Whoever takes them later may be late; nothing can hold them for a program that has not started.
fn free_ports(range: Option<RangeInclusive<u16>>) -> [u16; 2] {
    // Of a range from the middle on: ranks take the first that is free, and later communicators
    // meet at the ports after these.
    let from_middle = |range: RangeInclusive<u16>| {
        let mut all: Vec<u16> = range.collect();
        let middle = all.len() / 2;
        all.rotate_left(middle);
        all
    };
    let mut candidates = range.map_or_else(quiet_ports, from_middle).into_iter();
    // Both are held until both are known, so that they differ.
    let listeners =
        [(); 2].map(|()| candidates.find_map(|port| TcpListener::bind(("0.0.0.0", port)).ok()));
    let port = |listener: &TcpListener| Some(listener.local_addr().ok()?.port());
    listeners.each_ref().map(|listener| listener.as_ref().and_then(port).unwrap_or(0))
}

/// Some ports that the kernel gives to no connection, each with room behind it for the meetings of
/// later communicators, and last what the kernel chooses. Among its own, the port after a free one
/// often is a connection's of the same job.
fn quiet_ports() -> Vec<u16> {
    const LEAST: u16 = 10_000;
    const APART: u16 = 50;
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let lowest = range.ok().and_then(|text| text.split_whitespace().next()?.parse().ok());
    let groups = usize::from(lowest.unwrap_or(32_768u16).saturating_sub(LEAST) / (2 * APART));
    // Another job of this machine begins elsewhere.
    let first = std::process::id() as usize;
    let pair = |turn| {
        let port = LEAST + ((first + turn) % groups) as u16 * 2 * APART;
        [port, port + APART]
    };
    (0..groups.min(16)).flat_map(pair).chain([0, 0]).collect()
}

/// Make the folder in which the ranks answer for their status, and tell them of it. A machine that
/// has no room for one runs the job without.
fn show_folder(job: &mut Job) -> Option<Folder> {
    let name = job.ranks.first()?.variables.iter().find(|(name, _)| name == b"RINGCOMM_JOB")?;
    let folder = Folder::make(&String::from_utf8_lossy(&name.1)).ok()?;
    let path = folder.path.as_os_str().as_bytes();
    for rank in &mut job.ranks {
        rank.variables.push((status_dir::VARIABLE.into(), path.to_vec()));
    }
    Some(folder)
}

/// Serve the launcher at standard input and output; true if every rank ran to its end.
pub fn serve(ports: Option<RangeInclusive<u16>>) -> io::Result<bool> {
    children::adopt_orphans();
    let signals = Signals::take(&[&ENDING[..], &[libc::SIGCHLD]].concat())?;
    let mut outbox = Outbox::default();
    let version = env!("CARGO_PKG_VERSION").to_string();
    let [port, second_port] = free_ports(ports);
    outbox.push(&Greeting { version, port, second_port }.line());
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    poll::set_nonblocking(&output)?;
    let mut agent = Agent {
        input: File::from(io::stdin().as_fd().try_clone_to_owned()?),
        output,
        signals,
        inbox: Inbox::default(),
        outbox,
        crew: Crew::default(),
        job: None,
        folder: None,
        heard: Instant::now(),
        stopped: false,
    };
    while !agent.is_done() {
        if agent.turn().is_err() {
            agent.end();
            return Ok(false);
        }
    }
    Ok(true)
}

impl Agent {
    fn is_done(&self) -> bool {
        self.job.is_some() && self.crew.is_over() && self.crew.is_silent() && self.outbox.len() == 0
    }

    /// How long the launcher may yet be silent.
    fn patience(&self) -> Option<Duration> {
        let counts = self.job.as_ref().is_some_and(|job| job.remote) && !self.stopped;
        counts.then(|| MOST_SILENCE.saturating_sub(self.heard.elapsed()))
    }

    fn turn(&mut self) -> Result<(), Gone> {
        let mut watch = Watch::default();
        let signals = watch.reading(&self.signals);
        let input = watch.reading(&self.input);
        let output = (self.outbox.len() > 0).then(|| watch.writing(&self.output));
        let room = self.outbox.len() < MOST_WAITING_BYTES;
        let places = self.crew.watch(&mut watch, room);
        // With the ranks and all that they started dead, outputs hold what they will ever hold.
        let is_last = self.job.is_some() && self.crew.is_over() && room;
        let patience = if is_last { Some(Duration::ZERO) } else { self.patience() };
        watch.wait(patience).map_err(|_| Gone)?;

        if watch.is_ready(Some(signals)) {
            self.take_signals()?;
        }
        if watch.is_ready(output) {
            self.outbox.flush(&mut self.output).map_err(|_| Gone)?;
        }
        let outbox = &mut self.outbox;
        let mut tell = |message: ToLauncher| outbox.push(&message.frame());
        self.crew.serve(&watch, &places, is_last, &mut tell);
        if watch.is_ready(Some(input)) {
            self.take_input()?;
        }
        if self.patience().is_some_and(|left| left.is_zero()) {
            return Err(Gone);
        }
        Ok(())
    }

    /// Nobody is there to serve: ask the ranks to end, and after the grace period kill them, with
    /// all that they started. What they still say goes nowhere, but they can say it.
    fn end(&mut self) {
        let grace = self.job.as_ref().map_or(Duration::ZERO, |job| job.grace);
        let until = Instant::now() + grace;
        self.crew.signal(libc::SIGTERM);
        // A stopped process would not notice.
        self.crew.signal(libc::SIGCONT);
        while !self.crew.is_over() && Instant::now() < until {
            let mut watch = Watch::default();
            watch.reading(&self.signals);
            let places = self.crew.watch(&mut watch, true);
            let waited = watch.wait(Some(until.saturating_duration_since(Instant::now())));
            self.crew.serve(&watch, &places, false, &mut |_| {});
            if waited.is_err() || self.take_signals().is_err() {
                break;
            }
        }
        children::kill_descendants(|_| true);
    }

    fn take_signals(&mut self) -> Result<(), Gone> {
        while let Some(signal) = self.signals.next() {
            if ENDING.contains(&signal) {
                return Err(Gone);
            }
        }
        let outbox = &mut self.outbox;
        for (pid, ended) in children::reap_all(|pid| self.crew.is_member(pid)) {
            let mut tell = |message: ToLauncher| outbox.push(&message.frame());
            self.crew.ended(self.job.as_ref(), pid, ended, &mut tell);
        }
        if self.job.is_some() && self.crew.is_over() {
            // Somebody may have left its rank's process group, and may hold its output.
            children::kill_descendants(|_| true);
        }
        Ok(())
    }

    fn take_input(&mut self) -> Result<(), Gone> {
        // What one read takes: a pipe's whole capacity.
        let mut buffer = [0; 64 << 10];
        match poll::read(&mut self.input, &mut buffer) {
            Chunk::Bytes(count) => self.inbox.push(&buffer[..count]),
            Chunk::NotYet => return Ok(()),
            Chunk::End => return Err(Gone),
        }
        self.heard = Instant::now();
        while let Some(body) = self.inbox.next().map_err(|_| Gone)? {
            let message = ToAgent::parse(body).map_err(|_| Gone)?;
            self.obey(message);
        }
        Ok(())
    }

    fn obey(&mut self, message: ToAgent) {
        let outbox = &mut self.outbox;
        let mut tell = |message: ToLauncher| outbox.push(&message.frame());
        match message {
            // One job is all that an agent runs.
            ToAgent::Job(_) if self.job.is_some() => {}
            ToAgent::Job(mut job) => {
                self.folder = show_folder(&mut job);
                self.crew = Crew::start(&job, &mut tell);
                self.job = Some(job);
            }
            ToAgent::Signal(signal) => {
                match signal {
                    libc::SIGSTOP => self.stopped = true,
                    libc::SIGCONT => self.stopped = false,
                    _ => {}
                }
                self.crew.signal(signal);
                // A stopped process gets no signal but these until it goes on.
                if self.stopped && !matches!(signal, libc::SIGSTOP | libc::SIGCONT) {
                    self.stopped = false;
                    self.crew.signal(libc::SIGCONT);
                }
            }
            ToAgent::Input(bytes) => self.crew.take_input(&bytes, &mut tell),
            ToAgent::InputEnd => self.crew.end_input(&mut tell),
            ToAgent::Ping => {}
        }
    }
}
