//! Names, existence, and algorithms on the simulated clock: the textbook's step counts, many ranks.

use super::*;
use crate::plan::PIPELINE_DEPTH;
use crate::plan::simulate::{Machine, Outcome, simulate};
use crate::plan::verify::{Fault, verify_pipelined};

/// A network on which only latency costs: a time in units of alpha is a number of rounds.
const ROUNDS: Machine = Machine {
    alpha_us: 1.0,
    message_us: 0.0,
    send_us_per_byte: 0.0,
    copy_us_per_byte: 0.0,
    reduce_us_per_byte: 0.0,
    depth: 2,
    slot_bytes: usize::MAX,
};

fn time(algorithm: Algorithm, collective: Collective, nranks: usize, machine: &Machine) -> Outcome {
    let make = |rank| plan(algorithm, collective, rank, nranks, 0).expect("it exists");
    simulate(collective, nranks, 1 << 20, machine, make).expect("it runs")
}

#[test]
fn rounds_are_the_textbook_s() {
    use Algorithm::*;
    use Collective::*;
    for nranks in [2, 3, 4, 7, 8, 16, 33, 64] {
        let rounds =
            |algorithm, collective| time(algorithm, collective, nranks, &ROUNDS).time_us as usize;
        let (floor, ceiling) =
            (nranks.ilog2() as usize, nranks.next_power_of_two().ilog2() as usize);
        assert_eq!(rounds(OneShot, AllReduce), 1);
        assert_eq!(rounds(TwoShot, AllReduce), 2);
        assert_eq!(rounds(Ring, AllReduce), 2 * (nranks - 1));
        assert_eq!(rounds(Ring, ReduceScatter), nranks - 1);
        assert!((2 * floor..=2 * ceiling).contains(&rounds(Halving, AllReduce)));
        assert_eq!(rounds(Doubling, AllGather), ceiling);
        assert!((floor..=ceiling).contains(&rounds(Doubling, AllReduce)));
        assert!(rounds(Halving, ReduceScatter) <= ceiling + 1);
        assert!(rounds(Binomial, Reduce) <= ceiling);
        assert_eq!(rounds(Chain, Broadcast), nranks - 1);
        assert!(rounds(Binomial, Broadcast) <= ceiling);
        assert!(rounds(DoubleTree, AllReduce) <= 2 * floor);
        assert!(rounds(DoubleTree, Broadcast) <= floor + 1);
    }
}

#[test]
fn a_hundred_thousand_ranks_are_simulated() {
    for (algorithm, symmetric, rounds) in [
        (Algorithm::Ring, true, 199_998.0),
        (Algorithm::Doubling, false, 17.0),
        (Algorithm::DoubleTree, false, 32.0),
    ] {
        let outcome = time(algorithm, Collective::AllReduce, 100_000, &ROUNDS);
        assert_eq!((outcome.symmetric, outcome.time_us), (symmetric, rounds), "{algorithm}");
    }
}

#[test]
fn one_rank_for_all_gives_the_time_of_all() {
    // The same plans with the turn hidden: a step that costs nothing on one rank breaks the circle.
    let machine = Machine { message_us: 0.25, send_us_per_byte: 1e-4, ..ROUNDS };
    for (algorithm, collective) in [
        (Algorithm::Ring, Collective::AllReduce),
        (Algorithm::TwoShot, Collective::AllReduce),
        (Algorithm::OneShot, Collective::ReduceScatter),
    ] {
        let nranks = 12;
        let turned = time(algorithm, collective, nranks, &machine);
        let make = |rank: usize| {
            let mut made = plan(algorithm, collective, rank, nranks, 0).expect("it exists");
            if rank == 1 {
                made.copy(Span::one(1), End::Output, End::Output);
            }
            made
        };
        let full = simulate(collective, nranks, 1 << 20, &machine, make).expect("it runs");
        assert!(turned.symmetric && !full.symmetric);
        assert!((turned.time_us - full.time_us).abs() < 1e-6 * full.time_us, "{algorithm}");
        assert_eq!((turned.messages, turned.bytes), (full.messages, full.bytes));
    }
}

#[test]
fn names_are_read_back_and_typos_get_a_suggestion() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_name(algorithm.name()), Ok(algorithm));
    }
    let text = Algorithm::from_name("rnig").unwrap_err().to_string();
    assert!(text.contains("did you mean \"ring\"?"), "{text}");
    assert!(text.contains("oneshot, twoshot, ring"), "{text}");
}

#[test]
fn whether_a_plan_exists_does_not_depend_on_the_rank() {
    for nranks in 1..=9 {
        for algorithm in Algorithm::ALL {
            for collective in Collective::ALL {
                let exists = |rank, root| plan(algorithm, collective, rank, nranks, root).is_some();
                let first = exists(0, 0);
                for root in 0..nranks {
                    assert!((0..nranks).all(|rank| exists(rank, root) == first));
                }
            }
        }
    }
}

fn two_shot(nranks: usize) -> Vec<Plan> {
    let make = |rank| plan(Algorithm::TwoShot, Collective::AllReduce, rank, nranks, 0);
    (0..nranks).map(|rank| make(rank).expect("it exists")).collect()
}

#[test]
fn two_shot_streams_at_its_depth_and_not_below() {
    let plans = two_shot(3);
    assert!(plans[0].stages() == 3 && verify_pipelined(&plans, PIPELINE_DEPTH).is_ok());
    let error = verify_pipelined(&plans, 2).unwrap_err();
    assert!(matches!(error.fault, Fault::Deadlock { .. }), "{error}");
}

#[test]
fn a_plan_that_is_spread_needs_as_many_times_the_depth() {
    let plans: Vec<Plan> = two_shot(3).into_iter().map(|plan| plan.spread(4)).collect();
    assert_eq!(plans[0].stages(), 9);
    assert!(verify_pipelined(&plans, 4 * PIPELINE_DEPTH).is_ok());
    let error = verify_pipelined(&plans, PIPELINE_DEPTH).unwrap_err();
    assert!(matches!(error.fault, Fault::Deadlock { .. }), "{error}");
}

#[test]
fn ends_that_differ_in_stage_are_refused() {
    let mut plans = two_shot(2);
    // The last step of rank 1 comes a stage later than its sender's messages expect.
    plans[1].steps.last_mut().unwrap().stage = 1;
    assert!(verify_pipelined(&plans, PIPELINE_DEPTH).is_err());
    plans[1].steps.last_mut().unwrap().stage = 0;
    assert!(verify_pipelined(&plans, PIPELINE_DEPTH).is_err());
}
