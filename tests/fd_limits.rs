//! A rank that may open too few files for the connections of all others says so of itself, and
//! blames nobody else; while it can, it gives them to ranks and not to strangers.
//!
//! The test binary starts itself again for that rank, since the limit is a process's.

#[path = "support/files.rs"]
mod files;

use ringcomm::bootstrap::allgather::{meet, root_threads};
use ringcomm::bootstrap::tcp::{AuthListener, NetworkConfig};
use ringcomm::bootstrap::{Contribution, UniqueId, exchange, process_token, rendezvous_name};
use ringcomm::communicator::Communicator;
use ringcomm::config::Config;
use ringcomm::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Set in the process of rank 0: how the ranks share a secret.
const SECRET: &str = "RINGCOMM_TEST_SECRET";
/// What its lines begin with; libtest prints lines of its own.
const MARK: &str = "rank 0 says: ";

/// Longer than any test takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// How long rank 0 waits for ranks that cannot come, and the others for it.
const SHORT: Duration = Duration::from_secs(3);
const NRANKS: usize = 4;

fn secret() -> Option<String> {
    std::env::var(SECRET).ok()
}

/// The process of rank 0.
struct First {
    process: Child,
    secret: String,
    lines: BufReader<ChildStdout>,
}

impl First {
    /// Run this test again; in there it is rank 0.
    fn start(test: &str, number: usize) -> First {
        First::with(test, format!("{test} {} {number}", std::process::id()))
    }

    fn with(test: &str, secret: String) -> First {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(SECRET, &secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        First { process, secret, lines }
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "rank 0 is gone");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_string();
            }
        }
    }

    /// As other ranks name it.
    fn name(&self) -> String {
        format!("rank 0 (host {}, pid {})", ringcomm::host::name(), self.process.id())
    }

    /// How it and the others that came, as threads, ended: one of them was let in.
    fn judge(mut self, ranks: impl Fn(usize) -> String + Sync) -> Option<String> {
        let others: Vec<String> = thread::scope(|scope| {
            let ranks = &ranks;
            let ranks: Vec<_> = (1..NRANKS).map(|rank| scope.spawn(move || ranks(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let own = self.hear();
        let failed = format!("{} failed and rank", self.name());
        self.process.wait().unwrap();
        let told = others.iter().filter(|text| text.starts_with(&failed));
        let told: Vec<&String> = told.filter(|text| text.contains(&own)).collect();
        // On a busy machine they may come when it has given up.
        (own.starts_with("rank 0 can take no more connections (") && told.len() == 1).then_some(own)
    }
}

fn say(text: impl std::fmt::Display) {
    println!("\n{MARK}{text}");
    std::io::stdout().flush().unwrap();
}

fn assert_told(text: &str) {
    assert!(text.contains("files open; raise `ulimit -n`): Too many open files"), "{text}");
}

fn loopback() -> NetworkConfig {
    NetworkConfig { interfaces: Some("=lo".into()), ..NetworkConfig::default() }
}

#[test]
fn a_root_on_a_network_that_runs_out_of_descriptors_is_named_with_what_to_do() {
    if let Some(secret) = secret() {
        let nowhere = UniqueId::from_secret(secret.as_bytes(), b"", &[]);
        let mut listener = AuthListener::open(&nowhere, &loopback()).unwrap().of_root();
        let id = UniqueId::from_secret(secret.as_bytes(), b"", listener.addresses());
        say(listener.addresses()[0]);
        files::open_few_more(1);
        let until = Instant::now() + SHORT;
        return say(meet(&id, 0, NRANKS, vec![0], &mut listener, until).unwrap_err());
    }
    let test = "a_root_on_a_network_that_runs_out_of_descriptors_is_named_with_what_to_do";
    let tried = |number| {
        let mut first = First::start(test, number);
        let at = first.hear().parse().unwrap();
        let id = UniqueId::from_secret(first.secret.as_bytes(), b"", &[at]);
        first.judge(|rank| {
            let mut listener = AuthListener::open(&id, &loopback()).unwrap();
            let until = Instant::now() + SHORT;
            meet(&id, rank, NRANKS, vec![rank as u8], &mut listener, until).unwrap_err().to_string()
        })
    };
    assert_told(&(0..5).find_map(tried).expect("ranks that come in time"));
}

#[test]
fn a_root_on_a_network_with_room_for_nobody_else_still_says_who_has_not_come() {
    if let Some(secret) = secret() {
        let nowhere = UniqueId::from_secret(secret.as_bytes(), b"", &[]);
        let mut listener = AuthListener::open(&nowhere, &loopback()).unwrap().of_root();
        let id = UniqueId::from_secret(secret.as_bytes(), b"", listener.addresses());
        say(listener.addresses()[0]);
        files::open_few_more(1);
        return say(meet(&id, 0, 3, vec![0], &mut listener, Instant::now() + SHORT).unwrap_err());
    }
    let test = "a_root_on_a_network_with_room_for_nobody_else_still_says_who_has_not_come";
    let mut first = First::start(test, 0);
    let at = first.hear().parse().unwrap();
    let id = UniqueId::from_secret(first.secret.as_bytes(), b"", &[at]);
    let mut listener = AuthListener::open(&id, &loopback()).unwrap();
    let until = Instant::now() + SHORT;
    meet(&id, 1, 3, vec![1], &mut listener, until).unwrap_err();
    let text = first.hear();
    assert!(text.contains("of 3 ranks") && text.contains("2]; start"), "{text}");
    first.process.wait().unwrap();
}

fn contribution() -> Contribution {
    Contribution { payload: vec![1], process: process_token().unwrap(), fds: Vec::new() }
}

fn local_id(secret: &str) -> UniqueId {
    UniqueId::from_secret(secret.as_bytes(), b"", &[])
}

/// Where the ranks of an id meet on this machine, once somebody listens there.
fn place(id: &UniqueId) -> SocketAddr {
    let name = rendezvous_name(id);
    let is_there = || {
        let list = std::fs::read_to_string("/proc/net/unix").unwrap();
        list.contains(str::from_utf8(&name).unwrap())
    };
    let until = Instant::now() + LONG;
    while !is_there() {
        assert!(Instant::now() < until, "rank 0 does not listen");
        thread::sleep(Duration::from_millis(1));
    }
    SocketAddr::from_abstract_name(&name).unwrap()
}

#[test]
fn a_coordinator_that_runs_out_of_descriptors_is_named_with_what_to_do() {
    if let Some(secret) = secret() {
        // To listen, and for one that comes.
        files::open_few_more(2);
        let until = Instant::now() + SHORT;
        return say(exchange(&local_id(&secret), 0, NRANKS, contribution(), until).unwrap_err());
    }
    let test = "a_coordinator_that_runs_out_of_descriptors_is_named_with_what_to_do";
    let tried = |number| {
        let first = First::start(test, number);
        let id = local_id(&first.secret);
        place(&id);
        first.judge(|rank| {
            let until = Instant::now() + SHORT;
            exchange(&id, rank, NRANKS, contribution(), until).unwrap_err().to_string()
        })
    };
    assert_told(&(0..5).find_map(tried).expect("ranks that come in time"));
}

#[test]
fn strangers_that_take_the_last_descriptors_of_a_coordinator_end_no_meeting() {
    if let Some(secret) = secret() {
        files::open_few_more(2);
        let until = Instant::now() + LONG;
        let met = exchange(&local_id(&secret), 0, 2, contribution(), until);
        return say(met.map_or_else(|error| error.to_string(), |met| met.len().to_string()));
    }
    let test = "strangers_that_take_the_last_descriptors_of_a_coordinator_end_no_meeting";
    let mut first = First::start(test, 0);
    let id = local_id(&first.secret);
    let at = place(&id);
    // It may not listen yet under its name.
    let connect = || loop {
        match UnixStream::connect_addr(&at) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    let _strangers: Vec<UnixStream> = (0..8).map(|_| connect()).collect();
    let met = exchange(&id, 1, 2, contribution(), Instant::now() + LONG);
    assert_eq!(met.map(|met| met.len()), Ok(2));
    assert_eq!(first.hear(), "2");
    first.process.wait().unwrap();
}

/// The settings of a rank of a host of its own.
fn on_host(name: &str) -> Config {
    let host_id = Some(name.to_string());
    Config { host_id, interfaces: Some("=lo".into()), ..Config::default() }
}

fn written(id: &UniqueId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(text: &str) -> UniqueId {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    UniqueId::from_bytes(&std::array::from_fn(byte)).unwrap()
}

/// A communicator of two ranks, of which this process is the second and that one the first: where
/// the first one's limit comes before they meet, and where it comes before they split.
fn both_learn_at_once(test: &str, id: &UniqueId, hosts: [&str; 2], splits: bool, room: usize) {
    let end = |communicator: Result<Communicator, Error>, room: Option<usize>| {
        let Ok(communicator) = communicator.as_ref().map_err(ToString::to_string) else {
            return communicator.err().unwrap().to_string();
        };
        room.map(files::open_few_more);
        communicator.split(0, 0, None).err().expect("one lacks descriptors").to_string()
    };
    if let Some(secret) = secret() {
        if !splits {
            files::open_few_more(room);
        }
        let made = Communicator::init_rank(2, &read(&secret), 0, &on_host(hosts[0]));
        return say(end(made, splits.then_some(room)));
    }
    let mut first = First::with(test, written(id));
    let started = Instant::now();
    let text = end(Communicator::init_rank(2, id, 1, &on_host(hosts[1])), None);
    let own = first.hear();
    assert!(started.elapsed() < LONG / 2, "{text}");
    assert!(text.starts_with(&format!("{} failed and rank 1", first.name())), "{text}");
    assert!(text.contains("ulimit -n") && own.contains("ulimit -n"), "{text}; {own}");
    first.process.wait().unwrap();
}

#[test]
fn a_rank_without_room_for_a_split_is_known_to_all_at_once() {
    let test = "a_rank_without_room_for_a_split_is_known_to_all_at_once";
    let id = UniqueId::generate().unwrap();
    both_learn_at_once(test, &id, ["a", "a"], true, 6);
}

#[test]
fn a_rank_without_room_for_a_split_between_hosts_is_known_to_all_at_once() {
    let test = "a_rank_without_room_for_a_split_between_hosts_is_known_to_all_at_once";
    let id = root_threads::start(&on_host("b")).unwrap();
    both_learn_at_once(test, &id, ["a", "b"], true, 6);
}

#[test]
fn a_rank_without_room_for_its_first_communicator_is_known_to_all_at_once() {
    let test = "a_rank_without_room_for_its_first_communicator_is_known_to_all_at_once";
    let id = UniqueId::generate().unwrap();
    both_learn_at_once(test, &id, ["a", "a"], false, 4);
}

#[test]
fn a_rank_without_room_for_other_hosts_is_known_to_all_at_once() {
    let test = "a_rank_without_room_for_other_hosts_is_known_to_all_at_once";
    let id = root_threads::start(&on_host("b")).unwrap();
    both_learn_at_once(test, &id, ["a", "b"], false, 8);
}
