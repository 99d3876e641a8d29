//! A host falls silent while its ranks and the others work: each side goes on with the ranks that
//! it has, which nobody lists.

use super::support::processes::{Crew, Ranks, Seat, say};
use super::support::{Case, Prepared, config, names_in_full};
use super::{PATIENCE, SILENCE, TIMEOUT_MS, labs};
use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::time::{Duration, Instant};

/// The host of every rank, and the one that falls silent.
const HOSTS: [usize; 6] = [0, 3, 1, 2, 3, 1];
const SILENT: usize = 3;

/// Sums until one fails, and then sums of those that are left; the error, and who is left.
fn live(seat: &Seat) -> String {
    let comm = seat.join();
    let sum = |nranks, seed| {
        let case = Case::new(Collective::AllReduce, nranks, 70_000, DataType::Int32);
        Case { seed, ..case }
    };
    say("met");
    let error = (0..).find_map(|seed| Prepared::new(sum(seat.nranks, seed)).try_run(&comm).err());
    let error = error.expect("it goes on until then");
    assert!(comm.async_error().is_some(), "a wrong result: {error}");
    say(&error);
    let fewer = match comm.shrink(&[], None) {
        Ok(fewer) => fewer,
        Err(error) => return format!("no communicator: {error}"),
    };
    for seed in 0..20 {
        Prepared::new(sum(fewer.nranks(), seed)).run(&fewer);
    }
    fewer.finalize().expect("an end");
    format!("rank {} of {}", fewer.rank(), fewer.nranks())
}

/// What each rank says when a call has failed, and how long after the silence.
fn hear(ranks: &mut Ranks, silent: Instant) -> Vec<(String, Duration)> {
    let deadline = Instant::now() + PATIENCE;
    let heard = |rank| {
        let (at, text) = ranks.hear(rank, deadline);
        (text, at.saturating_duration_since(silent))
    };
    (0..HOSTS.len()).map(heard).collect()
}

#[test]
fn both_sides_of_a_silence_go_on_with_the_ranks_that_they_have() {
    let crew = Crew::new(|seat, _| live(seat));
    let test = both_sides_of_a_silence_go_on_with_the_ranks_that_they_have;
    let Some(labs) = labs(test, 1) else { return };
    let lab = &labs[0];
    let config = Config { timeout_ms: TIMEOUT_MS, spins: Some(4), ..config() };
    let id = lab.on_host(HOSTS[0], || root_threads::start(&config)).expect("an id");
    let mut ranks = crew.start(&HOSTS.map(|host| lab.host(host)), &id, &config, "");
    let deadline = Instant::now() + PATIENCE;
    (0..HOSTS.len()).for_each(|rank| assert_eq!(ranks.hear(rank, deadline).1, "met"));
    std::thread::sleep(Duration::from_millis(50));
    lab.cut(SILENT).expect("filters");
    let silent = Instant::now();
    for (rank, (text, after)) in hear(&mut ranks, silent).into_iter().enumerate() {
        assert!(names_in_full(&text, rank, HOSTS.len()), "rank {rank}: {text}");
        assert!(after <= SILENCE, "rank {rank} after {after:?}: {text}");
    }
    for (rank, host) in HOSTS.into_iter().enumerate() {
        let is_beside = |other: &&usize| (**other == SILENT) == (host == SILENT);
        let place = HOSTS[..rank].iter().filter(is_beside).count();
        let all = HOSTS.iter().filter(is_beside).count();
        let end = ranks.end(rank, deadline);
        let left = end.result.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
        assert_eq!(left, format!("rank {place} of {all}"), "rank {rank}");
        println!("rank {rank}: {left} after {:.1?}", end.at.saturating_duration_since(silent));
    }
}
