//! The control thread: one `poll` over the gate, the dials, the neighbours and its orders.
//!
//! The lower rank of two neighbours makes their connection, and makes it again if it breaks. Who
//! cannot reach a rank whose connection has broken declares it dead: at once where its gate refuses
//! (the process is gone), at the end of [`SUSPICION`] where nothing answers. The higher rank, which
//! waits to be connected, calls only to see whether somebody answers ([`Aim::Probe`]). A rank that
//! is stopped answers nothing either, but its kernel keeps its connections, so none breaks.

use super::descriptor::{block_signals, poll, watch_other_end};
use super::engine::{Orders, Start};
use super::gossip::{Gossip, News};
use super::status::Status;
use crate::bootstrap::network::{Dial, Greeting, Proved, Purpose};
use crate::error::Error;
use crate::sync::atomic::Ordering::*;
use crate::transport::tcp::{LaneKeys, NewLane};
use crate::transport::wait;
use std::io::{ErrorKind, Read, Write};
#[cfg(test)]
use std::net::Shutdown;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "farewell.rs"]
mod farewell;

/// How long a rank whose connection broke may take to answer: a new connection over a wide network
/// takes a tenth, with a lost first packet (sent again after a second) half of it.
const SUSPICION: Duration = Duration::from_secs(3);

/// How long the lower of two ranks may take to connect before the higher looks after it: it may
/// have died since they met, and its survivors name it within a quarter of a second. A call in vain
/// costs a handshake.
const FIRST_LINK: Duration = Duration::from_millis(100);

/// Between two signs of life: the kernel can only miss acknowledgements of what was sent.
const BEAT: Duration = Duration::from_millis(500);

/// What a call to another rank's gate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// To be neighbours. `suspected`: the connection before it broke.
    Link { suspected: bool },
    /// To see whether the rank is there. `suspected`: there was a connection.
    Probe { suspected: bool },
    /// To carry data.
    Data { lane: u32 },
}

struct Call {
    dial: Dial,
    peer: usize,
    aim: Aim,
}

/// This rank's side of the connection with a neighbour.
#[derive(Default)]
struct Neighbour {
    socket: Option<TcpStream>,
    /// Connections so far, as their maker counts them.
    number: u64,
    /// When it is time to see whether the neighbour is there.
    probe_at: Option<Instant>,
    /// The kernel took less than there was.
    is_full: bool,
    /// Where it was reached, or where it came from: the one address that is known to be right.
    address: Option<SocketAddr>,
}

pub struct Worker {
    start: Start,
    orders: Arc<Orders>,
    gossip: Gossip,
    neighbours: Vec<Neighbour>,
    calls: Vec<Call>,
    next_beat: Instant,
    /// What is polled, and the neighbours whose sockets are the last of it.
    entries: Vec<libc::pollfd>,
    polled: Vec<usize>,
}

/// Lanes of a control connection's greeting: what the call is for.
const LINK: u32 = 0;
const PROBE: u32 = 1;

impl Worker {
    pub(super) fn new(start: Start, orders: Arc<Orders>) -> Worker {
        let nranks = start.pages.nranks();
        Worker {
            gossip: Gossip::new(start.rank, nranks),
            neighbours: (0..nranks).map(|_| Neighbour::default()).collect(),
            calls: Vec::new(),
            next_beat: Instant::now() + BEAT,
            entries: Vec::new(),
            polled: Vec::new(),
            start,
            orders,
        }
    }

    pub(super) fn run(mut self) {
        block_signals();
        loop {
            if !self.obey() {
                self.finish_links();
                return self.say_goodbye();
            }
            #[cfg(test)]
            match self.orders.harm.lock().take() {
                Some(super::engine::Harm::Vanish) => return,
                Some(super::engine::Harm::Cut) => {
                    let sockets = self.neighbours.iter().filter_map(|n| n.socket.as_ref());
                    sockets.for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
                }
                None => {}
            }
            self.admit();
            self.advance_calls();
            self.read_all();
            self.tend();
            self.beat();
            self.write_all();
            self.sleep();
        }
    }

    /// Sleep until there is something to do.
    fn sleep(&mut self) {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        self.entries.clear();
        self.entries.push(entry(self.orders.event.raw(), libc::POLLIN));
        self.start.gate.poll_fds(&mut self.entries);
        self.calls.iter().for_each(|call| call.dial.poll_fds(&mut self.entries));
        self.polled.clear();
        for (peer, neighbour) in self.neighbours.iter().enumerate() {
            if let Some(socket) = &neighbour.socket {
                let writes = if neighbour.is_full { libc::POLLOUT } else { 0 };
                self.entries.push(entry(socket.as_raw_fd(), libc::POLLIN | writes));
                self.polled.push(peer);
            }
        }
        let dials = self.calls.iter().map(|call| call.dial.next_deadline());
        let probes = self.neighbours.iter().filter_map(|neighbour| neighbour.probe_at);
        let gate = self.start.gate.next_deadline();
        let until = dials.chain(probes).chain(gate).fold(self.next_beat, Instant::min);
        poll(&mut self.entries, until);
        let first = self.entries.len() - self.polled.len();
        let mut results = self.entries[first..].iter();
        let has_news = |entry: &libc::pollfd| entry.revents & !libc::POLLOUT != 0;
        self.polled.retain(|_| results.next().is_some_and(has_news));
    }

    /// Do what was ordered; false once that is to end.
    fn obey(&mut self) -> bool {
        self.orders.event.lower();
        // Acquire: pairs with the Release in `Engine::drop`.
        if self.orders.stop.load(Acquire) {
            return false;
        }
        // Acquire: pairs with the Release in `Publisher::publish`.
        if self.orders.publish.swap(false, Acquire) {
            self.publish();
        }
        let peers = std::mem::take(&mut *self.orders.connect.lock());
        for peer in peers {
            for lane in 0..self.start.lanes as u32 {
                self.call(peer, Aim::Data { lane });
            }
        }
        true
    }

    fn publish(&mut self) {
        self.gossip.publish(Status::of(self.start.pages.mine()));
    }

    fn call(&mut self, peer: usize, aim: Aim) {
        let (purpose, lane, patience) = match aim {
            Aim::Link { suspected: true } => (Purpose::Control, LINK, SUSPICION),
            Aim::Link { suspected: false } => (Purpose::Control, LINK, self.start.timeout),
            Aim::Probe { .. } => (Purpose::Control, PROBE, SUSPICION),
            Aim::Data { lane } => (Purpose::Data, lane, self.start.timeout),
        };
        let neighbour = &mut self.neighbours[peer];
        if matches!(aim, Aim::Link { .. }) {
            neighbour.number += 1;
        }
        let greeting = Greeting {
            purpose,
            rank: self.start.rank as u32,
            to: peer as u32,
            nranks: self.start.pages.nranks() as u32,
            epoch: 0,
            lane,
            note: neighbour.number,
        };
        let all = &self.start.addresses[peer];
        let to = match (aim, &neighbour.address) {
            (Aim::Link { suspected: true } | Aim::Probe { .. }, Some(known)) => {
                std::slice::from_ref(known)
            }
            _ => all,
        };
        let dial = Dial::new(&self.start.id, to, greeting, Instant::now() + patience);
        self.calls.push(Call { dial: dial.where_open(), peer, aim });
    }

    /// Take in those who have proved themselves at the gate.
    fn admit(&mut self) {
        for proved in self.start.gate.advance() {
            let greeting = &proved.greeting;
            let peer = greeting.rank as usize;
            let fits = greeting.nranks as usize == self.start.pages.nranks()
                && peer < self.start.pages.nranks()
                && peer != self.start.rank;
            match (greeting.purpose, greeting.lane) {
                (Purpose::Data, _) if fits => self.deliver(peer, proved),
                (Purpose::Control, LINK) if fits && peer < self.start.rank => {
                    let number = greeting.note;
                    self.link(peer, number, proved);
                }
                (Purpose::Control, PROBE) if fits && peer > self.start.rank => {
                    // It has lost a connection that this end may still believe in.
                    let number = greeting.note;
                    if self.gossip.is_linked(peer) && self.neighbours[peer].number <= number {
                        self.lost(peer);
                    }
                }
                _ => {}
            }
        }
    }

    fn deliver(&self, peer: usize, proved: Proved) {
        let keys = LaneKeys { send: proved.keys.send, receive: proved.keys.receive };
        self.start.inbox.push(NewLane { peer, socket: proved.socket, keys });
    }

    fn link(&mut self, peer: usize, number: u64, proved: Proved) {
        watch_other_end(proved.socket.as_raw_fd());
        self.gossip.connected(peer, &proved.keys.send, &proved.keys.receive);
        self.calls.retain(|call| call.peer != peer || matches!(call.aim, Aim::Data { .. }));
        // Who came has a port of its own there; its gate is at the same address.
        let ip = proved.address.ip().to_canonical();
        let mut gates = self.start.addresses[peer].iter();
        let address = gates.find(|gate| gate.ip().to_canonical() == ip).copied();
        let socket = Some(TcpStream::from(proved.socket));
        self.neighbours[peer] =
            Neighbour { socket, number, probe_at: None, is_full: false, address };
    }

    fn advance_calls(&mut self) {
        for mut call in std::mem::take(&mut self.calls) {
            let (peer, aim) = (call.peer, call.aim);
            match (call.dial.advance(), aim) {
                (Ok(None), _) => self.calls.push(call),
                (Ok(Some(proved)), Aim::Data { .. }) => self.deliver(peer, proved),
                (Ok(Some(proved)), Aim::Link { .. }) => {
                    let number = proved.greeting.note;
                    self.link(peer, number, proved);
                }
                (Ok(Some(_)), Aim::Probe { .. }) => {
                    self.neighbours[peer].probe_at = Some(Instant::now() + FIRST_LINK);
                }
                (Err(why), Aim::Data { .. }) => self.start.inbox.fail(peer, why.to_string()),
                (Err(why), Aim::Link { suspected: false } | Aim::Probe { suspected: false })
                    if !is_refusal(&why) =>
                {
                    // Never seen, so not missed: the calls that need it have a deadline.
                    self.neighbours[peer].probe_at = Some(Instant::now() + FIRST_LINK);
                }
                (Err(_), Aim::Link { .. } | Aim::Probe { .. }) => self.bury(peer),
            }
        }
        self.apply_news();
    }

    /// A rank that nobody answers for, unless it has said goodbye.
    fn bury(&mut self, peer: usize) {
        self.neighbours[peer].probe_at = None;
        if !self.gossip.has_left(peer) {
            self.gossip.died(peer);
        }
    }

    /// The connection with a neighbour broke.
    fn lost(&mut self, peer: usize) {
        self.neighbours[peer].socket = None;
        self.gossip.closed(peer);
        if self.gossip.has_left(peer) || self.gossip.is_gone(peer) {
            return;
        }
        let lower = self.start.rank < peer;
        let suspected = true;
        self.call(peer, if lower { Aim::Link { suspected } } else { Aim::Probe { suspected } });
    }

    fn read_all(&mut self) {
        let mut bytes = [0; 16 << 10];
        for peer in std::mem::take(&mut self.polled) {
            while let Some(socket) = &mut self.neighbours[peer].socket {
                let outcome = match socket.read(&mut bytes) {
                    Ok(0) => Err(ErrorKind::UnexpectedEof),
                    Ok(count) => self
                        .gossip
                        .received(peer, &bytes[..count])
                        .map_err(|_| ErrorKind::InvalidData),
                    Err(error) => Err(error.kind()),
                };
                match outcome {
                    Ok(()) => {}
                    Err(ErrorKind::WouldBlock) => break,
                    Err(ErrorKind::Interrupted) => {}
                    Err(kind) => self.broken(peer, kind),
                }
            }
        }
        self.apply_news();
    }

    fn broken(&mut self, peer: usize, kind: ErrorKind) {
        self.apply_news();
        self.lost(peer);
        if kind == ErrorKind::TimedOut {
            // The kernel has tried for seconds already.
            self.calls.retain(|call| call.peer != peer || matches!(call.aim, Aim::Data { .. }));
            self.bury(peer);
        }
    }

    /// Write what there is news of onto the mirrors.
    fn apply_news(&mut self) {
        let mut wakes = false;
        let mut asked = false;
        for news in self.gossip.take_news() {
            match news {
                News::Status(rank) => {
                    let Some(status) = self.gossip.status(rank) else { continue };
                    if self.start.remote[rank] {
                        wakes |= status.reflect(self.start.pages.of(rank));
                    }
                    // Somebody wonders what this rank is at.
                    let me = Some(self.start.rank as u32);
                    asked |= status.calls.iter().chain(&status.batch).any(|c| c.waiting_for == me);
                }
                News::Gone(rank) => {
                    self.neighbours[rank].socket = None;
                    self.gossip.closed(rank);
                    if self.start.remote[rank] {
                        self.start.pages.of(rank).mark_gone();
                        wakes = true;
                    }
                }
            }
        }
        if asked {
            self.publish();
        }
        if wakes {
            wait::ring_bell(&self.start.pages.mine().bell);
            self.start.inbox.wake();
        }
    }

    /// See that there is a connection with every neighbour, or a call to it.
    fn tend(&mut self) {
        let now = Instant::now();
        let neighbours = self.gossip.neighbours();
        for peer in 0..self.neighbours.len() {
            let calls = |call: &Call| call.peer == peer && !matches!(call.aim, Aim::Data { .. });
            let at = self.neighbours[peer].probe_at.take();
            if neighbours.binary_search(&peer).is_err()
                || self.gossip.is_linked(peer)
                || self.calls.iter().any(calls)
            {
                continue;
            }
            let lower = self.start.rank < peer;
            match at {
                Some(at) if now < at => self.neighbours[peer].probe_at = Some(at),
                None if !lower => self.neighbours[peer].probe_at = Some(now + FIRST_LINK),
                _ if lower => self.call(peer, Aim::Link { suspected: false }),
                // A rank that waits to be connected counts connections, not attempts.
                _ => self.call(peer, Aim::Probe { suspected: self.neighbours[peer].number > 0 }),
            }
        }
    }

    fn beat(&mut self) {
        let now = Instant::now();
        if now < self.next_beat {
            return;
        }
        self.next_beat = now + BEAT;
        (0..self.neighbours.len()).for_each(|peer| self.gossip.beat(peer));
    }

    /// Give the sockets what they take; whether they took everything.
    fn write_all(&mut self) -> bool {
        let mut all = true;
        for peer in 0..self.neighbours.len() {
            loop {
                let neighbour = &mut self.neighbours[peer];
                let Some(socket) = &mut neighbour.socket else { break };
                let bytes = self.gossip.outgoing(peer);
                neighbour.is_full = !bytes.is_empty();
                if bytes.is_empty() {
                    break;
                }
                match socket.write(bytes) {
                    Ok(count) => self.gossip.sent(peer, count),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Where it broke, reading says so.
                    Err(_) => {
                        all = false;
                        break;
                    }
                }
            }
        }
        all
    }
}

/// The process behind a gate is gone.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::System { errno: libc::ECONNREFUSED, .. })
}
