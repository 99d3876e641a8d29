//! Everything that ringrun prints, through one thread: a slow reader holds up nothing else.
//!
//! Terminal, pipes and files may block for any time; the loop that serves the ranks must not. The
//! loop asks for room before it takes more output from the ranks.

use crate::protocol::messages::Stream;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// More than this is not accepted from the ranks before some of it is written.
const MOST_WAITING_BYTES: usize = 1 << 20;

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    Terminal(Stream),
    /// A rank's own file.
    File(usize, Stream),
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Target, Vec<u8>)>,
    /// Bytes in the queue and in the write that is going on.
    waiting: usize,
    /// Whoever read standard output has gone away.
    broken: bool,
    /// That has been asked about.
    told: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding it")
    }
}

pub struct OutputWriter {
    shared: Arc<Shared>,
    /// Readable when there is room again, or nothing left, or a reader gone.
    pub wake: PipeReader,
    files: bool,
}

/// The places to write to.
struct Sinks {
    terminal: [File; 2],
    files: Vec<[File; 2]>,
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Output => 0,
        Stream::Error => 1,
    }
}

/// The error, with what it is about.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("--output-filename: {}: {error}", path.display()))
}

impl OutputWriter {
    /// Start the thread; `folder` gets a file for each of `nranks` ranks and streams.
    pub fn start(folder: Option<&Path>, nranks: usize) -> io::Result<OutputWriter> {
        // As many digits everywhere as the last rank has, so that names sort as numbers do.
        let width = (nranks - 1).to_string().len();
        let rank_files = |folder: &Path, rank: usize| -> io::Result<[File; 2]> {
            let folder = folder.join(format!("rank.{rank:0width$}"));
            std::fs::create_dir_all(&folder).map_err(|error| named(&folder, &error))?;
            let create = |stream: Stream| {
                let path = folder.join(stream.name());
                File::create(&path).map_err(|error| named(&path, &error))
            };
            Ok([create(Stream::Output)?, create(Stream::Error)?])
        };
        let files = match folder {
            Some(folder) => (0..nranks).map(|rank| rank_files(folder, rank)).collect(),
            None => Ok(Vec::new()),
        }?;
        // Not through the standard library's own buffers: they would cut what is written at once.
        let terminal = [
            File::from(io::stdout().as_fd().try_clone_to_owned()?),
            File::from(io::stderr().as_fd().try_clone_to_owned()?),
        ];
        let (wake, waker) = io::pipe()?;
        let shared = Arc::new(Shared::default());
        let (theirs, has_files) = (shared.clone(), !files.is_empty());
        std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || write_all(&theirs, Sinks { terminal, files }, waker))?;
        Ok(OutputWriter { shared, wake, files: has_files })
    }

    pub fn push(&self, target: Target, bytes: Vec<u8>) {
        let mut state = self.shared.lock();
        state.waiting += bytes.len();
        state.queue.push_back((target, bytes));
        self.shared.more.notify_one();
    }

    /// A rank's output, as it came, for its file.
    pub fn keep(&self, rank: usize, stream: Stream, bytes: &[u8]) {
        if self.files {
            self.push(Target::File(rank, stream), bytes.to_vec());
        }
    }

    /// A line of ringrun's own, in turn with what the ranks have said.
    pub fn complain(&self, text: &str) {
        let line = format!("ringrun: {text}\n");
        self.push(Target::Terminal(Stream::Error), line.into_bytes());
    }

    pub fn has_room(&self) -> bool {
        self.shared.lock().waiting < MOST_WAITING_BYTES
    }

    pub fn is_idle(&self) -> bool {
        self.shared.lock().waiting == 0
    }

    /// Whether whoever read standard output has gone away; said once.
    pub fn take_broken(&self) -> bool {
        let mut state = self.shared.lock();
        let broken = state.broken;
        broken && !std::mem::replace(&mut state.told, true)
    }

    /// Take what made [`OutputWriter::wake`] readable.
    pub fn woken(&mut self) {
        // As many wake-ups as came are one; another one follows if this was not the last.
        let _ = self.wake.read(&mut [0; 64]);
    }
}

fn write_all(shared: &Shared, mut sinks: Sinks, mut waker: PipeWriter) {
    loop {
        let (target, bytes) = {
            let mut state = shared.lock();
            loop {
                match state.queue.pop_front() {
                    Some(next) => break next,
                    None => {
                        state = shared.more.wait(state).expect("nobody panics while holding it");
                    }
                }
            }
        };
        let file = match target {
            Target::Terminal(stream) => &mut sinks.terminal[index(stream)],
            Target::File(rank, stream) => &mut sinks.files[rank][index(stream)],
        };
        // A terminal that hung up or a full disk costs the output, not the job.
        let gone = matches!(file.write_all(&bytes), Err(error)
            if error.kind() == io::ErrorKind::BrokenPipe);
        let mut state = shared.lock();
        let before = state.waiting;
        state.waiting -= bytes.len();
        let fresh = gone && target == Target::Terminal(Stream::Output) && !state.broken;
        state.broken |= fresh;
        let room = before >= MOST_WAITING_BYTES && state.waiting < MOST_WAITING_BYTES;
        let wake = fresh || room || state.waiting == 0;
        drop(state);
        if wake {
            // The other end lives as long as the process.
            let _ = waker.write_all(&[0]);
        }
    }
}
