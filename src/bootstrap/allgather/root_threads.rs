//! Roots that are no ranks: threads that introduce the ranks of an id to each other.
//!
//! One thread listens for all ids that nobody has used. When somebody comes, the id gets a thread
//! of its own, which ends with the rendezvous.

use super::driver::{AllgatherDriver, Role};
use super::message::{self, PeerId};
use super::root::AllgatherRoot;
use super::{greeting, run};
use crate::bootstrap::tcp::handshake::SharedSecret;
use crate::bootstrap::tcp::hello::Purpose;
use crate::bootstrap::tcp::listener::{AuthListener, NetworkConfig};
use crate::bootstrap::tcp::socket::OsNetwork;
use crate::bootstrap::unique_id::UniqueId;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fork::{self, ForkSafeMutex};
use crate::os::poll::{EventFd, entry, poll};
use crate::os::thread_signals;
use std::collections::HashSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks, where nothing wakes the thread or nothing can be done.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
const SHORT_OF_THREADS: Duration = Duration::from_millis(100);

/// An id that nobody has used, and where its ranks will come.
struct UnusedId {
    id: UniqueId,
    listener: AuthListener,
    patience: Duration,
}

impl UnusedId {
    fn is_called(&self, ready: &HashSet<RawFd>) -> bool {
        let mut entries = Vec::new();
        self.listener.poll_fds(&mut entries);
        entries.iter().any(|entry| ready.contains(&entry.fd))
    }
}

#[derive(Default)]
struct UnusedIds {
    ids: Vec<UnusedId>,
    /// Wakes the thread that listens for all of them, where there is one.
    wake: Option<Arc<EventFd>>,
    /// The process that they are of, as [`fork::generation`] tells them apart.
    born: u32,
}

static UNUSED: ForkSafeMutex<UnusedIds> =
    ForkSafeMutex::new(UnusedIds { ids: Vec::new(), wake: None, born: 0 });

/// Make a new id whose ranks meet at a thread of this process. Until somebody comes it only holds
/// sockets; from then on a thread lives until the ranks have met, or for the configured timeout, in
/// which it tells every further rank why the rendezvous failed.
pub fn start(config: &Config) -> Result<UniqueId> {
    let secret = UniqueId::generate()?;
    let listener = AuthListener::open(&secret, &NetworkConfig::from(config))?.of_root();
    let id = secret.moved_to(listener.addresses());
    let unused = UnusedId { id: id.clone(), listener, patience: config.init_timeout() };
    let mut all = UNUSED.lock();
    let born = fork::generation();
    if all.born != born {
        // A forked child: thread and sockets are its parent's.
        std::mem::forget(std::mem::take(&mut all.ids));
        std::mem::forget(all.wake.take());
        all.born = born;
    }
    if let Some(wake) = &all.wake {
        wake.raise();
    } else {
        let wake = Arc::new(EventFd::new()?);
        let theirs = wake.clone();
        thread_signals::spawn_deaf("ring-ids", move || listen_for_all(&theirs)).map_err(started)?;
        all.wake = Some(wake);
    }
    all.ids.push(unused);
    Ok(id)
}

/// Give up what an id holds that nobody has used. One that somebody has used gives it up by itself.
pub fn free(id: &UniqueId) {
    let mut all = UNUSED.lock();
    if all.born != fork::generation() {
        return;
    }
    if let Some(at) = all.ids.iter().position(|unused| unused.id == *id) {
        all.ids.swap_remove(at);
        all.wake.iter().for_each(|wake| wake.raise());
    }
}

fn started(error: io::Error) -> Error {
    Error::System {
        what: "starting the thread that introduces the ranks".into(),
        errno: error.raw_os_error().unwrap_or(0),
    }
}

/// The thread of all unused ids: it ends when there are none.
fn listen_for_all(wake: &EventFd) {
    loop {
        let mut entries = vec![entry(wake.raw(), libc::POLLIN)];
        {
            let mut all = UNUSED.lock();
            if all.ids.is_empty() {
                all.wake = None;
                return;
            }
            all.ids.iter().for_each(|unused| unused.listener.poll_fds(&mut entries));
        }
        if poll(&mut entries, Instant::now() + LONGEST_SLEEP).is_err() {
            std::thread::sleep(SHORT_OF_THREADS);
            continue;
        }
        wake.lower();
        let ready = entries.iter().filter(|entry| entry.revents != 0).map(|entry| entry.fd);
        let ready: HashSet<RawFd> = ready.collect();
        let called = |unused: &mut UnusedId| unused.is_called(&ready);
        let called: Vec<UnusedId> = UNUSED.lock().ids.extract_if(.., called).collect();
        called.into_iter().for_each(introduce);
    }
}

/// Give the id a thread of its own. Where none is to be had, its ranks wait for one.
fn introduce(unused: UnusedId) {
    // A thread that cannot be started takes what it was to do with it.
    let handed = Arc::new(ForkSafeMutex::new(Some(unused)));
    let theirs = handed.clone();
    let work = move || {
        let unused = theirs.lock().take();
        unused.into_iter().for_each(serve);
    };
    if thread_signals::spawn_deaf("ring-root", work).is_err() {
        UNUSED.lock().ids.extend(handed.lock().take());
        std::thread::sleep(SHORT_OF_THREADS);
    }
}

fn serve(unused: UnusedId) {
    let UnusedId { id, mut listener, patience } = unused;
    let me = PeerId { rank: message::NO_RANK, pid: std::process::id() };
    let role = Role::Root(AllgatherRoot::apart(me.pid, Instant::now(), patience));
    let Ok(greeting) = greeting(me, 0) else { return };
    let mut host = AllgatherDriver::new(OsNetwork, SharedSecret::new(&id), greeting, role);
    // A thread has no use for what is for a rank.
    if run(&mut host, &mut listener, 0, &mut Vec::new(), None).is_ok() {
        return;
    }
    // Whoever comes late learns why it failed, as long as it would have been waited for.
    let until = Instant::now() + patience;
    while Instant::now() < until {
        let mut entries = Vec::new();
        for proved in listener.advance() {
            if proved.greeting.purpose == Purpose::Meet {
                host.admit(proved, Instant::now());
            }
        }
        host.advance(Instant::now());
        listener.poll_fds(&mut entries);
        entries.extend(host.streams().map(|(socket, sending)| {
            entry(socket.raw(), libc::POLLIN | if sending { libc::POLLOUT } else { 0 })
        }));
        let next = listener.next_deadline().map_or(until, |at| at.min(until));
        if poll(&mut entries, next).is_err() {
            return;
        }
    }
}
