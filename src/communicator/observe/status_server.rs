//! What a process answers to onlookers: the Unix socket that `ringrun --status` asks.
//!
//! One thread a process, from its first communicator to the end of its last, and only where
//! RINGCOMM_STATUS_DIR names a folder. The thread reads control pages and takes no lock that a call
//! holds, so it answers while every other thread of the process hangs. It serves one asker at a
//! time and gives none of them long.

use super::flight_dump::{self, FlightDump, quote};
use crate::error::{Error, Result};
use crate::fork::ForkSafeMutex;
use crate::os::environment;
use crate::os::poll::{EventFd, entry, poll};
use crate::os::sockets::{self, BACKLOG, PeerCredentials};
use crate::os::thread_signals;
use crate::{fork, host};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, bind};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Names the folder of the socket.
pub const FOLDER: &str = "RINGCOMM_STATUS_DIR";

/// How long one asker may take over question and answer together: a thousand times what a loaded
/// machine needs.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a question; the longest that means something has seven.
const QUESTION_BYTES: usize = 64;

/// The communicators of this process that onlookers see.
#[derive(Default)]
struct StatusRegistry {
    flights: Vec<(u64, FlightDump)>,
    next: u64,
    server: Option<Server>,
    /// The process that it is of, as [`fork::generation`] tells them apart.
    born: u32,
}

static GALLERY: ForkSafeMutex<StatusRegistry> =
    ForkSafeMutex::new(StatusRegistry { flights: Vec::new(), next: 0, server: None, born: 0 });

/// A communicator's place among those that onlookers see; dropping it takes it away.
pub struct StatusEntry {
    number: u64,
    born: u32,
}

/// Let onlookers see a communicator, where the environment asks for it.
pub fn register(flight: FlightDump) -> Result<Option<StatusEntry>> {
    let Some(folder) = environment::variable_os(FOLDER).filter(|folder| !folder.is_empty()) else {
        return Ok(None);
    };
    let mut gallery = GALLERY.lock();
    let born = fork::generation();
    if gallery.born != born {
        // A forked child: thread, socket and communicators are its parent's.
        std::mem::forget(gallery.server.take());
        gallery.flights.clear();
        gallery.born = born;
    }
    if gallery.server.is_none() {
        gallery.server = Some(Server::start(Path::new(&folder))?);
    }
    let number = gallery.next;
    gallery.next += 1;
    gallery.flights.push((number, flight));
    Ok(Some(StatusEntry { number, born }))
}

impl Drop for StatusEntry {
    fn drop(&mut self) {
        if self.born != fork::generation() {
            return;
        }
        let mut gallery = GALLERY.lock();
        gallery.flights.retain(|(number, _)| *number != self.number);
        let last = if gallery.flights.is_empty() { gallery.server.take() } else { None };
        // Under the lock, so that another thread's first communicator finds the name free.
        last.iter().for_each(Server::take_name_away);
        drop(gallery);
        // Without it: the thread that is about to end may be waiting for it.
        drop(last);
    }
}

/// The socket and its thread. Dropping it ends the thread.
struct Server {
    path: PathBuf,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(folder: &Path) -> Result<Server> {
        let path = folder.join(format!("rank.{}", std::process::id()));
        let listener = listen(&path)?;
        let stop = Arc::new(EventFd::new()?);
        let mut server = Server { path, stop: stop.clone(), thread: None };
        let thread = thread_signals::spawn_deaf("ringcomm-status", move || serve(&listener, &stop));
        match thread {
            Ok(thread) => {
                server.thread = Some(thread);
                Ok(server)
            }
            Err(error) => {
                server.take_name_away();
                Err(Error::System {
                    what: "starting the status thread".into(),
                    errno: error.raw_os_error().unwrap_or(0),
                })
            }
        }
    }

    fn take_name_away(&self) {
        // Whoever made the folder may have removed it with all that was in it.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}

/// A listener at `path` that only this user may connect to.
fn listen(path: &Path) -> Result<UnixListener> {
    let what = || format!("listening at {} ({FOLDER})", path.display());
    // A process that was killed may have left the name behind, and had this one's number.
    if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
        let _ = std::fs::remove_file(path);
    }
    let listening = || {
        let address = SocketAddrUnix::new(path)?;
        let socket = sockets::stream(AddressFamily::UNIX)?;
        // The name gets the mode that the socket has, so it is never another.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(UnixListener::from(socket))
    };
    listening().map_err(|error: Errno| Error::os(what(), error))
}

/// The thread: answers until it is to stop.
fn serve(listener: &UnixListener, stop: &EventFd) {
    loop {
        let until = Instant::now() + Duration::from_secs(60);
        if is_stopped(stop, listener.as_raw_fd(), libc::POLLIN, until) {
            return;
        }
        let Ok((asker, _)) = listener.accept() else {
            // No descriptor is free, perhaps: the asker still waits then.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        fork::let_go_in_child(asker.as_raw_fd());
        let is_same_user = PeerCredentials::of(&asker).is_ok_and(|asker| asker.is_same_user());
        if is_same_user && asker.set_nonblocking(true).is_ok() {
            let until = Instant::now() + PATIENCE;
            if let Some(question) = read_line(&asker, stop, until) {
                write_all(&asker, answer(question.trim()).as_bytes(), stop, until);
            }
        }
    }
}

/// Wait until the descriptor is ready, `until` has come, or the thread is to stop, which it tells.
fn is_stopped(stop: &EventFd, fd: RawFd, events: libc::c_short, until: Instant) -> bool {
    let mut entries = [entry(stop.raw(), libc::POLLIN), entry(fd, events)];
    // An error ends the sleep early.
    let _ = poll(&mut entries, until);
    entries[0].revents != 0
}

/// A line of at most [`QUESTION_BYTES`].
fn read_line(mut asker: &UnixStream, stop: &EventFd, until: Instant) -> Option<String> {
    let mut line = [0; QUESTION_BYTES];
    let mut used = 0;
    while used < line.len() && Instant::now() < until {
        match asker.read(&mut line[used..]) {
            Ok(0) => return None,
            Ok(count) => used += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if is_stopped(stop, asker.as_raw_fd(), libc::POLLIN, until) {
                    return None;
                }
            }
            Err(_) => return None,
        }
        if let Some(end) = line[..used].iter().position(|byte| *byte == b'\n') {
            return String::from_utf8(line[..end].to_vec()).ok();
        }
    }
    None
}

fn write_all(mut asker: &UnixStream, mut text: &[u8], stop: &EventFd, until: Instant) {
    while !text.is_empty() && Instant::now() < until {
        match asker.write(text) {
            Ok(count) => text = &text[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if is_stopped(stop, asker.as_raw_fd(), libc::POLLOUT, until) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// What is answered to a question. `table` and `events` are the parts of which ringrun makes one
/// table and one trace of many ranks.
fn answer(question: &str) -> String {
    let flights: Vec<FlightDump> =
        GALLERY.lock().flights.iter().map(|(_, flight)| flight.clone()).collect();
    let all = |part: &dyn Fn(&FlightDump) -> String, between: &str| {
        flights.iter().map(part).collect::<Vec<_>>().join(between)
    };
    match question {
        "dump" => format!(
            "{{\"pid\":{},\"host\":{},\"communicators\":[{}]}}\n",
            std::process::id(),
            quote(host::name()),
            all(&|flight| flight.dump(flight.failure()), ",")
        ),
        "events" => all(&FlightDump::events, ","),
        "trace" => flight_dump::trace(&all(&FlightDump::events, ",")) + "\n",
        "table" => all(&FlightDump::row, ""),
        _ => "{\"error\":\"ask for dump, trace, events or table\"}\n".into(),
    }
}
