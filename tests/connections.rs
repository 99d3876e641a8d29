//! What a rank holds for those of other hosts: one thread for all of them, and connections with a
//! few, until it talks to others.
//!
//! The test counts what the kernel says of each rank's process, which does nothing meanwhile.

mod support;

use ringcomm::config::Config;
use ringcomm::types::DataType;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::exchange::{self, Planned};
use support::holdings::threads;
use support::processes::{Ranks, Seat, say};
use support::{Random, config};

/// Hosts of one rank each, powers of two.
const HOSTS: [usize; 3] = [2, 8, 16];

/// Ranks that are connected with nobody of each other's, where there are so many.
const STRANGERS: [usize; 2] = [0, 3];

/// Sockets of a connection that carries data.
const SOCKETS: usize = 3;

/// A rank's connections when it has joined. Its neighbours, with whom it shares news, are 1, 2, 4,
/// ... places away in both directions of a circle, of which the farthest are one; data has crossed
/// in the barrier that ends the joining, between ranks whose numbers differ in one bit.
fn sockets_of(nranks: usize) -> usize {
    let bits = nranks.ilog2() as usize;
    2 * bits - 1 + bits * SOCKETS
}

/// What a process has that could be there for each of its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    threads: usize,
    /// Sockets of TCP with somebody at the other end, or that look for somebody.
    sockets: usize,
}

impl Held {
    fn by(pid: u32) -> Held {
        let inode = |entry: std::io::Result<std::fs::DirEntry>| {
            let link = std::fs::read_link(entry.ok()?.path()).ok()?;
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string())
        };
        let opened = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
        let own: HashSet<String> = opened.filter_map(inode).collect();
        let is_own = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // The state, of which this one listens, and the inode.
            words[3] != "0A" && own.contains(words[9])
        };
        let known = |family: &str| {
            let table = std::fs::read_to_string(format!("/proc/{pid}/net/{family}"));
            // A kernel may lack a family.
            table.map_or(0, |table| table.lines().skip(1).filter(is_own).count())
        };
        Held { threads: threads(pid), sockets: known("tcp") + known("tcp6") }
    }
}

/// A rank's life: it says how many threads there are before it joins, and that it has joined. Once
/// there is such a file, one of the strangers sends something to the other.
fn live(seat: &Seat, file: &Path) -> String {
    say(&threads(std::process::id()).to_string());
    let comm = seat.join();
    say("joined");
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let [from, to] = STRANGERS;
    if STRANGERS.contains(&seat.rank) && to < seat.nranks {
        // The second on the connection of the first.
        for seed in 0..2 {
            let data_type = DataType::Uint8;
            let message = Planned { from, to, count: 100, data_type, seed };
            exchange::run(&comm, &[message], &mut Random(seed));
        }
    }
    say("sent");
    // Until the test has seen what is left, and ends it.
    loop {
        std::thread::park();
    }
}

/// See that all ranks come to hold what is wanted, and stay with it. What is dialled twice, or has
/// ended at one side only, is gone in a moment.
fn assert_hold(ranks: &Ranks, what: &str, wanted: &[Held]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut times = 0;
    while times < 2 {
        std::thread::sleep(Duration::from_millis(100));
        let held: Vec<Held> = ranks.pids().into_iter().map(Held::by).collect();
        times = if held == wanted { times + 1 } else { 0 };
        let is_late = Instant::now() > deadline;
        assert!(times > 0 || !is_late, "{what}, {} ranks: {held:?}", wanted.len());
    }
}

#[test]
fn threads_do_not_grow_with_the_hosts_and_connections_as_their_logarithm() {
    for nranks in HOSTS {
        let hosts: Vec<usize> = (0..nranks).collect();
        let config = Config { nsocks: SOCKETS, ..config() };
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("connections-{}-{nranks}", std::process::id()));
        let path = file.to_str().expect("a path in UTF-8");
        let mut ranks =
            Ranks::start_on_hosts(&hosts, &config, path, |seat, file| live(seat, Path::new(file)));
        let deadline = Instant::now() + Duration::from_secs(60);
        let all = |ranks: &mut Ranks| -> Vec<String> {
            (0..nranks).map(|rank| ranks.hear(rank, deadline).1).collect()
        };
        let before = all(&mut ranks);
        assert_eq!(all(&mut ranks), vec!["joined"; nranks]);
        // The control thread has come.
        let held = |before: &String| Held {
            threads: before.parse::<usize>().expect("a number") + 1,
            sockets: sockets_of(nranks),
        };
        let mut wanted: Vec<Held> = before.iter().map(held).collect();
        assert_hold(&ranks, "joined", &wanted);
        std::fs::write(&file, "").expect("a file");
        assert_eq!(all(&mut ranks), vec!["sent"; nranks]);
        for rank in STRANGERS.into_iter().filter(|_| STRANGERS[1] < nranks) {
            wanted[rank].sockets += SOCKETS;
        }
        assert_hold(&ranks, "a message was sent", &wanted);
        std::fs::remove_file(&file).expect("the file");
    }
}
