//! Ranks meet over TCP, as threads of one process, each with a listener of its own.

use parking_lot::Mutex;
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::allgather::{meet, root_threads};
use ringcomm::bootstrap::tcp::{AuthListener, NetworkConfig};
use ringcomm::config::{AddressFamily, Config};
use ringcomm::error::{Error, Result};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any test takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn loopback(family: Option<AddressFamily>) -> NetworkConfig {
    NetworkConfig { interfaces: Some("=lo".into()), ports: None, family }
}

fn payload(rank: usize) -> Vec<u8> {
    vec![rank as u8; rank % 7 * 100]
}

/// One rank's part, at a root that is somebody else.
fn join(id: &UniqueId, rank: usize, nranks: usize, patience: Duration) -> Result<Vec<Vec<u8>>> {
    let mut listener = AuthListener::open(id, &NetworkConfig::default()).unwrap();
    meet(id, rank, nranks, payload(rank), &mut listener, Instant::now() + patience)
}

type Met = Result<Vec<Vec<u8>>>;

/// All ranks as threads.
fn everybody(nranks: usize, run: impl Fn(usize) -> Met + Sync) -> Vec<Met> {
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..nranks).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn assert_all_met(outcomes: Vec<Met>) {
    let nranks = outcomes.len();
    let expected: Vec<_> = (0..nranks).map(payload).collect();
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.unwrap(), expected, "rank {rank} of {nranks}");
    }
}

#[test]
fn any_number_of_ranks_meet_at_a_thread() {
    for nranks in (2..=16).chain([40]) {
        let id = root_threads::start(&Config::default()).unwrap();
        assert_all_met(everybody(nranks, |rank| join(&id, rank, nranks, LONG)));
    }
}

#[test]
fn one_rank_meets_itself() {
    let id = UniqueId::generate().unwrap();
    assert_all_met(vec![join(&id, 0, 1, LONG)]);
}

/// Rank 0 is the root, at its own listener; the others know the place alone.
fn at_rank_zero(nranks: usize, config: &NetworkConfig) -> Vec<Met> {
    let nowhere = UniqueId::from_secret(b"a secret", b"job 1", &[]);
    let mut listener = AuthListener::open(&nowhere, config).unwrap().of_root();
    let id = UniqueId::from_secret(b"a secret", b"job 1", listener.addresses());
    thread::scope(|scope| {
        let others: Vec<_> = (1..nranks)
            .map(|rank| {
                let id = id.clone();
                scope.spawn(move || {
                    let mut listener = AuthListener::open(&id, config).unwrap();
                    meet(&id, rank, nranks, payload(rank), &mut listener, Instant::now() + LONG)
                })
            })
            .collect();
        let first = meet(&id, 0, nranks, payload(0), &mut listener, Instant::now() + LONG);
        let others = others.into_iter().map(|rank| rank.join().unwrap());
        std::iter::once(first).chain(others).collect()
    })
}

#[test]
fn ranks_meet_at_the_listener_of_rank_zero() {
    for nranks in [2, 3, 9, 13] {
        assert_all_met(at_rank_zero(nranks, &NetworkConfig::default()));
    }
}

#[test]
fn ranks_meet_over_both_families() {
    for family in [AddressFamily::V4, AddressFamily::V6] {
        assert_all_met(at_rank_zero(5, &loopback(Some(family))));
    }
}

/// Ranks know a name's addresses of both families, and some reach it by one of them only.
#[test]
fn a_root_is_met_at_every_address_of_its_id() {
    let id = |at: &[SocketAddr]| UniqueId::from_secret(b"s", b"families", at);
    // A port that is free for both; another test may have taken it.
    let open = |order: [&str; 2], family| {
        let config = NetworkConfig { family, ..NetworkConfig::default() };
        let tries = (0..20).find_map(|_| {
            let place =
                AuthListener::open(&UniqueId::generate().unwrap(), &loopback(None)).unwrap();
            let port = place.addresses()[0].port();
            drop(place);
            let at = order.map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
            Some((at, AuthListener::open_root(&id(&at), &config).ok()?))
        });
        tries.unwrap()
    };
    for order in [["127.0.0.1", "::1"], ["::1", "127.0.0.1"]] {
        let (at, listener) = open(order, None);
        let root = Mutex::new(Some(listener));
        assert_all_met(everybody(3, |rank| {
            let (reached, mut listener) = match rank {
                0 => (id(&at), root.lock().take().unwrap()),
                _ => (
                    id(&at[rank - 1..rank]),
                    AuthListener::open(&id(&at), &loopback(None)).unwrap(),
                ),
            };
            meet(&reached, rank, 3, payload(rank), &mut listener, Instant::now() + LONG)
        }));
        for family in [AddressFamily::V4, AddressFamily::V6] {
            let (at, listener) = open(order, Some(family));
            let is_asked = |at: &SocketAddr| at.is_ipv4() == (family == AddressFamily::V4);
            assert!(listener.addresses().iter().all(is_asked), "{:?}", listener.addresses());
            let asked = at.iter().find(|at| is_asked(at)).unwrap();
            assert!(TcpStream::connect(asked).is_ok(), "{order:?} {family:?}");
        }
    }
    // Nobody would come by a family that the id has no address of.
    for (ip, family) in [("::1", AddressFamily::V4), ("127.0.0.1", AddressFamily::V6)] {
        let (at, _gate) = open([ip; 2], Some(family));
        assert!(TcpStream::connect(at[0]).is_ok(), "{ip} {family:?}");
    }
}

#[test]
fn a_place_that_the_user_names_is_served() {
    let config = NetworkConfig::default();
    // Another test may have taken a port that was free.
    let (id, listener) = (0..20)
        .find_map(|_| {
            let place =
                AuthListener::open(&UniqueId::generate().unwrap(), &loopback(None)).unwrap();
            let at: SocketAddr = (Ipv4Addr::LOCALHOST, place.addresses()[0].port()).into();
            drop(place);
            let id = UniqueId::from_secret(b"s", b"", &[at]);
            let listener = AuthListener::open_at(&id, at, &config).ok()?.of_root();
            Some((id, listener))
        })
        .unwrap();
    let root = Mutex::new(Some(listener));
    let met = everybody(3, |rank| {
        let mut listener = match rank {
            0 => root.lock().take().unwrap(),
            _ => AuthListener::open(&id, &config).unwrap(),
        };
        meet(&id, rank, 3, payload(rank), &mut listener, Instant::now() + LONG)
    });
    assert_all_met(met);
}

/// Gates at one port of two addresses.
fn alike(id: &UniqueId, ips: [&str; 2]) -> [AuthListener; 2] {
    let open = |ip: &str, port: u16| {
        AuthListener::open_at(
            id,
            SocketAddr::new(ip.parse().unwrap(), port),
            &NetworkConfig::default(),
        )
    };
    // Another test may have taken the port at the second.
    let tries = (0..20).find_map(|_| {
        let first = open(ips[0], 0).unwrap();
        let second = open(ips[1], first.addresses()[0].port());
        Some([first, second.ok()?])
    });
    tries.unwrap()
}

/// As hosts are that have an address in common, a container bridge's, and listen at the same port.
#[test]
fn a_rank_with_an_address_and_the_port_of_the_roots_is_not_the_root() {
    for own_comes_first in [false, true] {
        let nowhere = UniqueId::from_secret(b"s", b"alike", &[]);
        let [first, second] = alike(&nowhere, ["127.0.0.2", "127.0.0.3"]);
        let mut places = [first.addresses()[0], second.addresses()[0]];
        if own_comes_first {
            places.reverse();
        }
        let id = UniqueId::from_secret(b"s", b"alike", &places);
        let join = |rank: usize, mut listener: AuthListener| {
            meet(&id, rank, 2, payload(rank), &mut listener, Instant::now() + LONG)
        };
        let join = &join;
        let met = thread::scope(|scope| {
            let other = scope.spawn(move || join(1, second));
            vec![join(0, first.of_root()), other.join().unwrap()]
        });
        assert_all_met(met);
    }
}

#[test]
fn ranks_that_come_in_any_order_meet() {
    let id = root_threads::start(&Config::default()).unwrap();
    let met = everybody(12, |rank| {
        thread::sleep(Duration::from_millis((rank * 37 % 12) as u64 * 10));
        join(&id, rank, 12, LONG)
    });
    assert_all_met(met);
}

#[test]
fn missing_ranks_are_listed_on_every_rank_that_came() {
    for nranks in [4, 25] {
        let id = root_threads::start(&Config::default()).unwrap();
        let missing = [1, nranks - 1];
        let met = everybody(nranks, |rank| {
            if missing.contains(&rank) {
                return Ok(Vec::new());
            }
            join(&id, rank, nranks, Duration::from_secs(3))
        });
        for (rank, outcome) in met.into_iter().enumerate() {
            if missing.contains(&rank) {
                continue;
            }
            match outcome {
                Err(Error::Missing { missing: told, .. }) => assert_eq!(told, missing),
                other => panic!("rank {rank}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_late_rank_is_told_why_it_failed() {
    let id = root_threads::start(&Config::default()).unwrap();
    let first = join(&id, 0, 2, Duration::from_secs(2)).unwrap_err();
    assert!(matches!(first, Error::Missing { .. }), "{first}");
    let late = join(&id, 1, 2, LONG).unwrap_err();
    assert!(matches!(late, Error::Missing { .. }), "{late}");
}

#[test]
fn two_ranks_of_one_number_are_told_on_every_rank() {
    let id = root_threads::start(&Config::default()).unwrap();
    let met = everybody(3, |thread| join(&id, [0, 1, 1][thread], 4, LONG));
    for outcome in met {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("rank 1 came twice"), "{error}");
    }
}

#[test]
fn ranks_that_disagree_on_their_number_are_told() {
    let id = root_threads::start(&Config::default()).unwrap();
    let met = everybody(2, |rank| join(&id, rank, [3, 4][rank], LONG));
    for outcome in met {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("every rank must give the same number"), "{error}");
    }
}

#[test]
fn without_a_root_the_error_says_where_it_was_looked_for() {
    let at: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let id = UniqueId::at(&[at]).unwrap();
    let error = join(&id, 1, 2, Duration::from_millis(300)).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("refused"), "{error}");
}
