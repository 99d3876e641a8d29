//! TCP: it keeps the contract of transports over any number of sockets, however these cut and delay
//! the bytes; and what is damaged is found.

use super::conformance::{
    Network, Patience, Transfer as Way, content, keeps_the_contract, messages, stamp, transfer,
};
use proptest::prelude::*;
use ringcomm::config::Protection;
use ringcomm::error::{Error, RankProcess, Result as Outcome};
use ringcomm::executor::links::{Links, Reach, SegmentMap};
use ringcomm::executor::send_recv::{self, Transfer};
use ringcomm::executor::zero_copy::ZeroCopyPolicy;
use ringcomm::transport::fifo::FifoShape;
use ringcomm::transport::network::{Endpoint, Lengths};
use ringcomm::transport::segment::Segment;
use ringcomm::transport::tcp::{
    Connect, FRAME_BYTES, Frame, NewDataSocket, Settings, SocketInbox, SocketKeys, TcpEndpoint,
};
use ringcomm::transport::wait::{SpinPolicy, WaitCheck};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Makes no connections, and knows nothing of those that end.
struct Nobody(Arc<SocketInbox>);

impl Connect for Nobody {
    fn connect(&self, _peer: usize) {}

    fn ask(&self, peer: usize) {
        self.0.report_explained(peer);
    }
}

const LONG: Patience = Patience::LONG;
const GEOMETRY: FifoShape = FifoShape { depth: 4, slot_bytes: 1024 };
const LENGTHS: Lengths = Lengths { cut: 512, whole: 1024 };

fn settings(protection: Protection, data_sockets: usize) -> Settings {
    let (steps, messages) = (LENGTHS, LENGTHS);
    Settings { geometry: GEOMETRY, steps, messages, protection, data_sockets }
}

pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (there, listener.accept().unwrap().0)
}

fn data_socket(rank: usize, peer: usize, socket: TcpStream) -> NewDataSocket {
    socket.set_nonblocking(true).unwrap();
    socket.set_nodelay(true).unwrap();
    // The lower rank sends with the first key.
    let (a, b) = ([1; 32], [2; 32]);
    let keys = if rank < peer {
        SocketKeys { send: a, receive: b }
    } else {
        SocketKeys { send: b, receive: a }
    };
    NewDataSocket { peer, socket: OwnedFd::from(socket), keys }
}

/// Ranks 0 and 1 over `sockets`: what rank 0 holds of each, and what rank 1 does.
pub fn ends(sockets: Vec<(TcpStream, TcpStream)>, protection: Protection) -> [TcpEndpoint; 2] {
    mesh(sockets.into_iter().map(|pair| ([0, 1], pair)), protection)
}

/// Ranks over sockets between the two of each pair, which have equally many.
fn mesh<const N: usize>(
    sockets: impl ExactSizeIterator<Item = ([usize; 2], (TcpStream, TcpStream))>,
    protection: Protection,
) -> [TcpEndpoint; N] {
    let settings = settings(protection, sockets.len() / (N * (N - 1) / 2));
    let inboxes: [_; N] = std::array::from_fn(|_| Arc::new(SocketInbox::new().unwrap()));
    for ([a, b], (first, second)) in sockets {
        inboxes[a].push(data_socket(a, b, first));
        inboxes[b].push(data_socket(b, a, second));
    }
    std::array::from_fn(|rank| {
        let inbox = inboxes[rank].clone();
        TcpEndpoint::new(rank, N, settings, inbox.clone(), Box::new(Nobody(inbox)))
    })
}

/// TCP over loopback, guarded in a way, with so many sockets.
pub struct Tcp(pub Protection, pub usize);

impl Tcp {
    /// Each of the ranks, connected with all others.
    pub fn endpoints<const N: usize>(&self) -> [TcpEndpoint; N] {
        let pairs = (0..N).flat_map(|low| (low + 1..N).map(move |high| [low, high]));
        let pairs = Vec::from_iter(pairs).repeat(self.1);
        mesh(pairs.into_iter().map(|between| (between, pair())), self.0)
    }
}

impl Network for Tcp {
    fn name(&self) -> String {
        format!("TCP, {} sockets, {}", self.1, self.0.name())
    }

    fn ranks(&self) -> [Box<dyn Endpoint>; 2] {
        self.endpoints().map(|end| Box::new(end) as Box<dyn Endpoint>)
    }

    fn three_ranks(&self) -> [Box<dyn Endpoint>; 3] {
        self.endpoints().map(|end| Box::new(end) as Box<dyn Endpoint>)
    }
}

/// One socket, in clear.
pub fn loopback() -> [Box<dyn Endpoint>; 2] {
    Tcp(Protection::Clear, 1).ranks()
}

/// The same for three ranks.
pub fn three_on_loopback() -> [Box<dyn Endpoint>; 3] {
    Tcp(Protection::Clear, 1).three_ranks()
}

fn protections() -> [Protection; 3] {
    Protection::ALL
}

#[test]
fn tcp_keeps_the_contract_of_transports() {
    for protection in protections() {
        for sockets in [1, 3] {
            keeps_the_contract(&Tcp(protection, sockets), LONG);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_message_arrives_once_in_order_unchanged(
        messages in messages(GEOMETRY.slot_bytes),
        sockets in 1usize..4,
        protection in prop::sample::select(protections().to_vec()),
    ) {
        transfer(LONG, &mut Tcp(protection, sockets).ranks(), &messages);
    }
}

/// A connection through a middleman that passes bytes on in `piece`s, and flips a bit of byte `at`.
fn through(piece: usize, at: Option<usize>) -> (TcpStream, TcpStream) {
    let ((first, mut near), (mut far, second)) = (pair(), pair());
    std::thread::spawn(move || {
        let (mut passed, mut bytes) = (0, vec![0; piece]);
        while let Ok(got @ 1..) = near.read(&mut bytes) {
            if let Some(at) = at.filter(|at| (passed..passed + got).contains(at)) {
                bytes[at - passed] ^= 0x10;
            }
            passed += got;
            if far.write_all(&bytes[..got]).is_err() {
                return;
            }
        }
    });
    (first, second)
}

#[test]
fn bytes_that_come_in_small_pieces_and_on_slow_sockets_are_put_together() {
    let messages: Vec<Way> =
        (0..100).map(|i| ([3, 1000, 64, 0][i % 4], i % 3 == 0, i % 2 == 0)).collect();
    for protection in [Protection::Checksum, Protection::Encrypted] {
        let sockets = vec![pair(), through(7, None), through(100, None)];
        let mut ranks = ends(sockets, protection).map(|end| Box::new(end) as Box<dyn Endpoint>);
        transfer(LONG, &mut ranks, &messages);
    }
}

/// Read what has come; the positions of the messages that are whole are added.
fn read_positions(socket: &mut TcpStream, rest: &mut Vec<u8>, positions: &mut Vec<u64>) {
    let mut bytes = [0; 4096];
    while let Ok(got @ 1..) = socket.read(&mut bytes) {
        rest.extend(&bytes[..got]);
        while let Some(header) = rest.first_chunk::<FRAME_BYTES>() {
            let frame = Frame::decode(header).unwrap();
            let whole = FRAME_BYTES + frame.length as usize;
            if rest.len() < whole {
                break;
            }
            positions.push(frame.position);
            rest.drain(..whole);
        }
    }
}

#[test]
fn a_socket_that_is_full_holds_one_message_and_the_other_carries_what_comes_after() {
    let ((full, unread), (free, mut read)) = (pair(), pair());
    read.set_nonblocking(true).unwrap();
    let inbox = Arc::new(SocketInbox::new().unwrap());
    // The one that is asked first fills up.
    inbox.push(data_socket(0, 1, full));
    inbox.push(data_socket(0, 1, free));
    let settings = settings(Protection::Clear, 2);
    let mut network = TcpEndpoint::new(0, 2, settings, inbox.clone(), Box::new(Nobody(inbox)));
    let connection = network.connection(1);
    let (mut posted, mut rest, mut positions) = (0, Vec::new(), Vec::new());
    LONG.until(|| {
        while let Some(slot) = connection.try_reserve(GEOMETRY.slot_bytes) {
            // SAFETY: the slot was reserved for as many bytes.
            unsafe { slot.write_bytes(7, GEOMETRY.slot_bytes) };
            connection.post(&stamp(posted), GEOMETRY.slot_bytes);
            posted += 1;
        }
        read_positions(&mut read, &mut rest, &mut positions);
        // All slots are taken, for the oldest message is not written: the full data_socket has it.
        let behind: Vec<u64> = (posted - GEOMETRY.depth as u64 + 1..posted).collect();
        positions.ends_with(&behind).then_some(())
    });
    drop(unread);
}

/// Send a message of 500 bytes with byte `at` of the stream damaged; why the receiver's connection
/// broke, or what it received.
fn damaged(protection: Protection, at: usize) -> Result<Vec<u8>, String> {
    let [mut sender, mut receiver] = ends(vec![through(4096, Some(at))], protection);
    let bytes = content(0, 500);
    // SAFETY: the bytes outlive the flush.
    assert!(unsafe { sender.connection(1).send_from(&stamp(0), bytes.as_ptr(), 500) });
    LONG.until(|| {
        let connection = receiver.connection(0);
        if let Some((message, _)) = connection.peek() {
            // SAFETY: the message is not freed.
            let got = unsafe { std::slice::from_raw_parts(message.payload, message.length) };
            return Some(Ok(got.to_vec()));
        }
        receiver.failure(0).map(|why| Err(why.to_string()))
    })
}

#[test]
fn damage_anywhere_is_found() {
    for at in [0, 5, 20, 51, 52, 300, 551] {
        for protection in [Protection::Checksum, Protection::Encrypted] {
            let why = damaged(protection, at).unwrap_err();
            let told = ["damaged", "sealed", "begin"].iter().any(|word| why.contains(word));
            assert!(told, "byte {at}, {protection:?}: {why}");
        }
    }
    // Without a checksum the header's own still holds; the payload arrives as it came.
    assert!(damaged(Protection::Clear, 20).is_err());
    assert_ne!(damaged(Protection::Clear, 300).unwrap(), content(0, 500));
}

#[test]
fn an_encrypted_stream_shows_nothing_of_its_payload() {
    let (first, mut tap) = pair();
    let [mut sender, _] = ends(vec![(first, pair().0)], Protection::Encrypted);
    // SAFETY: static bytes.
    assert!(unsafe { sender.connection(1).send_from(&stamp(0), [b'x'; 500].as_ptr(), 500) });
    let mut seen = [0; 52 + 500 + 16];
    tap.read_exact(&mut seen).unwrap();
    assert!(!seen.windows(4).any(|four| four == b"xxxx"), "the payload is in clear");
}

#[test]
fn a_closed_connection_says_so() {
    let (first, second) = pair();
    let [mut sender, receiver] = ends(vec![(first, second)], Protection::Checksum);
    sender.connection(1);
    drop(receiver);
    let why = LONG.until(|| {
        let connection = sender.connection(1);
        assert!(connection.peek().is_none());
        sender.failure(1).map(str::to_string)
    });
    // The receiver's end is dropped with its inbox, closed or reset.
    assert!(why.contains("closed") || why.contains("reset"), "{why}");
}

/// Counts how often it is asked why a connection has ended.
struct Asked(Arc<AtomicUsize>);

impl Connect for Asked {
    fn connect(&self, _peer: usize) {}

    fn ask(&self, _peer: usize) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn others_are_asked_once_why_a_connection_has_ended_and_nobody_waits_after_the_answer() {
    let (first, second) = pair();
    let (inbox, asked) = (Arc::new(SocketInbox::new().unwrap()), Arc::new(AtomicUsize::new(0)));
    inbox.push(data_socket(0, 1, first));
    let settings = settings(Protection::Checksum, 1);
    let connect = Box::new(Asked(asked.clone()));
    let mut network = TcpEndpoint::new(0, 2, settings, inbox.clone(), connect);
    drop(second);
    LONG.until(|| {
        assert!(network.connection(1).peek().is_none());
        network.tcp_connection(1).is_broken().then_some(())
    });
    for _ in 0..3 {
        network.failure(1);
    }
    assert_eq!(asked.load(Relaxed), 1);
    inbox.report_explained(1);
    assert!(network.failure(1).is_some());
}

/// Gives up after half a minute, as an operation does at its deadline.
struct Deadline;

impl WaitCheck for Deadline {
    fn check(&self, _: usize, waited: Duration) -> Outcome<()> {
        match waited < Duration::from_secs(30) {
            true => Ok(()),
            false => Err(Error::Internal("nobody noticed".into())),
        }
    }
}

#[test]
fn a_batch_that_only_sends_notices_that_the_connection_broke() {
    let map = SegmentMap::new(2, GEOMETRY);
    let segments = [map.bytes(), SegmentMap::mirror_bytes()]
        .map(|bytes| Arc::new(Segment::anonymous(bytes).unwrap()));
    let reach = [Reach::Process, Reach::Network];
    let mut links = Links::new(0, map, segments.to_vec(), &reach, SpinPolicy::new(2, 2, None));
    let [mine, theirs] = ends(vec![pair()], Protection::Clear);
    links.attach(Box::new(mine));
    // The sockets of the other end close.
    drop(theirs);
    let mut content = content(0, 100 * GEOMETRY.slot_bytes);
    let mut pending = vec![[false; 2]; 2];
    let address = content.as_mut_ptr();
    let mut batch = [Transfer::new(true, 1, address, content.len(), stamp(0))];
    // SAFETY: the buffer holds the bytes and outlives the batch.
    let outcome = unsafe {
        send_recv::run(
            &mut batch,
            &mut pending,
            &mut links,
            &mut (),
            ZeroCopyPolicy::LEAST,
            &mut (),
            &Deadline,
        )
    };
    let error = outcome.expect_err("nobody receives");
    assert!(
        matches!(error, Error::Disconnected { peer: RankProcess { rank: 1, .. }, .. }),
        "{error}"
    );
}
