//! A rendezvous of a hundred thousand ranks: the real protocol, message by message, on a virtual
//! clock.
//!
//! Bytes are counted, not moved, and a handshake is a time that was measured: to run every byte and
//! every exchange of keys would take an hour. Every rank has one core and one network interface,
//! and both do one thing after the other; this is what makes the root the narrow place.

use crate::bootstrap::allgather::client::AllgatherClient;
use crate::bootstrap::allgather::message::{AllgatherMessage, NO_RANK, PeerId};
use crate::bootstrap::allgather::protocol::{ConnectionId, TreeAction, TreeEvent};
use crate::bootstrap::allgather::root::AllgatherRoot;
use crate::bootstrap::tcp::handshake::{ANSWER, HELLO, PROOF};
use crate::bootstrap::tcp::hello::{ANYONE, Hello, Purpose};
use crate::bootstrap::tcp::secure_frame::OVERHEAD;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// One way through a data centre's network.
const LATENCY: u64 = 25_000;
/// A handshake on one side, in nanoseconds: two products on Curve25519 and some hashes, as
/// processor time on a Zen 5 core at 2.6 GHz.
const HANDSHAKE: u64 = 100_000;
/// One message through the kernel.
const MESSAGE: u64 = 3_000;
/// A nanosecond a byte, to seal or to open it: ChaCha20-Poly1305 keeps a core busier than a network
/// of 25 Gbit/s keeps its interface.
const BYTE: u64 = 1;
/// What a rank contributes: the card of one with a single address and a host name of eleven
/// letters, as the communicator's own test of cards has it.
pub const CARD: usize = 278;

enum Core {
    Root(Box<AllgatherRoot>),
    Member(Box<AllgatherClient>),
}

enum What {
    Start,
    /// A call's hello; the number is the caller's link.
    Call {
        from: usize,
        link: ConnectionId,
    },
    Reached {
        link: ConnectionId,
        peer: usize,
        theirs: ConnectionId,
    },
    Said {
        link: ConnectionId,
        message: AllgatherMessage,
    },
}

struct Rank {
    core: Option<Core>,
    /// When the core, and the interface outwards, have done what they were given.
    core_free: u64,
    line_free: u64,
    links: BTreeMap<ConnectionId, (usize, ConnectionId)>,
    next: ConnectionId,
    bytes: u64,
}

struct Job {
    ranks: Vec<Rank>,
    /// When, in which order, at whom; the content lies in `contents`.
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    contents: BTreeMap<u64, What>,
    count: u64,
    now: u64,
    base: Instant,
    finished: usize,
}

fn address(rank: usize) -> SocketAddr {
    SocketAddr::from(((rank as u32 + 1).to_be_bytes(), 4000))
}

fn rank_at(address: &SocketAddr) -> usize {
    match address.ip() {
        std::net::IpAddr::V4(ip) => u32::from(ip) as usize - 1,
        std::net::IpAddr::V6(_) => unreachable!("all addresses are IPv4"),
    }
}

fn length(message: &AllgatherMessage) -> usize {
    let length = match message {
        AllgatherMessage::Offers(body) | AllgatherMessage::Table { body, .. } => 1 + body.len(),
        other => other.encode().len(),
    };
    length + OVERHEAD
}

impl Job {
    fn new(nranks: usize) -> Job {
        let base = Instant::now();
        let rank = |_| Rank {
            core: None,
            core_free: 0,
            line_free: 0,
            links: BTreeMap::new(),
            next: 1,
            bytes: 0,
        };
        let ranks = (0..nranks).map(rank).collect();
        let (heap, contents) = (BinaryHeap::new(), BTreeMap::new());
        let mut job = Job { ranks, heap, contents, count: 0, now: 0, base, finished: 0 };
        for rank in 0..nranks {
            // A job's processes start within a second of each other.
            let at = (rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000_000;
            job.schedule(if rank == 0 { 0 } else { at }, rank, What::Start);
        }
        job
    }

    fn schedule(&mut self, at: u64, whom: usize, what: What) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count, whom)));
        self.contents.insert(self.count, what);
    }

    fn time(&self) -> Instant {
        self.base + Duration::from_nanos(self.now)
    }

    /// Let a rank's core do something; when it is done.
    fn compute(&mut self, rank: usize, nanoseconds: u64) -> u64 {
        let rank = &mut self.ranks[rank];
        rank.core_free = rank.core_free.max(self.now) + nanoseconds;
        rank.core_free
    }

    fn run(&mut self) -> u64 {
        while let Some(Reverse((at, number, whom))) = self.heap.pop() {
            self.now = at;
            let what = self.contents.remove(&number).expect("it was scheduled");
            self.happen(whom, what);
        }
        self.now
    }

    fn happen(&mut self, whom: usize, what: What) {
        match what {
            What::Start => self.start(whom),
            What::Call { from, link } => {
                let done = self.compute(whom, HANDSHAKE);
                let theirs = self.ranks[whom].next;
                self.ranks[whom].next += 1;
                self.ranks[whom].links.insert(theirs, (from, link));
                self.ranks[whom].bytes += (HELLO + PROOF + ANSWER + PROOF) as u64;
                let reached = What::Reached { link, peer: whom, theirs };
                // Answer, proof and welcome.
                self.schedule(done + 3 * LATENCY, from, reached);
                let (purpose, to) = (Purpose::Meet, ANYONE);
                let nranks = self.ranks.len() as u32;
                let (rank, detail, note) = (from as u32, from as u32, from as u64);
                let greeting = Hello { purpose, rank, to, nranks, detail, note };
                self.feed(whom, TreeEvent::Came { link: theirs, greeting, took: Duration::ZERO });
            }
            What::Reached { link, peer, theirs } => {
                self.compute(whom, HANDSHAKE);
                self.ranks[whom].bytes += (HELLO + PROOF + ANSWER + PROOF) as u64;
                self.ranks[whom].links.insert(link, (peer, theirs));
                self.feed(whom, TreeEvent::Reached { link });
            }
            What::Said { link, message } => {
                let bytes = length(&message) as u64;
                self.ranks[whom].bytes += bytes;
                self.compute(whom, MESSAGE + bytes * BYTE);
                self.feed(whom, TreeEvent::Said { link, message });
            }
        }
    }

    fn start(&mut self, rank: usize) {
        let (now, nranks) = (self.time(), self.ranks.len());
        let deadline = now + Duration::from_secs(3600);
        let me = PeerId { rank: rank as u32, pid: rank as u32 };
        let mine = [rank as u8; CARD];
        let core = if rank == 0 {
            Core::Root(Box::new(AllgatherRoot::of(me, nranks, &mine, now, deadline)))
        } else {
            let (own, root) = ([address(rank)], [address(0)]);
            Core::Member(Box::new(AllgatherClient::new(
                me, nranks, &mine, &own, &root, now, deadline,
            )))
        };
        assert_ne!(me.rank, NO_RANK);
        self.ranks[rank].core = Some(core);
        self.act(rank);
    }

    fn feed(&mut self, rank: usize, event: TreeEvent) {
        let now = self.time();
        match &mut self.ranks[rank].core {
            Some(Core::Root(registry)) => registry.on(event, now),
            Some(Core::Member(member)) => member.on(event, now),
            None => return,
        }
        self.act(rank);
    }

    fn act(&mut self, rank: usize) {
        let (actions, outcome) = match self.ranks[rank].core.as_mut().expect("it acts") {
            Core::Root(registry) => (registry.take_actions(), registry.outcome()),
            Core::Member(member) => (member.take_actions(), member.outcome()),
        };
        let over = outcome.map(|outcome| outcome.clone().expect("nothing fails here"));
        for action in actions {
            match action {
                TreeAction::Say { link, message } => {
                    let bytes = length(&message) as u64;
                    let work = self.compute(rank, MESSAGE + bytes * BYTE);
                    let this = &mut self.ranks[rank];
                    this.bytes += bytes;
                    this.line_free = this.line_free.max(work);
                    let (peer, theirs) = this.links[&link];
                    let at = this.line_free + LATENCY;
                    self.schedule(at, peer, What::Said { link: theirs, message });
                }
                TreeAction::Dial { to, .. } => {
                    let link = self.ranks[rank].next;
                    self.ranks[rank].next += 1;
                    // Three ways to connect and say hello.
                    let at = self.now + 3 * LATENCY;
                    self.schedule(at, rank_at(&to[0]), What::Call { from: rank, link });
                }
                // What was said is on its way, and nobody here loses a connection.
                TreeAction::Hang { .. } => {}
            }
        }
        if over.is_some() {
            self.ranks[rank].core = None;
            self.finished += 1;
        }
    }
}

fn simulate(nranks: usize) {
    let mut job = Job::new(nranks);
    let end = job.run();
    assert_eq!(job.finished, nranks, "ranks that never met");
    let mut bytes: Vec<u64> = job.ranks.iter().map(|rank| rank.bytes).collect();
    let (root, mean) = (bytes[0], bytes.iter().sum::<u64>() / nranks as u64);
    bytes.sort_unstable();
    println!(
        "{nranks} ranks met in {:.3} s of virtual time, started within one; bytes a rank, sent and \
         received: mean {mean}, median {}, root {root}, of which the table is {}",
        end as f64 / 1e9,
        bytes[nranks / 2],
        nranks * (CARD + 12),
    );
}

/// The time is the root's, one handshake a rank; the bytes are the table, in once and out to
/// as many ranks as are below.
#[test]
fn a_hundred_thousand_ranks_meet() {
    let most = std::env::var("RINGCOMM_RANKS").map_or(10_000, |ranks| ranks.parse().unwrap());
    for nranks in [2, 64, 1024, most] {
        simulate(nranks);
    }
}
