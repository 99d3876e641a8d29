//! Control threads in one process, over real sockets; every rank takes all others for remote.

use super::{ConnectionFault, ControlThread, Start};
use crate::bootstrap::UniqueId;
use crate::bootstrap::tcp::{AuthListener, NetworkConfig, USER_TIMEOUT};
use crate::config::Protection;
use crate::executor::control_block::Life;
use crate::executor::control_block::shrink_board::{Announcement, Phase};
use crate::executor::links::{Pages, SegmentMap};
use crate::transport::fifo::FifoShape;
use crate::transport::network::{Endpoint, Lengths};
use crate::transport::segment::Segment;
use crate::transport::tcp::{NewDataSocket, Settings, SocketInbox, SocketKeys, TcpEndpoint};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Rank {
    pages: Pages,
    inbox: Arc<SocketInbox>,
    engine: Option<ControlThread>,
}

const LANES: usize = 2;

fn open_listener(id: &UniqueId) -> AuthListener {
    AuthListener::open(id, &NetworkConfig::default()).unwrap()
}

fn start(
    rank: usize,
    id: &UniqueId,
    listener: AuthListener,
    addresses: Vec<Vec<SocketAddr>>,
) -> Rank {
    let nranks = addresses.len();
    let segment = |_| Arc::new(Segment::anonymous(SegmentMap::mirror_bytes()).unwrap());
    let pages = Pages::new(rank, (0..nranks).map(segment).collect());
    pages.mine().introduce(1000 + rank as u32, "here");
    let inbox = Arc::new(SocketInbox::new().unwrap());
    let engine = ControlThread::start(Start {
        rank,
        id: id.clone(),
        listener,
        addresses,
        remote: (0..nranks).map(|other| other != rank).collect(),
        pages: pages.clone(),
        inbox: inbox.clone(),
        data_sockets: LANES,
        timeout: Duration::from_secs(20),
    });
    Rank { pages, inbox, engine: Some(engine.unwrap()) }
}

fn ranks(nranks: usize) -> Vec<Rank> {
    let id = UniqueId::generate().unwrap();
    let listeners: Vec<AuthListener> = (0..nranks).map(|_| open_listener(&id)).collect();
    let addresses: Vec<_> =
        listeners.iter().map(|listener| listener.addresses().to_vec()).collect();
    let start = |(rank, listener)| start(rank, &id, listener, addresses.clone());
    listeners.into_iter().enumerate().map(start).collect()
}

/// Rank `rank` of two, alone: the other one is said to be where `listener` listens.
fn beside(rank: usize, listener: &TcpListener) -> Rank {
    let id = UniqueId::generate().unwrap();
    let own = open_listener(&id);
    let mut addresses = vec![vec![listener.local_addr().unwrap()]; 2];
    addresses[rank] = own.addresses().to_vec();
    start(rank, &id, own, addresses)
}

/// Wait for what must come about; the limit only ends a defect.
fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "{what} does not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every rank has heard of every other one.
fn acquaint(ranks: &[Rank]) {
    ranks.iter().for_each(|rank| rank.engine.as_ref().unwrap().publish());
    let known = |rank: &Rank, other| rank.pages.of(other).host() == "here";
    for rank in ranks {
        until("acquaintance", || (0..ranks.len()).all(|other| known(rank, other)));
    }
}

#[test]
fn what_a_page_says_shows_on_all_its_mirrors() {
    let ranks = ranks(7);
    acquaint(&ranks);
    let page = ranks[5].pages.mine();
    page.begin(0, 77, 0, 10, 1);
    page.end(0, 2);
    page.begin(1, 78, 0, 20, 3);
    page.record(1).unwrap().wait(2, 0);
    page.board.publish(&Announcement { attempt: 9, phase: Phase::Made, ..Announcement::NOTHING });
    page.fail(2, "a text");
    ranks[5].engine.as_ref().unwrap().publish();
    for rank in &ranks {
        let mirror = rank.pages.of(5);
        until("the failure", || mirror.life() == Life::Failed);
        assert_eq!(mirror.failure(), (Some(2), "a text".into()));
        assert_eq!((mirror.completed(), mirror.host()), (1, "here".into()));
        let seen = mirror.record(1).unwrap().seen();
        assert_eq!((seen.fingerprint, seen.count, seen.waiting_for), (78, 20, Some(2)));
        assert_eq!(mirror.record(0).unwrap().seen().fingerprint, 77);
        assert_eq!(mirror.board.read().unwrap().attempt, 9);
        assert!(!mirror.is_gone());
    }
}

#[test]
fn who_vanishes_is_gone_for_all_and_who_leaves_is_not() {
    let mut ranks = ranks(6);
    acquaint(&ranks);
    let leaver = ranks[1].pages.mine();
    leaver.board.publish(&Announcement { phase: Phase::Closed, ..Announcement::NOTHING });
    leaver.leave();
    ranks[1].engine = None;
    for rank in &ranks {
        until("the goodbye", || rank.pages.of(1).life() == Life::Left);
    }
    ranks[4].engine.as_ref().unwrap().harm(ConnectionFault::Vanish);
    for rank in [0, 2, 3, 5] {
        until("the death", || ranks[rank].pages.of(4).is_gone());
        let gone: Vec<usize> = (0..6).filter(|r| ranks[rank].pages.of(*r).is_gone()).collect();
        assert_eq!(gone, [4]);
    }
}

#[test]
fn broken_connections_are_made_again_and_nobody_is_taken_for_dead() {
    let ranks = ranks(5);
    acquaint(&ranks);
    for round in 0..6 {
        ranks[round % 5].engine.as_ref().unwrap().harm(ConnectionFault::Cut);
        if round % 2 == 0 {
            ranks[(round + 2) % 5].engine.as_ref().unwrap().harm(ConnectionFault::Cut);
        }
        let page = ranks[0].pages.mine();
        page.end(round as u64, 1);
        ranks[0].engine.as_ref().unwrap().publish();
        for rank in &ranks {
            until("the news", || rank.pages.of(0).completed() == round as u64 + 1);
        }
    }
    for rank in &ranks {
        assert!((0..5).all(|other| !rank.pages.of(other).is_gone()));
    }
}

/// What a stopped rank does not read must not close its window: a kernel gives up a connection with
/// one that stays closed, though every question is answered.
#[test]
fn a_rank_that_is_stopped_beside_talkative_ones_is_not_taken_for_dead() {
    let ranks = ranks(8);
    acquaint(&ranks);
    let stop = USER_TIMEOUT + Duration::from_secs(3);
    ranks[3].engine.as_ref().unwrap().harm(ConnectionFault::Stop(stop));
    let (started, mut said) = (Instant::now(), 0);
    while started.elapsed() < stop {
        said += 1;
        for rank in ranks.iter().filter(|rank| rank.pages.rank != 3) {
            rank.pages.mine().end(said, 1);
            rank.engine.as_ref().unwrap().publish();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for rank in &ranks {
        let all = || (0..8).all(|other| other == 3 || rank.pages.of(other).completed() == said + 1);
        until("the newest of everybody", all);
        assert!((0..8).all(|other| !rank.pages.of(other).is_gone()));
    }
}

#[test]
fn an_awaited_rank_tells_what_it_is_at() {
    let ranks = ranks(3);
    acquaint(&ranks);
    // Rank 2 is done with call 0 and does nothing; rank 0 waits for it in call 1.
    ranks[2].pages.mine().begin(0, 5, 0, 1, 1);
    ranks[2].pages.mine().end(0, 1);
    ranks[0].pages.mine().begin(0, 5, 0, 1, 1);
    ranks[0].pages.mine().end(0, 1);
    ranks[0].pages.mine().begin(1, 5, 0, 1, 1);
    let record = ranks[0].pages.mine().record(1).unwrap();
    record.wait(2, 0);
    ranks[0].engine.as_ref().unwrap().publish();
    until("the answer", || ranks[0].pages.of(2).completed() == 1);
}

#[test]
fn data_sockets_reach_both_inboxes() {
    let ranks = ranks(3);
    let settings = Settings {
        geometry: FifoShape { depth: 2, slot_bytes: 4096 },
        steps: Lengths { cut: 4096, whole: 0 },
        messages: Lengths { cut: 4096, whole: 0 },
        protection: Protection::default(),
        data_sockets: LANES,
    };
    let network = |rank: usize| {
        let connector = ranks[rank].engine.as_ref().unwrap().connector();
        TcpEndpoint::new(rank, 3, settings, ranks[rank].inbox.clone(), connector)
    };
    let (mut low, mut high) = (network(0), network(2));
    let started = Instant::now();
    while !(low.tcp_connection(2).data_sockets().count() == LANES
        && high.tcp_connection(0).data_sockets().count() == LANES)
    {
        assert!(started.elapsed() < Duration::from_secs(30), "no data_sockets");
        low.sleep(None, Duration::from_millis(1));
        high.sleep(None, Duration::from_millis(1));
    }
    // Nobody is behind this listener any more.
    let mut ranks = ranks;
    ranks[1].engine = None;
    let started = Instant::now();
    while !low.tcp_connection(1).is_broken() {
        assert!(started.elapsed() < Duration::from_secs(30), "no failure");
        low.sleep(None, Duration::from_millis(1));
    }
}

/// The ports of a socket and its keys, each this end's first.
type End = [([u8; 32], u16); 2];

fn end(NewDataSocket { socket, keys: SocketKeys { send, receive }, .. }: NewDataSocket) -> End {
    // It goes over loopback, which nothing has to pace; a system may allow nobody to say so.
    let allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let is_allowed = std::fs::read_to_string(allowed).is_ok_and(|names| names.contains("reno"));
    assert!(!is_allowed || rustix::net::sockopt::tcp_congestion(&socket).unwrap() == "reno");
    let socket = TcpStream::from(socket);
    [(send, socket.local_addr().unwrap().port()), (receive, socket.peer_addr().unwrap().port())]
}

/// What one socket seals no other opens, nor this one the other way.
#[test]
fn every_data_socket_has_two_keys_of_its_own_which_both_ends_know() {
    let (ranks, pairs) = (ranks(3), [(0, 1), (0, 2), (1, 2)]);
    for (from, to) in pairs {
        ranks[from].engine.as_ref().unwrap().connector().connect(to);
    }
    let mut data_sockets: Vec<Vec<(usize, End)>> = vec![Vec::new(); 3];
    let started = Instant::now();
    while data_sockets.iter().any(|data_sockets| data_sockets.len() < 2 * LANES) {
        assert!(started.elapsed() < Duration::from_secs(30), "no data_sockets");
        for (data_sockets, rank) in data_sockets.iter_mut().zip(&ranks) {
            data_sockets.extend(
                rank.inbox
                    .take()
                    .into_iter()
                    .map(|data_socket| (data_socket.peer, end(data_socket))),
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let ends = |rank: usize, peer| {
        let ends = data_sockets[rank].iter().filter(move |(other, _)| *other == peer);
        ends.map(|(_, end)| *end)
    };
    let mut keys = BTreeSet::new();
    for (low, high) in pairs {
        let mirrored: BTreeSet<End> = ends(high, low).map(|[one, other]| [other, one]).collect();
        assert_eq!(ends(low, high).collect::<BTreeSet<End>>(), mirrored);
        keys.extend(ends(low, high).flatten().map(|(key, _)| key));
    }
    assert_eq!(keys.len(), pairs.len() * LANES * 2);
}

#[test]
fn who_is_asked_tells_what_it_has_not_told_yet() {
    // Ranks 0 and 3 are no neighbours.
    let ranks = ranks(9);
    acquaint(&ranks);
    let settings = Settings {
        geometry: FifoShape { depth: 2, slot_bytes: 4096 },
        steps: Lengths { cut: 4096, whole: 0 },
        messages: Lengths { cut: 4096, whole: 0 },
        protection: Protection::default(),
        data_sockets: LANES,
    };
    let connector = ranks[0].engine.as_ref().unwrap().connector();
    let mut network = TcpEndpoint::new(0, 9, settings, ranks[0].inbox.clone(), connector);
    ranks[3].pages.mine().fail(2, "a text");
    network.tcp_connection(3).mark_broken("it has ended");
    let (started, mirror) = (Instant::now(), ranks[0].pages.of(3));
    while network.failure(3).is_none() || mirror.life() != Life::Failed {
        assert!(started.elapsed() < Duration::from_secs(30), "no answer");
        network.sleep(None, Duration::from_millis(1));
    }
    assert_eq!(mirror.failure(), (Some(2), "a text".into()));
}

/// The best of five, and half of what it takes where the sleep goes on to the next sign of life.
#[test]
fn who_ends_beside_a_dead_rank_that_it_never_met_does_not_sleep_on() {
    let ended = |_| {
        // Refuses from now on.
        let rank = beside(0, &TcpListener::bind("127.0.0.1:0").unwrap());
        let started = Instant::now();
        drop(rank);
        started.elapsed()
    };
    let best = (0..5).map(ended).min().unwrap();
    assert!(best < Duration::from_millis(250), "{best:?}");
}

#[test]
fn a_rank_that_was_never_met_is_dead_when_its_listener_refuses_and_not_when_it_is_silent() {
    // The kernel takes connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let rank = beside(1, &silent);
    // Longer than a rank that broke a connection is suspected.
    std::thread::sleep(Duration::from_millis(3600));
    assert!(!rank.pages.of(0).is_gone());
    let at = silent.local_addr().unwrap();
    drop(silent);
    until("the death", || rank.pages.of(0).is_gone());
    let what = (1, format!("was refused at {at}"));
    assert_eq!(rank.pages.of(0).unreached(), Some(what), "it may live behind a filter");
}

#[test]
fn a_rank_that_was_met_is_dead_when_its_listener_refuses() {
    for victim in [0, 1] {
        let ranks = ranks(2);
        acquaint(&ranks);
        ranks[victim].engine.as_ref().unwrap().harm(ConnectionFault::Vanish);
        let mirror = ranks[1 - victim].pages.of(victim);
        until("the death", || mirror.is_gone());
        assert_eq!(mirror.unreached(), None);
    }
}
