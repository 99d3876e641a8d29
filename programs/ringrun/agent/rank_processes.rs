//! The ranks of one host: started, listened to, fed and signalled by their agent.

use super::children::{self, Orphan};
use super::environment::{self, ELASTIC};
use super::{compat_path, nccl_preload};
use crate::protocol::messages::Stream;
use crate::protocol::messages::{Ended, Job, RankJob, ToLauncher};
use crate::sys::poll::{self, Chunk, Outbox, Watch};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// One of a rank's two outputs.
struct Pipe {
    rank: u32,
    stream: Stream,
    file: File,
}

/// A rank that was started.
struct Member {
    rank: u32,
    pid: u32,
    alive: bool,
}

/// The pipe into the rank that reads the launcher's standard input.
struct RankInput {
    file: File,
    outbox: Outbox,
    /// Nothing more comes after what is held.
    ended: bool,
}

#[derive(Default)]
pub struct Crew {
    members: Vec<Member>,
    pipes: Vec<Pipe>,
    input: Option<RankInput>,
    /// Where ranks write themselves.
    raw: Option<OwnedFd>,
    replaced: u32,
    /// The job was asked to end: nobody is replaced any more.
    ending: bool,
}

/// What makes a rank a newcomer of an elastic job.
pub const NEWCOMER: &str = "RINGCOMM_ELASTIC_JOIN";
/// Signals that ask ranks to end, or end them.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGKILL];
/// How a newcomer ends that has found no job to join; another would not either.
const TURNED_AWAY: i32 = 75;

/// Where in a [`Watch`] the crew's descriptors are.
pub struct CrewDescriptors {
    /// One for each pipe, if they are to be read.
    pipes: Vec<usize>,
    input: Option<usize>,
}

impl Crew {
    /// Start every rank of a job; `tell` gets what became of each.
    pub fn start(job: &Job, tell: &mut impl FnMut(ToLauncher)) -> Crew {
        let mut crew = Crew::default();
        crew.raw = match job.raw_output.map(|fd| poll::inherited(fd as i32)).transpose() {
            Ok(raw) => raw,
            Err(error) => {
                for rank in &job.ranks {
                    tell(not_started(rank.rank, format!("its output is lost: {error}"), 126));
                }
                return crew;
            }
        };
        for rank in &job.ranks {
            match crew.start_one(job, rank) {
                Ok(pid) => tell(ToLauncher::Started { rank: rank.rank, pid }),
                Err((why, status)) => tell(not_started(rank.rank, why, status)),
            }
        }
        crew
    }

    fn start_one(&mut self, job: &Job, rank: &RankJob) -> Result<u32, (String, u8)> {
        let own = std::env::current_exe().unwrap_or_default();
        let program = match job.command.first() {
            Some(word) if !word.is_empty() => OsStr::from_bytes(word),
            _ => own.as_os_str(),
        };
        let directory = Path::new(OsStr::from_bytes(&job.directory));
        // Otherwise a missing directory would look like a missing program.
        if !directory.is_dir() {
            let name = directory.display();
            return Err((format!("there is no directory {name} here; see --wdir"), 126));
        }
        let mut command = Command::new(program);
        command.args(job.command[1..].iter().map(|word| OsStr::from_bytes(word)));
        let machine = std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec()));
        let size = rank.local_size as usize;
        let mut all = environment::compose(machine, &job.forwarded, &rank.variables, size);
        if job.nccl {
            nccl_preload::apply(&mut all, &own).map_err(|why| (why, 127))?;
        }
        if job.compat {
            compat_path::apply(&mut all, &own).map_err(|why| (why, 127))?;
        }
        command.env_clear().current_dir(directory);
        command.envs(
            all.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))),
        );
        let reads = job.input_rank == Some(rank.rank);
        command.stdin(if reads { Stdio::piped() } else { Stdio::null() });
        let wrong = |error: io::Error| (error.to_string(), 126);
        match &self.raw {
            Some(raw) => command.stdout(raw.try_clone().map_err(wrong)?),
            None => command.stdout(Stdio::piped()).stderr(Stdio::piped()),
        };
        children::prepare(&mut command, Orphan::Dies, None);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                (format!("there is no program {} here", program.display()), 127)
            }
            _ => (format!("cannot run {}: {error}", program.display()), 126),
        })?;
        let streams = [
            (Stream::Output, child.stdout.take().map(OwnedFd::from)),
            (Stream::Error, child.stderr.take().map(OwnedFd::from)),
        ];
        for (stream, fd) in streams {
            let Some(fd) = fd else { continue };
            poll::set_nonblocking(&fd).map_err(wrong)?;
            self.pipes.push(Pipe { rank: rank.rank, stream, file: File::from(fd) });
        }
        if let Some(input) = child.stdin.take().map(OwnedFd::from) {
            poll::set_nonblocking(&input).map_err(wrong)?;
            let file = File::from(input);
            self.input = Some(RankInput { file, outbox: Outbox::default(), ended: false });
        }
        self.members.push(Member { rank: rank.rank, pid: child.id(), alive: true });
        Ok(child.id())
    }

    /// Add what is to be waited for; outputs only if there is room for what they say.
    pub fn watch(&self, watch: &mut Watch, has_room: bool) -> CrewDescriptors {
        let outputs = self.pipes.iter().filter(|_| has_room);
        let pipes = outputs.map(|pipe| watch.reading(&pipe.file)).collect();
        let waiting = self.input.as_ref().filter(|input| input.outbox.len() > 0);
        CrewDescriptors { pipes, input: waiting.map(|input| watch.writing(&input.file)) }
    }

    /// Pass on what is ready. `is_last` says that nobody writes any more, at least nobody who
    /// counts: an output with nothing in it has ended then, whoever still holds it.
    pub fn serve(
        &mut self,
        watch: &Watch,
        places: &CrewDescriptors,
        is_last: bool,
        tell: &mut impl FnMut(ToLauncher),
    ) {
        if watch.is_ready(places.input) {
            self.feed(tell);
        }
        // What one read takes: a pipe's whole capacity.
        let mut buffer = [0; 64 << 10];
        let mut ended = Vec::new();
        for (at, place) in places.pipes.iter().enumerate() {
            let Pipe { rank, stream, file } = &mut self.pipes[at];
            let (rank, stream) = (*rank, *stream);
            let chunk = match (watch.is_ready(Some(*place)), is_last) {
                (true, _) => poll::read(file, &mut buffer),
                (false, true) => Chunk::End,
                (false, false) => Chunk::NotYet,
            };
            match chunk {
                Chunk::Bytes(count) => {
                    tell(ToLauncher::Output { rank, stream, bytes: buffer[..count].to_vec() });
                }
                Chunk::NotYet => {}
                Chunk::End => {
                    tell(ToLauncher::End { rank, stream });
                    ended.push(at);
                }
            }
        }
        for at in ended.into_iter().rev() {
            self.pipes.remove(at);
        }
    }

    /// Standard input for the rank that reads it.
    pub fn take_input(&mut self, bytes: &[u8], tell: &mut impl FnMut(ToLauncher)) {
        match &mut self.input {
            Some(input) => input.outbox.push(bytes),
            // Nobody reads it any more.
            None => return tell(ToLauncher::Taken(bytes.len() as u32)),
        }
        self.feed(tell);
    }

    pub fn end_input(&mut self, tell: &mut impl FnMut(ToLauncher)) {
        if let Some(input) = &mut self.input {
            input.ended = true;
        }
        self.feed(tell);
    }

    fn feed(&mut self, tell: &mut impl FnMut(ToLauncher)) {
        let Some(input) = &mut self.input else { return };
        let held = input.outbox.len();
        let (taken, open) = match input.outbox.flush(&mut input.file) {
            Ok(written) => (written, input.outbox.len() > 0 || !input.ended),
            // The rank has closed it: the rest is of no use.
            Err(_) => (held, false),
        };
        if taken > 0 {
            tell(ToLauncher::Taken(taken as u32));
        }
        if !open {
            self.input = None;
        }
    }

    /// Signal every rank with what it started.
    pub fn signal(&mut self, signal: i32) {
        self.ending |= ENDING.contains(&signal);
        for member in self.members.iter().filter(|member| member.alive) {
            children::signal_group(member.pid, signal);
        }
    }

    pub fn is_member(&self, pid: u32) -> bool {
        self.members.iter().any(|member| member.pid == pid && member.alive)
    }

    /// A child was reaped; if it was a rank, that is told. Of an elastic job it is replaced.
    pub fn ended(
        &mut self,
        job: Option<&Job>,
        pid: u32,
        ended: Ended,
        tell: &mut impl FnMut(ToLauncher),
    ) {
        let mut members = self.members.iter_mut();
        let Some(member) = members.find(|member| member.pid == pid && member.alive) else { return };
        member.alive = false;
        let rank = member.rank;
        let failed = ![Ended::Code(0), Ended::Code(TURNED_AWAY)].contains(&ended);
        let wanted = job.filter(|job| failed && !self.ending && self.replaced < job.replacements);
        match wanted.and_then(|job| self.replace(job, rank)) {
            Some(pid) => tell(ToLauncher::Replaced { rank, ended, pid }),
            None => tell(ToLauncher::Exited { rank, ended }),
        }
    }

    /// Start a newcomer in the place of a rank.
    fn replace(&mut self, job: &Job, rank: u32) -> Option<u32> {
        let mut own = job.ranks.iter().find(|one| one.rank == rank)?.clone();
        let folder = own.variables.iter().find(|(name, _)| name == ELASTIC.as_bytes());
        if !folder.is_some_and(|(_, folder)| has_begun(OsStr::from_bytes(folder))) {
            return None;
        }
        own.variables.push((NEWCOMER.into(), b"1".to_vec()));
        self.replaced += 1;
        // What was read of the input is gone.
        let job = Job { input_rank: None, ..job.clone() };
        self.start_one(&job, &own).ok()
    }

    pub fn is_over(&self) -> bool {
        self.members.iter().all(|member| !member.alive)
    }

    /// Whether nobody can say anything more.
    pub fn is_silent(&self) -> bool {
        self.pipes.is_empty()
    }
}

/// Whether an elastic job has had its first ranks together. One that fails before would fail again.
pub fn has_begun(folder: &OsStr) -> bool {
    Path::new(folder).join("job.begun").exists()
}

/// Whether the training of an elastic job has come to its end.
pub fn has_ended(folder: &OsStr) -> bool {
    Path::new(folder).join("job.over").exists()
}

fn not_started(rank: u32, why: String, status: u8) -> ToLauncher {
    ToLauncher::NotStarted { rank, why: why.into_bytes(), status }
}
