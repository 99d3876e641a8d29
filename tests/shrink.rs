//! Survivors that name nobody: they agree on who is dead, whenever ranks die, and go on exactly.

mod support;

use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::error::{Error, Result};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};
use support::holdings::{Holdings, Names, heap_bytes};
use support::processes::{Ranks, Seat, say};
use support::scratch::{Scratch, run};
use support::{Random, config, joined_hosts, on_threads, small_slots};

/// Whether the parent has said that it kills nobody any more.
static SAFE: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    SAFE.store(true, Relaxed);
}

/// Sum a vector with a place for every rank that there ever was, and check every element.
///
/// Returns the ranks of `comm` as the world numbered them, and whether all know that they are safe.
fn members(comm: &Communicator, seat: &Seat) -> Result<(Vec<usize>, bool)> {
    let mut mine = vec![0i64; seat.nranks + 2];
    mine[seat.rank] = 1;
    mine[seat.nranks] = i64::from(SAFE.load(Relaxed));
    mine[seat.nranks + 1] = seat.rank as i64 * 1000 + 1;
    let mut sum = vec![-1i64; mine.len()];
    let call = Call {
        send: mine.as_ptr().cast(),
        recv: sum.as_mut_ptr().cast(),
        count: mine.len(),
        ..Call::new(Collective::AllReduce, DataType::Int64)
    };
    // SAFETY: both buffers hold `count` elements.
    unsafe { comm.run(&call)? };
    let there: Vec<usize> = (0..seat.nranks).filter(|rank| sum[*rank] == 1).collect();
    assert!(sum[..seat.nranks].iter().all(|element| [0, 1].contains(element)), "{sum:?}");
    assert_eq!(there.len(), comm.nranks(), "{sum:?}");
    assert_eq!(there[comm.rank()], seat.rank, "the old order is kept");
    let expected: i64 = there.iter().map(|rank| *rank as i64 * 1000 + 1).sum();
    assert_eq!(sum[seat.nranks + 1], expected, "exact");
    Ok((there, sum[seat.nranks] == comm.nranks() as i64))
}

/// A rank of the killing tests: sums, and shrinks whenever that fails, until all are safe.
fn sum_and_shrink(seat: &Seat) -> String {
    // SAFETY: the handler stores to an atomic.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as libc::sighandler_t) };
    let before = Holdings::now();
    let (mut comm, mut took) = (seat.join(), Vec::new());
    members(&comm, seat).unwrap();
    say("ready");
    let last = loop {
        match members(&comm, seat) {
            Ok((there, true)) => break there,
            Ok(_) => {}
            Err(_) => {
                let started = Instant::now();
                comm = comm.shrink(&[], None).unwrap();
                took.push(started.elapsed().as_micros());
            }
        }
    };
    drop(comm);
    assert_eq!(Holdings::back_to(&before), before, "nothing is left behind");
    format!("{last:?};{took:?}")
}

/// Kill some of the ranks, all at random, and see how the others go on. Returns the microseconds
/// that shrinks took.
fn massacre(round: usize, random: &mut Random, mut ranks: Ranks, nranks: usize) -> Vec<u64> {
    let mut took = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    (0..nranks).for_each(|rank| assert_eq!(ranks.hear(rank, deadline).1, "ready"));
    let mut victims: Vec<usize> = Vec::new();
    let deaths = 1 + random.below(nranks - 1);
    while victims.len() < deaths {
        let victim = random.below(nranks);
        if !victims.contains(&victim) {
            // Some die together, some while the others are still making up for the last one: a
            // shrink takes one to ten milliseconds.
            let pause = random.pick(&[0, 0, 300, 1000, 2000, 4000, 8000]);
            std::thread::sleep(Duration::from_micros(random.below(pause + 1) as u64));
            ranks.signal(victim, libc::SIGKILL);
            victims.push(victim);
        }
    }
    let left: Vec<usize> = (0..nranks).filter(|rank| !victims.contains(rank)).collect();
    left.iter().for_each(|rank| ranks.signal(*rank, libc::SIGUSR1));
    for rank in 0..nranks {
        let end = ranks.end(rank, deadline);
        assert_eq!(end.killed, victims.contains(&rank), "round {round}: {:?}", end.result);
        if !end.killed {
            let there = end.result.unwrap_or_else(|why| {
                panic!("round {round}, rank {rank} of {nranks}, killed {victims:?}: {why}")
            });
            let (there, times) = there.split_once(';').expect("ranks; times");
            assert_eq!(there, format!("{left:?}"), "round {round}, killed {victims:?}");
            let times = times.split(|c: char| !c.is_ascii_digit());
            took.extend(times.filter_map(|us| us.parse::<u64>().ok()));
        }
    }
    took
}

/// A rank whose peers die one after the other, by their own hand; the first two are left.
fn outlive(seat: &Seat) -> String {
    let mut comm = seat.join();
    let mut heaps = Vec::new();
    for victim in (2..seat.nranks).rev() {
        let met = members(&comm, seat);
        if seat.rank == victim {
            met.unwrap();
            // SAFETY: no preconditions.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        // Who is slow may see the death in the call before, which the victim itself had done.
        while members(&comm, seat).is_ok() {}
        comm = comm.shrink(&[], None).unwrap();
        assert_eq!(members(&comm, seat).unwrap().0, (0..victim).collect::<Vec<_>>());
        heaps.push(heap_bytes());
    }
    // Every communicator is smaller than the one before. What is made once is made by the third.
    let (usual, last) = (heaps[2], *heaps.last().unwrap());
    assert!(last <= usual + MOST_GROWTH, "the heap after each death: {heaps:?}");
    format!("{heaps:?}")
}

/// Bytes that the C library may have put aside for threads meanwhile, which it counts as taken:
/// some 30 KiB. Each death after the third that kept more than 3 KiB would be seen.
const MOST_GROWTH: usize = 60 << 10;

#[test]
fn who_outlives_many_deaths_keeps_nothing_of_them() {
    const RANKS: usize = 24;
    let config = small_slots(RANKS, 4096);
    let mut ranks = Ranks::start_apart(RANKS, &config, "", |seat, _| outlive(seat));
    let deadline = Instant::now() + Duration::from_secs(60);
    for rank in 0..RANKS {
        let end = ranks.end(rank, deadline);
        assert_eq!(end.killed, rank > 1);
        if !end.killed {
            println!("rank {rank}: {}", end.result.unwrap());
        }
    }
}

fn print_times(mut took: Vec<u64>) {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!("{} shrinks: p50 {} us, p99 {} us, longest {}", took.len(), at(50), at(99), at(100));
}

#[test]
fn survivors_of_150_massacres_agree_on_who_is_left() {
    let (mut random, names) = (Random(77), Names::now());
    let mut took = Vec::new();
    for round in 0..150 {
        let nranks = 2 + round % 7;
        let config = small_slots(nranks, 4096);
        let ranks = Ranks::start_apart(nranks, &config, "", |seat, _| sum_and_shrink(seat));
        took.extend(massacre(round, &mut random, ranks, nranks));
    }
    names.are_all();
    print_times(took);
}

#[test]
fn survivors_of_40_massacres_on_several_hosts_agree_on_who_is_left() {
    const HOSTS: [&[usize]; 6] =
        [&[0, 1], &[0, 0, 1], &[0, 1, 2], &[0, 0, 1, 1], &[0, 1, 0, 1, 2], &[0, 1, 2, 3, 4, 5]];
    let (mut random, names) = (Random(78), Names::now());
    let mut took = Vec::new();
    for round in 0..40 {
        let hosts = HOSTS[round % HOSTS.len()];
        let config = small_slots(hosts.len(), 4096);
        let ranks = Ranks::start_on_hosts(hosts, &config, "", |seat, _| sum_and_shrink(seat));
        took.extend(massacre(round, &mut random, ranks, hosts.len()));
    }
    names.are_all();
    print_times(took);
}

#[test]
fn a_rank_that_lives_and_does_not_come_is_named_and_not_left_out() {
    let together = Barrier::new(3);
    let config = Config { timeout_ms: 1500, ..config() };
    on_threads(3, &config, |comm| {
        let text = match comm.rank() {
            1 => String::new(),
            _ => comm.shrink(&[], None).err().unwrap().to_string(),
        };
        together.wait();
        if comm.rank() != 1 {
            // The second to time out may see that the first one did.
            assert!(
                text.contains("rank 1 lives and has not called shrink")
                    || text.contains("its own shrink returned"),
                "{text}"
            );
        }
        // Who was late comes to the next one, and then it works.
        let all = comm.shrink(&[], Some(&support::config())).unwrap();
        assert_eq!((all.rank(), all.nranks()), (comm.rank(), 3));
        let mut scratch = Scratch::new(3);
        run(&all, &scratch.call(Collective::AllReduce, 100)).unwrap();
    });
}

#[test]
fn a_rank_that_has_destroyed_its_communicator_is_left_out() {
    let mut comms = Communicator::init_all(3, &config()).unwrap();
    drop(comms.remove(1));
    support::threads::run_all(&comms, |comm| {
        let fewer = comm.shrink(&[], None).unwrap();
        assert_eq!((fewer.rank(), fewer.nranks()), (comm.rank() / 2, 2));
        let mut scratch = Scratch::new(2);
        run(&fewer, &scratch.call(Collective::AllReduce, 100)).unwrap();
    });
}

#[test]
fn a_rank_that_ended_its_part_is_left_out_though_something_still_holds_it() {
    let comms = Communicator::init_all(3, &Config { timeout_ms: 5_000, ..config() }).unwrap();
    // As a stream does that has not come to its calls yet.
    comms[1].retire();
    support::threads::run_all(&comms, |comm| {
        if comm.rank() == 1 {
            return;
        }
        let fewer = comm.shrink(&[], None).unwrap();
        assert_eq!((fewer.rank(), fewer.nranks()), (comm.rank() / 2, 2));
    });
    for excluded in [&[][..], &[0]] {
        let error = comms[1].shrink(excluded, None).err().expect("it has ended its part");
        assert!(error.to_string().contains("was destroyed"), "{error}");
    }
}

#[test]
fn the_end_of_a_ranks_part_ends_its_shrinks_and_splits() {
    for excluded in [&[][..], &[2]] {
        let comms = Communicator::init_all(3, &config()).unwrap();
        let comm = &comms[0];
        std::thread::scope(|scope| {
            let shrink = scope.spawn(|| comm.shrink(excluded, None));
            // Long enough for it to be where it waits.
            std::thread::sleep(Duration::from_millis(50));
            comm.retire();
            let error = shrink.join().unwrap().err().expect("nobody else came");
            // On a busy machine it may not have begun.
            let never_began = error.to_string().contains("was destroyed");
            assert!(never_began || matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
        });
    }
}

#[test]
fn shrinks_of_an_aborted_communicator_follow_each_other() {
    on_threads(4, &config(), |comm| {
        comm.abort();
        for round in 0..5 {
            let all = comm.shrink(&[], None).unwrap();
            assert_eq!((all.rank(), all.nranks()), (comm.rank(), 4), "round {round}");
            let mut scratch = Scratch::new(4);
            run(&all, &scratch.call(Collective::AllReduce, 100)).unwrap();
        }
    });
}

#[test]
fn a_shrink_by_list_that_failed_is_made_again() {
    for hosts in [[0, 0, 0, 0], [0, 1, 1, 2]] {
        let comms = joined_hosts(&hosts, &config());
        let impatient = Config { timeout_ms: 200, ..config() };
        for rank in [0, 1] {
            let failed = comms[rank].shrink(&[3], Some(&impatient)).map(drop);
            assert!(matches!(failed, Err(Error::Missing { .. })), "{hosts:?}: {failed:?}");
        }
        support::threads::run_all(&comms[..3], |comm| {
            let fewer = comm.shrink(&[3], None).unwrap();
            assert_eq!((fewer.rank(), fewer.nranks()), (comm.rank(), 3));
            let mut scratch = Scratch::new(3);
            run(&fewer, &scratch.call(Collective::AllReduce, 100)).unwrap();
        });
    }
}

#[test]
fn an_alone_survivor_goes_on_alone() {
    let alone = Communicator::init_all(1, &config()).unwrap();
    assert_eq!(alone[0].shrink(&[], None).unwrap().nranks(), 1);
}
