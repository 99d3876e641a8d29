//! Many ranks become a communicator: 64 processes on one machine, as one host, as 8 and as 64.
//!
//! `scripts/soak rendezvous` prints the times of an optimised build, after a simulated rendezvous
//! of 100,000.

mod support;

use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::time::{Duration, Instant};
use support::delays;
use support::pace::{Pace, Timed, assert_kept};
use support::processes::{Ranks, say};
use support::{Case, Prepared, config};

const RANKS: usize = 64;

/// What is promised of so many on one machine that does nothing else.
const PROMISE: Duration = Duration::from_secs(1);

/// What ends a defect where other programs have the machine as well and the build is not optimised:
/// ranks that take each other for other hosts' make a handshake for each connection.
const BESIDE_OTHERS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(9)];

/// From the moment when the last process is there to the end of the last `ringCommInitRank`.
fn time_to_join(mut ranks: Ranks) -> Timed {
    let pace = Pace::beside(ranks.pids());
    let deadline = Instant::now() + Duration::from_secs(100);
    let last = |ranks: &mut Ranks, word: &str| {
        let at = (0..RANKS).map(|rank| {
            let (at, said) = ranks.hear(rank, deadline);
            assert_eq!(said, word);
            at
        });
        at.max().expect("there are ranks")
    };
    let (here, joined) = (last(&mut ranks, "here"), last(&mut ranks, "joined"));
    for rank in 0..RANKS {
        ranks.end(rank, deadline).result.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
    }
    pace.timed(here, joined)
}

#[test]
fn sixty_four_processes_become_a_communicator() {
    for hosts in [1, 8, RANKS] {
        let places: Vec<usize> = (0..RANKS).map(|rank| rank * hosts / RANKS).collect();
        let config = Config { buff_size: Some(8 << 20), ..config() };
        let ranks = Ranks::start_on_hosts(&places, &config, "", |seat, _| {
            say("here");
            let comm = seat.join();
            say("joined");
            let case = Case::new(Collective::AllReduce, seat.nranks, 100, DataType::Int32);
            Prepared::of(case, seat.rank).run(&comm);
            comm.finalize().expect("nobody fails");
            String::new()
        });
        let bound = match delays::asked() {
            Some(_) => PROMISE,
            None => BESIDE_OTHERS[usize::from(hosts > 1)],
        };
        let what = format!("{RANKS} processes as {hosts} hosts become a communicator");
        assert_kept(&what, bound, &[time_to_join(ranks)]);
    }
}
