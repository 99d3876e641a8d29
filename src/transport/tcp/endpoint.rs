//! All remote connections of one rank, and its sleep while it waits for one of them.

use super::connection::{MOST_SOCKETS, TcpConnection};
use super::protect::SocketKeys;
use crate::config::Protection;
use crate::error::{Error, Result};
use crate::os::poll::{EventFd, entry, poll_for};
use crate::os::tcp_liveness::LOOK;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::*};
use crate::transport::engine::{EngineInfo, Lane, SharedEngine};
use crate::transport::fifo::FifoShape;
use crate::transport::network::{Connection, Endpoint, Lengths};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank sleeps at once that waits for an engine which wakes nobody.
const NAP: Duration = Duration::from_micros(200);

/// What all connections of a rank share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub geometry: FifoShape,
    /// Of a plan's messages, and of the user's own.
    pub steps: Lengths,
    pub messages: Lengths,
    pub protection: Protection,
    /// Sockets to a peer.
    pub data_sockets: usize,
}

/// A socket to `peer`, connected and proved, non-blocking.
pub struct NewDataSocket {
    pub peer: usize,
    pub socket: OwnedFd,
    pub keys: SocketKeys,
}

/// Makes connections, elsewhere: they come through the [`SocketInbox`].
pub trait Connect: Send {
    /// Dial all data_sockets to `peer`; called once, at the first use of the connection, by the
    /// lower rank of the two.
    fn connect(&self, peer: usize);

    /// Find out why the connection to `peer` has ended; called once. What there is to know shows
    /// where a watch looks before [`SocketInbox::report_explained`] is called.
    fn ask(&self, peer: usize);
}

/// Where new sockets come in, from any thread, and what wakes the rank from its sleep.
pub struct SocketInbox {
    data_sockets: Mutex<Vec<NewDataSocket>>,
    failures: Mutex<Vec<(usize, String)>>,
    explained: Mutex<Vec<usize>>,
    filled: AtomicBool,
    event: EventFd,
}

impl SocketInbox {
    pub fn new() -> Result<SocketInbox> {
        let event = EventFd::new()?;
        let filled = AtomicBool::new(false);
        let (data_sockets, failures, explained) = Default::default();
        Ok(SocketInbox { data_sockets, failures, explained, filled, event })
    }

    pub fn push(&self, data_socket: NewDataSocket) {
        self.data_sockets.lock().push(data_socket);
        self.fill();
    }

    /// The sockets that nobody has taken yet.
    #[cfg(test)]
    pub fn take(&self) -> Vec<NewDataSocket> {
        std::mem::take(&mut *self.data_sockets.lock())
    }

    /// The connection to `peer` could not be made.
    pub fn report_failure(&self, peer: usize, why: String) {
        self.failures.lock().push((peer, why));
        self.fill();
    }

    /// What there is to know of the end of the connection to `peer` is known.
    pub fn report_explained(&self, peer: usize) {
        self.explained.lock().push(peer);
        self.fill();
    }

    fn fill(&self) {
        // Release: pairs with the Acquire in `TcpEndpoint::collect`.
        self.filled.store(true, Release);
        self.wake();
    }

    /// End the rank's sleep, so that it looks at its condition and its watch again.
    pub fn wake(&self) {
        self.event.raise();
    }
}

/// What was lacking for a connection, and what to do.
fn short_of_memory(error: Error, peer: usize) -> Error {
    match error {
        Error::System { what, errno } => {
            let what = format!(
                "{what} for the connection to rank {peer} (a process may map more with another \
                 `ulimit -v`, vm.overcommit_memory or vm.max_map_count; ranks map less with a \
                 smaller RINGCOMM_BUFFSIZE)"
            );
            Error::System { what, errno }
        }
        other => other,
    }
}

/// All TCP connections of one rank.
pub struct TcpEndpoint {
    rank: usize,
    settings: Settings,
    /// By rank; made at the first use.
    connections: Vec<Option<Box<TcpConnection>>>,
    /// Why one of them has no slots.
    shortage: Option<Error>,
    /// Sockets of peers for whose slots there was no memory when they came: left open, so that a
    /// peer whose rank may still need them does not take it for gone.
    parked: Vec<NewDataSocket>,
    inbox: Arc<SocketInbox>,
    connect: Box<dyn Connect>,
    /// What has lanes beside the sockets, and whether messages go over these.
    engine: Option<Arc<SharedEngine>>,
    uses_engine: bool,
    /// Every socket begins with words on the engine, also once there is none any more: a peer may
    /// not know that yet.
    greets: bool,
    /// Peers with messages that are not the kernel's yet.
    unwritten: Vec<usize>,
    polled: Vec<libc::pollfd>,
    /// When to see who is still there.
    next_look: Instant,
}

impl TcpEndpoint {
    pub fn new(
        rank: usize,
        nranks: usize,
        settings: Settings,
        inbox: Arc<SocketInbox>,
        connect: Box<dyn Connect>,
    ) -> TcpEndpoint {
        TcpEndpoint {
            rank,
            settings,
            connections: (0..nranks).map(|_| None).collect(),
            shortage: None,
            parked: Vec::new(),
            inbox,
            connect,
            engine: None,
            uses_engine: false,
            greets: false,
            unwritten: Vec::with_capacity(nranks),
            polled: Vec::with_capacity(nranks * settings.data_sockets + 1),
            next_look: Instant::now() + LOOK,
        }
    }

    /// Have lanes of an engine beside the sockets, which carry all messages if `is_used`.
    pub fn with_engine(mut self, engine: Arc<SharedEngine>, is_used: bool) -> TcpEndpoint {
        (self.engine, self.uses_engine, self.greets) = (Some(engine), is_used, true);
        self
    }

    /// The connection to `peer`.
    #[inline]
    pub fn tcp_connection(&mut self, peer: usize) -> &mut TcpConnection {
        let ready = self.connections[peer].as_ref().is_some_and(|c| c.has_sockets());
        if !ready {
            self.prepare(peer);
        }
        self.connections[peer].as_mut().expect("just prepared")
    }

    /// Make the connection's ends and ask for its sockets; take those that have come.
    #[cold]
    fn prepare(&mut self, peer: usize) {
        if self.connections[peer].is_none() {
            let connection = self.make(peer);
            // Both ranks of a pair use it, so one of them dialling is enough.
            if self.rank < peer && !connection.is_bare() {
                self.connect.connect(peer);
            }
            self.connections[peer] = Some(connection);
        }
        self.collect();
    }

    /// The ends of a connection that this rank needs, or what fails its calls where there is no
    /// memory for them.
    fn make(&mut self, peer: usize) -> Box<TcpConnection> {
        self.adopt(peer).unwrap_or_else(|error| {
            self.shortage.get_or_insert(short_of_memory(error, peer));
            Box::new(TcpConnection::bare(self.settings))
        })
    }

    /// The ends of a connection, with the sockets that have come for it, or an error where there is
    /// no memory.
    fn adopt(&mut self, peer: usize) -> Result<Box<TcpConnection>> {
        let protection = self.settings.protection;
        let lane =
            self.engine.clone().map(|engine| Lane::new(engine, (self.rank, peer), protection));
        let lane = match lane.transpose() {
            Err(error) if self.uses_engine => return Err(error),
            // Nobody has asked for it.
            Err(_) => None,
            Ok(lane) => lane,
        };
        let mut connection = Box::new(TcpConnection::new(self.settings, lane, self.greets)?);
        connection.use_lane(self.uses_engine);
        let theirs = self.parked.extract_if(.., |data_socket| data_socket.peer == peer);
        theirs.for_each(|data_socket| connection.add_socket(data_socket));
        Ok(connection)
    }

    /// Keep a socket open for which there are no slots. One that is too many is hung up on.
    fn park(&mut self, data_socket: NewDataSocket) {
        let theirs = self.parked.iter().filter(|parked| parked.peer == data_socket.peer);
        if theirs.count() < MOST_SOCKETS {
            self.parked.push(data_socket);
        }
    }

    /// Take what has come into the inbox.
    fn collect(&mut self) {
        // Acquire: pairs with the Release in `SocketInbox::fill`.
        if !self.inbox.filled.load(Acquire) || !self.inbox.filled.swap(false, Acquire) {
            return;
        }
        let come = std::mem::take(&mut *self.inbox.data_sockets.lock());
        for data_socket in come {
            let peer = data_socket.peer;
            match &mut self.connections[peer] {
                Some(connection) if !connection.is_bare() => connection.add_socket(data_socket),
                Some(_) => self.park(data_socket),
                None => {
                    self.park(data_socket);
                    // Nobody here needs it yet: without memory it stays so.
                    self.connections[peer] = self.adopt(peer).ok();
                }
            }
        }
        for (peer, why) in std::mem::take(&mut *self.inbox.failures.lock()) {
            if let Some(connection) = &mut self.connections[peer] {
                connection.mark_broken(&why);
            }
        }
        for peer in std::mem::take(&mut *self.inbox.explained.lock()) {
            if let Some(connection) = &mut self.connections[peer] {
                connection.explained();
            }
        }
    }

    #[cold]
    fn investigate(&mut self, peer: usize) -> Option<&str> {
        self.collect();
        let connection = self.connections[peer].as_mut()?;
        if connection.is_to_be_explained() {
            self.connect.ask(peer);
        }
        // Who only sends reads here how the data sockets end.
        let _ = connection.peek();
        connection.breach(Instant::now())
    }

    /// See now and then whether somebody is at the other ends.
    fn look(&mut self) {
        let now = Instant::now();
        if now >= self.next_look {
            self.next_look = now + LOOK;
            self.connections
                .iter_mut()
                .flatten()
                .for_each(|connection| connection.check_liveness());
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn connection(&mut self, peer: usize) -> &mut dyn Connection {
        self.tcp_connection(peer)
    }

    fn step_lengths(&self) -> Lengths {
        self.settings.steps
    }

    fn message_lengths(&self) -> Lengths {
        self.settings.messages
    }

    fn is_zero_copy(&self) -> bool {
        self.settings.protection != Protection::Encrypted && !self.uses_engine
    }

    fn engine(&self) -> Option<(EngineInfo, bool)> {
        let engine = self.engine.as_ref()?;
        Some((engine.info(), self.uses_engine))
    }

    fn engine_hears(&mut self, peer: usize) -> bool {
        self.tcp_connection(peer).lane_hears()
    }

    fn use_engine(&mut self, is_used: bool) {
        self.uses_engine = is_used && self.engine.is_some();
        let connections = self.connections.iter_mut().flatten();
        connections.for_each(|connection| connection.use_lane(self.uses_engine));
    }

    fn close_engine(&mut self) {
        self.uses_engine = false;
        self.connections.iter_mut().flatten().for_each(|connection| connection.close_lane());
        self.engine = None;
    }

    fn posted(&mut self, peer: usize) {
        let written = self.connections[peer].as_ref().is_none_or(|c| c.is_written());
        if !written && !self.unwritten.contains(&peer) {
            self.unwritten.push(peer);
        }
    }

    fn flush(&mut self) -> bool {
        if self.unwritten.is_empty() {
            return true;
        }
        self.collect();
        let connections = &mut self.connections;
        self.unwritten.retain(|peer| {
            let connection = connections[*peer].as_mut().expect("it was posted to");
            connection.flush();
            !connection.is_written()
        });
        self.unwritten.is_empty()
    }

    fn unwritten(&self) -> Option<usize> {
        self.unwritten.first().copied()
    }

    fn settle(&mut self, address: *const u8, bytes: usize) {
        for peer in &self.unwritten {
            if let Some(connection) = &mut self.connections[*peer] {
                connection.settle(address, bytes);
            }
        }
    }

    fn failure(&mut self, peer: usize) -> Option<&str> {
        let is_broken = self.connections[peer].as_ref().is_some_and(|c| c.is_broken());
        if is_broken { self.investigate(peer) } else { None }
    }

    fn shortage(&self) -> Option<&Error> {
        self.shortage.as_ref()
    }

    fn sleep(&mut self, peer: Option<usize>, time: Duration) {
        self.polled.clear();
        self.polled.push(entry(self.inbox.event.raw(), libc::POLLIN));
        for (other, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection.as_ref().filter(|c| !c.is_broken()) else { continue };
            let reads = peer.is_none_or(|peer| peer == other);
            for data_socket in connection.data_sockets() {
                let reads = if reads && data_socket.wants_input() { libc::POLLIN } else { 0 };
                let events = reads | if data_socket.is_writing() { libc::POLLOUT } else { 0 };
                if events != 0 {
                    self.polled.push(entry(data_socket.fd(), events));
                }
            }
        }
        let mut time = time;
        if let Some(engine) = self.engine.as_ref().filter(|_| self.uses_engine) {
            let mut engine = engine.try_lock();
            match engine.as_ref().and_then(|engine| engine.event()) {
                None => time = time.min(NAP),
                Some(event) if engine.as_mut().is_some_and(|engine| engine.arm()) => {
                    self.polled.push(entry(event, libc::POLLIN));
                }
                Some(_) => return,
            }
        }
        // An error ends the sleep early.
        if poll_for(&mut self.polled, time).is_ok_and(|ready| ready > 0)
            && self.polled[0].revents != 0
        {
            self.inbox.event.lower();
        }
        self.collect();
        self.look();
    }

    fn end(&self) {
        self.connections.iter().flatten().for_each(|connection| connection.end());
    }

    fn undelivered(&self, matters: &dyn Fn(usize) -> bool) -> Option<usize> {
        let lacks = |peer: &usize| {
            let connection = self.connections[*peer].as_ref();
            connection.is_some_and(|c| !c.is_delivered()) && matters(*peer)
        };
        (0..self.connections.len()).find(lacks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    struct Nobody;

    impl Connect for Nobody {
        fn connect(&self, _peer: usize) {}
        fn ask(&self, _peer: usize) {}
    }

    /// Rank 1 of two, where slots take more than a process can map.
    fn without_memory() -> TcpEndpoint {
        let geometry = FifoShape { depth: 2, slot_bytes: 1 << 46 };
        let lengths = Lengths { cut: 64, whole: 0 };
        let (steps, messages, protection) = (lengths, lengths, Protection::Clear);
        let settings = Settings { geometry, steps, messages, protection, data_sockets: 2 };
        TcpEndpoint::new(1, 2, settings, Arc::new(SocketInbox::new().unwrap()), Box::new(Nobody))
    }

    /// A socket of rank 0 comes; its other end.
    fn come(network: &mut TcpEndpoint) -> UnixStream {
        let (socket, end) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let keys = SocketKeys { send: [1; 32], receive: [2; 32] };
        network.inbox.push(NewDataSocket { peer: 0, socket: socket.into(), keys });
        network.sleep(None, Duration::ZERO);
        end
    }

    #[test]
    fn sockets_that_came_without_memory_are_all_there_once_it_is_back() {
        let mut network = without_memory();
        let _ends = [come(&mut network), come(&mut network)];
        assert!(network.connections[0].is_none() && network.shortage().is_none());
        network.settings.geometry.slot_bytes = 64;
        let _last = come(&mut network);
        assert_eq!(network.tcp_connection(0).data_sockets().count(), 3);
        assert!(network.parked.is_empty() && network.shortage().is_none());
    }

    #[test]
    fn a_rank_fails_for_lack_of_memory_when_it_needs_the_connection() {
        let mut network = without_memory();
        let ends: Vec<UnixStream> = (0..MOST_SOCKETS + 3).map(|_| come(&mut network)).collect();
        assert_eq!(network.parked.len(), MOST_SOCKETS, "more are hung up on");
        assert!(network.connection(0).try_reserve(8).is_none());
        let text = network.shortage().expect("it needs the connection").to_string();
        assert!(text.contains("for the connection to rank 0 "), "{text}");
        let is_open = |mut end: &UnixStream| {
            end.set_nonblocking(true).unwrap();
            std::io::Read::read(&mut end, &mut [0]).is_err()
        };
        assert!(ends.iter().take(MOST_SOCKETS).all(is_open), "its peer takes it for gone");
        assert!(!is_open(&ends[MOST_SOCKETS]));
    }
}
