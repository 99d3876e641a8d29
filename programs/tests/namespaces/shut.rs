//! A host whose filter lets nobody in: its rank lives and calls the others, and they cannot call
//! it. What they say names its address and what to open, and does not say that it died.

use super::support::config;
use super::support::processes::{Crew, Seat};
use super::{PATIENCE, TIMEOUT_MS, labs};
use crate::lab::Lab;
use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::communicator::Communicator;
use ringcomm::config::Config;
use std::time::Instant;

const RANKS: usize = 3;

/// What a filter does with a caller, and what the caller says of it.
const VERDICTS: [(&str, &str); 2] = [
    ("reject with tcp reset", "rank 0 was refused at 198.18.0.2:20"),
    ("drop", "rank 0 had no answer from 198.18.0.2:20"),
];

fn live(seat: &Seat) -> String {
    let config = Config { ports: Some(20_000..=20_020), ..seat.config.clone() };
    let made = Communicator::init_rank(seat.nranks, &seat.id, seat.rank, &config);
    made.map_or_else(|error| error.to_string(), |_| "made".into())
}

fn shut(lab: &Lab, crew: &Crew, (verdict, said): (&str, &str)) {
    lab.shut(1, "20000-20020", verdict).expect("filters");
    let config = Config { timeout_ms: TIMEOUT_MS, spins: Some(4), ..config() };
    let id = lab.on_host(0, || root_threads::start(&config)).expect("an id");
    let namespaces: Vec<_> = (0..RANKS).map(|host| lab.host(host)).collect();
    let mut ranks = crew.start(&namespaces, &id, &config, "");
    let deadline = Instant::now() + PATIENCE;
    let mut texts = (0..RANKS).map(|rank| {
        let text = ranks.end(rank, deadline).result;
        text.unwrap_or_else(|why| panic!("{verdict}: rank {rank}: {why}"))
    });
    let [first, shut, third] = std::array::from_fn(|_| texts.next().expect("a rank"));
    println!("{verdict}:\n{first}\n{shut}\n{third}");
    for text in [first, third] {
        assert!(text.contains("rank 1 (host "), "{text}");
        assert!(text.contains(") died or cannot be reached: rank "), "{text}");
        assert!(text.contains(said) && text.contains("RINGCOMM_PORT_RANGE"), "{text}");
    }
    assert!(shut.contains("rank 0 ") || shut.contains("rank 2 "), "{shut}");
}

#[test]
fn a_rank_behind_a_filter_is_said_to_be_out_of_reach() {
    let crew = &Crew::new(|seat, _| live(seat));
    let test = a_rank_behind_a_filter_is_said_to_be_out_of_reach;
    let Some(labs) = labs(test, VERDICTS.len()) else { return };
    std::thread::scope(|scope| {
        for (lab, verdict) in labs.iter().zip(VERDICTS) {
            scope.spawn(move || shut(lab, crew, verdict));
        }
    });
}
