//! Only the path between two hosts falls silent, and no control connection is on it: who waits for
//! the other finds out by the connection that carries data, or by that it cannot be made.

use super::support::exchange::{self, Planned};
use super::support::processes::{Crew, Seat, say};
use super::support::{Case, Prepared, Random, config};
use super::{PATIENCE, SILENCE, TIMEOUT_MS, labs};
use crate::lab::Lab;
use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The host of every rank. Two ranks have one each, and are three apart in a circle of six: control
/// connections reach one, two and four places.
const HOSTS: [usize; 6] = [2, 3, 0, 2, 3, 1];
const PAIR: [usize; 2] = [2, 5];

/// What goes between the two once they are parted.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// One message, whose sender then waits.
    Sent,
    /// One message, which the other waits for while its own end has nothing on its way.
    Idle,
    /// Much, both ways.
    Busy,
}

const WAYS: [Way; 3] = [Way::Sent, Way::Idle, Way::Busy];

impl Way {
    fn messages(self) -> Vec<Planned> {
        let (data_type, [one, other]) = (DataType::Uint8, PAIR);
        let message = |from, to, count| Planned { from, to, count, data_type, seed: 1 };
        match self {
            Way::Sent => vec![message(one, other, 100)],
            Way::Idle => vec![message(other, one, 100)],
            Way::Busy => vec![message(one, other, 40 << 20), message(other, one, 40 << 20)],
        }
    }
}

/// A rank's life: it says that it has met the others, and goes on once there is such a file.
fn live(seat: &Seat, way: Way, file: &Path) -> String {
    let comm = seat.join();
    let talk = |messages: &[Planned]| exchange::try_run(&comm, messages, &mut Random(1));
    let before = Way::Sent.messages().into_iter().chain(Way::Idle.messages());
    talk(&before.collect::<Vec<_>>()).expect("they are not parted yet");
    say("met");
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Err(error) = talk(&way.messages()) {
        return error.to_string();
    }
    // Who has sent waits for nothing, and leaves it to the other to find out.
    while matches!(way, Way::Idle) && seat.rank == PAIR[1] && comm.async_error().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // One that is missed in the first barrier never comes to the second.
    let barrier = Case::new(Collective::Barrier, seat.nranks, 0, DataType::Uint8);
    let mut barriers = (0..2).map(|_| Prepared::of(barrier.clone(), seat.rank).try_run(&comm));
    barriers.find_map(Result::err).unwrap_or_default()
}

/// How long after the parting each rank ended.
fn part(lab: &Lab, crew: &Crew, way: usize) -> Vec<Duration> {
    let config = Config { timeout_ms: TIMEOUT_MS, spins: Some(4), nsocks: 2, ..config() };
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("parted-{}-{way}", std::process::id()));
    let id = lab.on_host(HOSTS[0], || root_threads::start(&config)).expect("an id");
    let namespaces = HOSTS.map(|host| lab.host(host));
    let mut ranks = crew.start(&namespaces, &id, &config, &format!("{way} {}", file.display()));
    let deadline = Instant::now() + PATIENCE;
    (0..HOSTS.len()).for_each(|rank| drop(ranks.hear(rank, deadline)));
    lab.part(0, 1).expect("filters");
    let since = Instant::now();
    std::fs::write(&file, "").expect("a file");
    let end = |rank| {
        let end = ranks.end(rank, deadline);
        let text = end.result.unwrap_or_else(|why| panic!("{:?}: rank {rank}: {why}", WAYS[way]));
        let names = |other: &usize| *other != rank && text.contains(&format!("rank {other} "));
        assert!(PAIR.iter().any(names), "{:?}: rank {rank}: {text}", WAYS[way]);
        if PAIR.contains(&rank) {
            println!("{:?}: {text}", WAYS[way]);
        }
        end.at.saturating_duration_since(since)
    };
    let ends = (0..HOSTS.len()).map(end).collect();
    std::fs::remove_file(&file).expect("the file");
    ends
}

#[test]
fn a_path_between_two_that_no_control_connection_takes_is_missed() {
    let crew = &Crew::new(|seat, argument| {
        let (way, file) = argument.split_once(' ').expect("a way and a file");
        live(seat, WAYS[way.parse::<usize>().expect("a number")], Path::new(file))
    });
    let test = a_path_between_two_that_no_control_connection_takes_is_missed;
    let Some(labs) = labs(test, WAYS.len()) else { return };
    let parted = std::thread::scope(|scope| {
        let runs: Vec<_> = labs
            .iter()
            .enumerate()
            .map(|(way, lab)| scope.spawn(move || part(lab, crew, way)))
            .collect();
        runs.into_iter().map(|run| run.join().expect("named in time")).collect::<Vec<_>>()
    });
    for (way, ends) in WAYS.iter().zip(parted) {
        let last = ends.iter().max().expect("ranks");
        println!("parted, {way:?}: every rank has an error with a name after {last:.1?}");
        assert!(*last <= SILENCE, "{way:?}: {ends:?}");
    }
}
