//! One host's agent as the launcher sees it: a process, a pipe to it and a pipe from it.

use super::job_setup::Station;
use crate::agent::children::{self, Orphan};
use crate::protocol::frame::{Greeting, Inbox};
use crate::protocol::messages::{Ended, ToAgent, ToLauncher};
use crate::sys::poll::{self, Chunk, Outbox, Watch};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub struct Link {
    /// The agent, or the remote shell that leads to it.
    pid: u32,
    pub begun: Instant,
    to: Option<File>,
    from: Option<File>,
    outbox: Outbox,
    inbox: Inbox,
    /// What it said first.
    pub greeting: Option<Greeting>,
    pub ended: Option<Ended>,
    /// When it closed its end, after which its process has no reason to stay.
    closed: Option<Instant>,
    /// It ended before its ranks, and that was told. What it had said before may still arrive.
    pub lost: bool,
}

/// Where in a [`Watch`] a link's descriptors are.
pub struct LinkDescriptors {
    from: Option<usize>,
    to: Option<usize>,
}

/// What a link has to say.
pub enum News {
    /// It is there, and said which version it is.
    Greeted,
    Message(ToLauncher),
    /// It does not speak as an agent does.
    Nonsense(String),
}

/// Longest chatter of a login shell before the agent's greeting; a screenful is far less.
const MOST_CHATTER_BYTES: usize = 64 << 10;

impl Link {
    /// Start an agent: here, with the descriptor `raw` to inherit, or through a remote shell.
    pub fn start(station: &Station, raw: Option<&OwnedFd>) -> io::Result<Link> {
        let mut command = match &station.remote {
            Some(words) => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
            None => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg(&station.agent);
                command
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        children::prepare(&mut command, Orphan::Lives, raw.map(|fd| fd.as_raw_fd()));
        let mut child = command.spawn()?;
        let to = child.stdin.take().map(OwnedFd::from);
        let from = child.stdout.take().map(OwnedFd::from);
        for fd in to.iter().chain(&from) {
            poll::set_nonblocking(fd)?;
        }
        Ok(Link {
            pid: child.id(),
            begun: Instant::now(),
            to: to.map(File::from),
            from: from.map(File::from),
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            greeting: None,
            ended: None,
            closed: None,
            lost: false,
        })
    }

    pub fn send(&mut self, message: &ToAgent) {
        if self.to.is_some() {
            self.outbox.push(&message.frame());
            self.flush();
        }
    }

    fn flush(&mut self) {
        if let Some(to) = &mut self.to
            && self.outbox.flush(to).is_err()
        {
            // It is gone, which its other end and its status will say.
            self.hang_up();
        }
    }

    /// Say nothing more: the agent ends, with everything below it.
    pub fn hang_up(&mut self) {
        self.to = None;
        self.outbox = Outbox::default();
    }

    /// Kill it, and do not wait for anything it might still say.
    pub fn abandon(&mut self) {
        if self.ended.is_none() {
            children::signal_group(self.pid, libc::SIGKILL);
        }
        self.hang_up();
        self.from = None;
        self.closed = None;
    }

    pub fn watch(&self, watch: &mut Watch, has_room: bool) -> LinkDescriptors {
        let from = self.from.as_ref().filter(|_| has_room);
        let to = self.to.as_ref().filter(|_| self.outbox.len() > 0);
        LinkDescriptors {
            from: from.map(|file| watch.reading(file)),
            to: to.map(|file| watch.writing(file)),
        }
    }

    /// Write and read what is ready.
    pub fn serve(&mut self, watch: &Watch, places: &LinkDescriptors) -> Vec<News> {
        if watch.is_ready(places.to) {
            self.flush();
        }
        if !watch.is_ready(places.from) {
            return Vec::new();
        }
        let Some(from) = &mut self.from else { return Vec::new() };
        // What one read takes: a pipe's whole capacity.
        let mut buffer = [0; 64 << 10];
        match poll::read(from, &mut buffer) {
            Chunk::Bytes(count) => self.inbox.push(&buffer[..count]),
            Chunk::NotYet => return Vec::new(),
            Chunk::End => {
                self.from = None;
                self.closed = Some(Instant::now());
                return Vec::new();
            }
        }
        self.news()
    }

    fn news(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        if self.greeting.is_none() {
            match self.inbox.greeting() {
                Some(greeting) => {
                    self.greeting = Some(greeting);
                    news.push(News::Greeted);
                }
                None if self.inbox.rest().len() > MOST_CHATTER_BYTES => {
                    news.push(News::Nonsense("it printed much and was no ringrun".into()));
                    return news;
                }
                None => return news,
            }
        }
        loop {
            let message = match self.inbox.next() {
                Ok(Some(body)) => ToLauncher::parse(body),
                Ok(None) => return news,
                Err(why) => Err(why),
            };
            match message {
                Ok(message) => news.push(News::Message(message)),
                Err(why) => {
                    news.push(News::Nonsense(why));
                    return news;
                }
            }
        }
    }

    /// Whether a process is the one behind this link.
    pub fn is(&self, pid: u32) -> bool {
        self.pid == pid && self.ended.is_none()
    }

    /// Its process was reaped.
    pub fn reaped(&mut self, ended: Ended) {
        self.ended = Some(ended);
        self.hang_up();
    }

    /// Until when its process may stay.
    pub fn deadline(&self, grace: Duration) -> Option<Instant> {
        self.closed.filter(|_| self.ended.is_none()).map(|at| at + grace)
    }

    /// What it printed in place of a greeting.
    pub fn chatter(&self) -> String {
        String::from_utf8_lossy(self.inbox.rest()).trim().to_string()
    }

    /// It has ended and everything it said was heard.
    pub fn is_over(&self) -> bool {
        self.from.is_none() && self.ended.is_some()
    }
}
