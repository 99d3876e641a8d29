//! The control plane of one rank: whom it calls, whom it takes for dead, what it tells.
//!
//! The lower rank of two neighbours makes their connection, and makes it again if it breaks. Who
//! cannot reach a rank whose connection has broken declares it dead: at once where its listener
//! refuses (the process is gone), at the end of [`SUSPICION`] where nothing answers; and so does
//! who was never connected with it, once nobody has answered for as long as a dial waits. The
//! higher rank, which waits to be connected, calls only to see whether somebody answers
//! ([`Aim::Probe`]). A rank that is stopped answers nothing either, but its kernel keeps its
//! connections, so none breaks: what it has yet to read is bounded ([`Gossip`]), so that its window
//! stays open.
//!
//! No sockets and no clock in here: it is fed with streams and time, by the control thread or by
//! the simulation.

use super::gossip::{Gossip, News};
use super::status::Status;
use crate::bootstrap::tcp::{
    ByteStream, Connecting, Hello, Network, ProvenConnection, Purpose, SharedSecret,
};
use crate::error::Result;
use crate::executor::links::Pages;
use crate::transport::wait;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

#[path = "peer_query.rs"]
mod peer_query;
#[path = "shutdown.rs"]
mod shutdown;
#[path = "unreached_peer.rs"]
mod unreached_peer;
use peer_query::Inquiries;
use shutdown::ShutdownStage;

/// How long a rank whose connection broke may take to answer: a new connection over a wide network
/// takes a tenth, with a lost first packet (sent again after a second) half of it.
const SUSPICION: Duration = Duration::from_secs(3);

/// How long the lower of two ranks may take to connect before the higher looks after it: it may
/// have died since they met, and its survivors name it within a quarter of a second. A call in vain
/// costs a handshake.
const FIRST_LINK: Duration = Duration::from_millis(30);

/// Between two signs of life: the kernel can only miss acknowledgements of what was sent.
const BEAT: Duration = Duration::from_millis(500);

/// What a call to another rank's listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// To be neighbours. `suspected`: the connection before it broke.
    Link { suspected: bool },
    /// To see whether the rank is there. `suspected`: there was a connection.
    Probe { suspected: bool },
    /// To carry data.
    Data { data_socket: u32 },
    /// To hear why a connection for data has ended.
    Ask,
}

impl Aim {
    /// Whether it is a neighbour's affair, of which there is one call at a time.
    fn is_of_neighbours(self) -> bool {
        matches!(self, Aim::Link { .. } | Aim::Probe { .. })
    }
}

struct OutgoingConnection<S> {
    dial: Connecting<S>,
    peer: usize,
    aim: Aim,
}

/// This rank's side of the connection with a neighbour.
struct Neighbour<S> {
    stream: Option<S>,
    /// Connections so far, as their maker counts them.
    number: u64,
    /// When it is time to see whether the neighbour is there.
    probe_at: Option<Instant>,
    /// When its listener first refused, before any connection.
    refused: Option<Instant>,
    /// The stream took less than there was.
    is_full: bool,
    /// Where it was reached, or where it came from: the one address that is known to be right.
    address: Option<SocketAddr>,
}

impl<S> Default for Neighbour<S> {
    fn default() -> Neighbour<S> {
        let (stream, probe_at, refused, address) = (None, None, None, None);
        Neighbour { stream, number: 0, probe_at, refused, is_full: false, address }
    }
}

/// Who a rank is, and what it knows of the others from their rendezvous.
pub struct ControlIdentity {
    pub rank: usize,
    pub secret: SharedSecret,
    /// Where each rank's listener is.
    pub addresses: Vec<Vec<SocketAddr>>,
    /// By rank: on another machine, its page is a mirror.
    pub remote: Vec<bool>,
    pub pages: Pages,
    /// The longest that a connection may take to come about.
    pub timeout: Duration,
}

/// A connection for the data plane, or why there is none.
pub struct DataConnection<S> {
    pub peer: usize,
    pub outcome: Result<ProvenConnection<S>>,
}

pub struct Plane<N: Network> {
    seat: ControlIdentity,
    network: N,
    gossip: Gossip,
    neighbours: Vec<Neighbour<N::Stream>>,
    calls: Vec<OutgoingConnection<N::Stream>>,
    data_sockets: Vec<DataConnection<N::Stream>>,
    inquiries: Inquiries<N::Stream>,
    next_beat: Instant,
    /// When the current pass began.
    now: Instant,
    stage: ShutdownStage,
    /// Somebody's life has changed in the current pass.
    wakes: bool,
}

/// In a control connection's greeting: what the call is for.
const LINK: u32 = 0;
const PROBE: u32 = 1;
const ASK: u32 = 2;

impl<N: Network> Plane<N> {
    pub fn new(seat: ControlIdentity, network: N, now: Instant) -> Plane<N> {
        let nranks = seat.pages.nranks();
        Plane {
            gossip: Gossip::new(seat.rank, nranks),
            neighbours: (0..nranks).map(|_| Neighbour::default()).collect(),
            calls: Vec::new(),
            data_sockets: Vec::new(),
            inquiries: Inquiries::new(),
            next_beat: now + BEAT,
            now,
            stage: ShutdownStage::Working,
            wakes: false,
            seat,
            network,
        }
    }

    /// Go on with those who have proved themselves at the listener, and with what has come from the
    /// neighbours that are `readable`; whether somebody's life has changed.
    pub fn advance(
        &mut self,
        now: Instant,
        arrivals: Vec<ProvenConnection<N::Stream>>,
        readable: &[usize],
    ) -> bool {
        self.now = now;
        if self.receives() {
            self.admit(arrivals);
            self.advance_calls();
            self.read_all(readable);
            self.advance_inquiries();
            self.tend();
            self.beat();
            self.write_all();
        }
        self.advance_farewell();
        std::mem::take(&mut self.wakes)
    }

    /// When [`Plane::advance`] has something to do though nothing arrives.
    pub fn next_deadline(&self) -> Instant {
        if let Some(until) = self.farewell_until() {
            return until;
        }
        let dials = self.calls.iter().map(|call| call.dial.next_deadline());
        let probes = self.neighbours.iter().filter_map(|neighbour| neighbour.probe_at);
        let linked = self.links_until();
        dials.chain(probes).chain(linked).fold(self.next_beat, Instant::min)
    }

    /// The streams of calls and questions that are under way, with whether they have something to
    /// send.
    pub fn calls(&self) -> impl Iterator<Item = (&N::Stream, bool)> {
        let dials = self.calls.iter().flat_map(|call| call.dial.streams());
        dials.chain(self.inquiries.streams()).filter(|_| self.receives())
    }

    /// The connections with neighbours: whose, the stream, and whether it is to be written to.
    pub fn links(&self) -> impl Iterator<Item = (usize, &N::Stream, bool)> {
        self.neighbours.iter().enumerate().filter_map(|(peer, neighbour)| {
            Some((peer, neighbour.stream.as_ref()?, neighbour.is_full))
        })
    }

    /// What has become of connections for the data plane.
    pub fn take_data_connections(&mut self) -> Vec<DataConnection<N::Stream>> {
        std::mem::take(&mut self.data_sockets)
    }

    /// Tell what this rank's page says.
    pub fn publish(&mut self) {
        self.gossip.publish(Status::of(self.seat.pages.mine()));
    }

    /// Make `data_sockets` connections with a peer for the data plane.
    pub fn connect(&mut self, peer: usize, data_sockets: u32, now: Instant) {
        self.now = now;
        (0..data_sockets).for_each(|data_socket| self.call(peer, Aim::Data { data_socket }));
    }

    /// Break every connection with a neighbour.
    #[cfg(test)]
    pub fn cut(&mut self) {
        (0..self.neighbours.len())
            .filter(|peer| self.neighbours[*peer].stream.is_some())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|peer| self.broken(peer, ErrorKind::UnexpectedEof));
    }

    fn call(&mut self, peer: usize, aim: Aim) {
        let (purpose, detail, patience) = match aim {
            Aim::Link { suspected: true } => (Purpose::Control, LINK, SUSPICION),
            Aim::Link { suspected: false } => (Purpose::Control, LINK, self.seat.timeout),
            Aim::Probe { suspected: true } => (Purpose::Control, PROBE, SUSPICION),
            Aim::Probe { suspected: false } => (Purpose::Control, PROBE, self.seat.timeout),
            Aim::Data { data_socket } => (Purpose::Data, data_socket, self.seat.timeout),
            Aim::Ask => (Purpose::Control, ASK, SUSPICION),
        };
        let neighbour = &mut self.neighbours[peer];
        if matches!(aim, Aim::Link { .. }) {
            neighbour.number += 1;
        }
        let greeting = Hello {
            purpose,
            rank: self.seat.rank as u32,
            to: peer as u32,
            nranks: self.seat.pages.nranks() as u32,
            detail,
            note: neighbour.number,
        };
        let all = &self.seat.addresses[peer];
        let to = match (aim, &neighbour.address) {
            (Aim::Link { suspected: true } | Aim::Probe { .. } | Aim::Ask, Some(known)) => {
                std::slice::from_ref(known)
            }
            _ => all,
        };
        let (to, secret) = (self.network.routes(to), self.seat.secret.clone());
        let dial = Connecting::new(secret, &to, greeting, self.now, self.now + patience);
        self.calls.push(OutgoingConnection { dial: dial.fail_if_refused(), peer, aim });
    }

    /// Take in those who have proved themselves at the listener.
    fn admit(&mut self, arrivals: Vec<ProvenConnection<N::Stream>>) {
        let (rank, nranks) = (self.seat.rank, self.seat.pages.nranks());
        for arrival in arrivals {
            let greeting = &arrival.greeting;
            let (peer, number) = (greeting.rank as usize, greeting.note);
            let fits = greeting.nranks as usize == nranks && peer < nranks && peer != rank;
            match (greeting.purpose, greeting.detail) {
                (Purpose::Data, _) if fits => {
                    self.data_sockets.push(DataConnection { peer, outcome: Ok(arrival) });
                }
                (Purpose::Control, LINK) if fits && peer < rank => self.link(peer, arrival),
                (Purpose::Control, ASK) if fits => self.answer(arrival),
                // It has lost a connection that this end may still believe in.
                (Purpose::Control, PROBE)
                    if fits
                        && peer > rank
                        && self.gossip.is_linked(peer)
                        && self.neighbours[peer].number <= number =>
                {
                    self.lost(peer);
                }
                _ => {}
            }
        }
    }

    fn link(&mut self, peer: usize, arrival: ProvenConnection<N::Stream>) {
        let ProvenConnection { stream, greeting, keys, address, .. } = arrival;
        if self.gossip.is_linked(peer) && greeting.note < self.neighbours[peer].number {
            // Made before the one that there is, and let in after it.
            return;
        }
        self.network.watch(&stream);
        self.gossip.connected(peer, &keys.send, &keys.receive);
        self.calls.retain(|call| call.peer != peer || !call.aim.is_of_neighbours());
        // Who came has a port of its own there; its listener is at the same address.
        let ip = address.ip().to_canonical();
        let mut listeners = self.seat.addresses[peer].iter();
        let address = listeners.find(|listener| listener.ip().to_canonical() == ip).copied();
        let (stream, number) = (Some(stream), greeting.note);
        self.neighbours[peer] = Neighbour { stream, number, address, ..Neighbour::default() };
    }

    fn advance_calls(&mut self) {
        for mut call in std::mem::take(&mut self.calls) {
            let (peer, aim) = (call.peer, call.aim);
            match (call.dial.advance(self.now, &mut self.network), aim) {
                (Ok(None), _) => self.calls.push(call),
                (Ok(Some(arrival)), Aim::Data { .. }) => {
                    self.data_sockets.push(DataConnection { peer, outcome: Ok(arrival) });
                }
                (Ok(Some(arrival)), Aim::Ask) => self.await_answer(peer, arrival),
                // Where its process is gone the others tell.
                (Err(_), Aim::Ask) => {}
                (Ok(Some(arrival)), Aim::Link { .. }) => self.link(peer, arrival),
                (Ok(Some(_)), Aim::Probe { .. }) => {
                    self.neighbours[peer].refused = None;
                    self.neighbours[peer].probe_at = Some(self.now + FIRST_LINK);
                }
                (Err(why), Aim::Data { .. }) => {
                    self.data_sockets.push(DataConnection { peer, outcome: Err(why) });
                }
                (Err(why), Aim::Link { suspected: false } | Aim::Probe { suspected: false }) => {
                    self.called_in_vain(&call, &why);
                }
                (Err(_), Aim::Link { .. } | Aim::Probe { .. }) => self.bury(peer),
            }
        }
        self.apply_news();
    }

    /// A rank that nobody answers for any more, unless it has said goodbye.
    fn bury(&mut self, peer: usize) {
        self.neighbours[peer].probe_at = None;
        if !self.gossip.has_left(peer) {
            self.gossip.died(peer);
        }
    }

    /// The connection with a neighbour broke.
    fn lost(&mut self, peer: usize) {
        self.neighbours[peer].stream = None;
        self.gossip.closed(peer);
        if self.gossip.has_left(peer) || self.gossip.is_gone(peer) {
            return;
        }
        let lower = self.seat.rank < peer;
        let suspected = true;
        self.call(peer, if lower { Aim::Link { suspected } } else { Aim::Probe { suspected } });
    }

    fn read_all(&mut self, readable: &[usize]) {
        let mut bytes = [0; 16 << 10];
        for &peer in readable {
            while let Some(stream) = &mut self.neighbours[peer].stream {
                let outcome = match stream.receive(&mut bytes) {
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
            self.calls.retain(|call| call.peer != peer || !call.aim.is_of_neighbours());
            self.bury(peer);
        }
    }

    /// Write what there is news of onto the mirrors.
    fn apply_news(&mut self) {
        let mut asked = false;
        for news in self.gossip.take_news() {
            match news {
                News::Status(rank) => {
                    let Some(status) = self.gossip.status(rank) else { continue };
                    if self.seat.remote[rank] {
                        self.wakes |= status.reflect(self.seat.pages.of(rank));
                    }
                    // Somebody wonders what this rank is at.
                    let me = Some(self.seat.rank as u32);
                    asked |= status.calls.iter().chain(&status.batch).any(|c| c.waiting_for == me);
                }
                News::Gone(rank) => {
                    self.neighbours[rank].stream = None;
                    self.gossip.closed(rank);
                    if self.seat.remote[rank] {
                        let page = self.seat.pages.of(rank);
                        match self.gossip.obstacle(rank) {
                            Some((by, why)) => page.mark_unreached(by, why),
                            None => page.mark_gone(),
                        }
                        self.wakes = true;
                    }
                }
            }
        }
        if asked {
            self.publish();
        }
        if self.wakes {
            wait::ring_bell(&self.seat.pages.mine().bell);
        }
    }

    /// See that there is a connection with every neighbour, or a call to it.
    fn tend(&mut self) {
        let now = self.now;
        let neighbours = self.gossip.neighbours();
        for peer in 0..self.neighbours.len() {
            let mut calls = self.calls.iter().filter(|call| call.peer == peer);
            let is_called = calls.any(|call| call.aim.is_of_neighbours());
            let at = self.neighbours[peer].probe_at.take();
            if neighbours.binary_search(&peer).is_err() || self.gossip.is_linked(peer) || is_called
            {
                continue;
            }
            let lower = self.seat.rank < peer;
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
        let now = self.now;
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
                let Some(stream) = &mut neighbour.stream else { break };
                let bytes = self.gossip.outgoing(peer);
                neighbour.is_full = !bytes.is_empty();
                if bytes.is_empty() {
                    break;
                }
                match stream.send(bytes) {
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
