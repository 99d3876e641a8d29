//! The control thread of a communicator, as the rest of it sees it.
//!
//! Whoever wants something leaves an order and wakes the thread; what comes of it shows on the
//! mirrors and in the data plane's inbox. The thread ends with the [`ControlThread`], after it has
//! told the neighbours this rank's last words.

use super::thread::Worker;
use crate::bootstrap::UniqueId;
use crate::bootstrap::tcp::AuthListener;
use crate::error::{Error, Result};
use crate::executor::links::Pages;
use crate::fork;
use crate::os::poll::EventFd;
use crate::os::thread_signals;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::*};
use crate::transport::engine::SharedEngine;
use crate::transport::tcp;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the control thread of a rank works with.
pub struct Start {
    pub rank: usize,
    pub id: UniqueId,
    pub listener: AuthListener,
    /// Where each rank's listener is.
    pub addresses: Vec<Vec<SocketAddr>>,
    /// By rank: on another machine, its page is a mirror.
    pub remote: Vec<bool>,
    pub pages: Pages,
    pub inbox: Arc<tcp::SocketInbox>,
    /// Data sockets to a peer.
    pub data_sockets: usize,
    /// The longest that a data socket may take to come about.
    pub timeout: Duration,
}

/// What the thread is told, from any thread.
pub(super) struct Commands {
    /// Peers to connect the data plane with.
    pub connect: Mutex<Vec<usize>>,
    /// Peers to ask why their connection of the data plane has ended.
    pub ask: Mutex<Vec<usize>>,
    /// This rank's page has news.
    pub publish: AtomicBool,
    pub stop: AtomicBool,
    pub event: EventFd,
    /// What a test does to the thread.
    #[cfg(test)]
    pub harm: Mutex<Option<ConnectionFault>>,
}

#[cfg(test)]
pub(super) enum ConnectionFault {
    /// End without a word, as a killed process does.
    Vanish,
    /// Break every connection with a neighbour.
    Cut,
    /// Read nothing for so long, as a stopped process does, with windows that fill in no time.
    Stop(Duration),
}

/// Tells the other ranks that this rank's page has news.
#[derive(Clone)]
pub struct Publisher(Arc<Commands>);

impl Publisher {
    pub fn publish(&self) {
        // Release: pairs with the Acquire in `run_commands`, so that the news is seen.
        self.0.publish.store(true, Release);
        self.0.event.raise();
    }
}

struct Connector(Arc<Commands>);

impl tcp::Connect for Connector {
    fn connect(&self, peer: usize) {
        self.0.connect.lock().push(peer);
        self.0.event.raise();
    }

    fn ask(&self, peer: usize) {
        self.0.ask.lock().push(peer);
        self.0.event.raise();
    }
}

/// The control thread. Dropping it says goodbye to the neighbours and ends it.
pub struct ControlThread {
    commands: Arc<Commands>,
    thread: Option<JoinHandle<()>>,
    /// The process it was made in: a forked child has no such thread.
    born: u32,
}

impl ControlThread {
    pub fn start(start: Start) -> Result<ControlThread> {
        let commands = Arc::new(Commands {
            connect: Mutex::default(),
            ask: Mutex::default(),
            publish: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            event: EventFd::new()?,
            #[cfg(test)]
            harm: Mutex::default(),
        });
        let worker = Worker::new(start, commands.clone());
        let spawned = thread_signals::spawn_deaf("ringcomm-ctl", || worker.run());
        let thread = spawned.map_err(|error| Error::System {
            what: "starting the control thread".into(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(ControlThread { commands, thread: Some(thread), born: fork::generation() })
    }

    /// What the data plane asks for its connections.
    pub fn connector(&self) -> Box<dyn tcp::Connect> {
        Box::new(Connector(self.commands.clone()))
    }

    /// What says that this rank's page has news.
    pub fn publisher(&self) -> Publisher {
        Publisher(self.commands.clone())
    }

    pub fn publish(&self) {
        self.publisher().publish();
    }
}

#[cfg(test)]
impl ControlThread {
    pub(super) fn harm(&self, harm: ConnectionFault) {
        *self.commands.harm.lock() = Some(harm);
        self.commands.event.raise();
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        if self.born != fork::generation() {
            std::mem::forget(self.thread.take());
            return;
        }
        // Release: pairs with the Acquire in `run_commands`, so that the last words are seen.
        self.commands.stop.store(true, Release);
        self.commands.event.raise();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}

/// A rank's part in the network, as long as its communicator lives.
pub(in crate::communicator) struct RemoteLinks {
    pub control_thread: ControlThread,
    pub addresses: Vec<Vec<SocketAddr>>,
    pub hosts: Vec<usize>,
    /// What the data plane may have beside sockets.
    pub engine: Weak<SharedEngine>,
}

impl RemoteLinks {
    /// Where a rank's host listens at another port than its listener's.
    pub fn at_port(&self, rank: usize, port: u16) -> Vec<SocketAddr> {
        let with_port = |address: &SocketAddr| {
            let mut address = *address;
            address.set_port(port);
            address
        };
        self.addresses[rank].iter().map(with_port).collect()
    }

    /// Whether these ranks are all on one host.
    pub fn share_a_host(&self, ranks: &[usize]) -> bool {
        ranks.iter().all(|rank| self.hosts[*rank] == self.hosts[ranks[0]])
    }
}

#[cfg(test)]
#[path = "tests/thread.rs"]
mod tests;
