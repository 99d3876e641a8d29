//! Ranks that are stopped for a while, as a debugger, a snapshot or a busy machine stops them, in
//! calls and while they meet: the others wait, every result is exact, and nobody takes anybody for
//! dead.
//!
//! `scripts/soak stops` goes on for an hour in each of the two tests, RINGCOMM_SECONDS for half as
//! long as it says.

mod support;

use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::time::{Duration, Instant};
use support::processes::{Ranks, Seat, say};
use support::samples::mixed;
use support::{Prepared, Random, config};

/// Ranks by host: all on one, which share memory, and several.
const HOSTS: [&[usize]; 6] =
    [&[0, 0], &[0, 1], &[0, 0, 0, 0], &[0, 0, 1, 1], &[0, 1, 2], &[0, 1, 0, 1, 2]];

/// A stopped rank is waited for as long as this, many times what it is stopped for.
const TIMEOUT_MS: u64 = 60_000;

/// Stops of one job.
const STOPS: usize = 12;

/// Milliseconds of the first stop of jobs in a long run: longer than a rank is suspected whose
/// connection broke (3 s), than the kernel sends again without an answer (6 s), than anything but
/// the deadline.
const LONG_STOPS: [u64; 2] = [10_000, 30_000];

/// Of so many jobs in a long run one has a long stop.
const LONG_EVERY: usize = 5;

/// How long ranks stop that meet: several times what who waits takes between two looks at whether
/// the others are still there (20 ms).
const STOP_MS: u64 = 300;

/// What a job's ranks are told: after how many seconds it is enough, and their hosts.
fn argument(seconds: u64, hosts: &[usize]) -> String {
    let words: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    format!("{seconds} {}", words.join(" "))
}

/// When it is enough, and the hosts of all ranks.
fn told(argument: &str) -> (Instant, Vec<usize>) {
    let (seconds, hosts) = argument.split_once(' ').expect("seconds and hosts");
    let hosts = hosts.split(' ').map(|host| host.parse().expect("a host")).collect();
    (Instant::now() + Duration::from_secs(seconds.parse().expect("seconds")), hosts)
}

/// Whether rank 0's clock says that it is enough.
fn is_over(comm: &Communicator, end: Instant) -> bool {
    let mut last = u8::from(Instant::now() >= end);
    let call = Call {
        send: &raw const last,
        recv: &raw mut last,
        count: 1,
        ..Call::new(Collective::Broadcast, DataType::Uint8)
    };
    // SAFETY: one element, in place.
    unsafe { comm.run(&call) }.expect("nobody is dead");
    last == 1
}

/// A rank: rounds of every collective until it is enough.
fn work(seat: &Seat, argument: &str) -> String {
    let (end, hosts) = told(argument);
    let comm = seat.join();
    say("ready");
    let (mut calls, mut random) = (0, Random(seat.nranks as u64));
    while !is_over(&comm, end) {
        for case in mixed(&hosts, random.next()) {
            Prepared::of(case, seat.rank).run(&comm);
            calls += 1;
        }
    }
    comm.finalize().expect("nobody is dead");
    calls.to_string()
}

/// A rank: meetings of all ranks or of every other one, and a few calls after each.
fn meet(seat: &Seat, argument: &str) -> String {
    say("here");
    let comm = seat.join();
    say("ready");
    let (end, hosts) = told(argument);
    let (mut calls, mut random) = (0, Random(seat.nranks as u64));
    loop {
        let groups = 1 + random.below(2);
        let color = seat.rank % groups;
        let child = comm.split(color as i32, 0, None).expect("nobody is dead").expect("a member");
        let hosts: Vec<usize> = hosts.iter().skip(color).step_by(groups).copied().collect();
        for case in mixed(&hosts, random.next()).into_iter().take(3) {
            Prepared::of(case, child.rank()).run(&child);
            calls += 1;
        }
        child.finalize().expect("nobody is dead");
        if is_over(&comm, end) {
            break;
        }
    }
    comm.finalize().expect("nobody is dead");
    calls.to_string()
}

/// The longest that a rank says nothing.
fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

fn stop(ranks: &Ranks, rank: usize, time_ms: u64) {
    ranks.signal(rank, libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(time_ms));
    ranks.signal(rank, libc::SIGCONT);
}

/// Stop random ranks for these times, once all are ready; how many calls were exact.
fn disturb(mut ranks: Ranks, hosts: &[usize], times_ms: &[u64], random: &mut Random) -> usize {
    let deadline = deadline();
    for rank in 0..hosts.len() {
        while ranks.hear(rank, deadline).1 != "ready" {}
    }
    for time_ms in times_ms {
        stop(&ranks, random.below(hosts.len()), *time_ms);
        std::thread::sleep(Duration::from_millis(random.below(100) as u64));
    }
    let calls = |rank| {
        let end = ranks.end(rank, deadline);
        let text = end.result.unwrap_or_else(|why| panic!("{hosts:?}, rank {rank}: {why}"));
        text.parse::<usize>().expect("a number")
    };
    (0..hosts.len()).map(calls).sum()
}

/// How long a test goes on, and whether somebody asked for it: for both together, one after the
/// other.
fn patience() -> (Duration, bool) {
    match std::env::var("RINGCOMM_SECONDS") {
        Ok(all) => {
            let all = all.parse().expect("RINGCOMM_SECONDS is a number");
            (Duration::from_secs(all) / 2, true)
        }
        Err(_) => (Duration::from_secs(10), false),
    }
}

#[test]
fn ranks_that_stop_and_go_on_change_nothing_and_are_taken_for_dead_by_nobody() {
    let (started, mut random) = (Instant::now(), Random(11));
    let (time, is_long_run) = patience();
    let (mut jobs, mut calls, mut long_stops) = (0, 0, [0; LONG_STOPS.len()]);
    while started.elapsed() < time {
        let hosts = HOSTS[jobs % HOSTS.len()];
        let config = Config { timeout_ms: TIMEOUT_MS, spins: Some(4), ..config() };
        // As long as the stops take.
        let ranks = Ranks::start_on_hosts(hosts, &config, &argument(4, hosts), |seat, argument| {
            work(seat, argument)
        });
        // Shorter than a heartbeat, than what survivors of a death take, and longer than either.
        let mut time_ms = |_| {
            let most = random.pick(&[5, 50, 500, 500, 2000]);
            random.below(most) as u64
        };
        let mut times_ms: [u64; STOPS] = std::array::from_fn(&mut time_ms);
        if is_long_run && jobs % LONG_EVERY == 0 {
            let which = jobs / LONG_EVERY % LONG_STOPS.len();
            times_ms[0] = LONG_STOPS[which];
            long_stops[which] += 1;
        }
        calls += disturb(ranks, hosts, &times_ms, &mut random);
        jobs += 1;
    }
    println!(
        "{jobs} jobs, {} stops, {long_stops:?} of them of {LONG_STOPS:?} ms, {calls} calls, all \
         exact, no alarm",
        jobs * STOPS
    );
}

/// Stop three ranks while they meet, each before the one before it goes on: the last, until others
/// wait for it; one that then is the only one that has not heard of all; and one that has, for
/// which those of its host wait.
fn delay(ranks: &mut Ranks, nranks: usize, random: &mut Random) {
    let (last, first) = (nranks - 1, random.below(nranks - 1));
    let other = (first + 1 + random.below(nranks - 1)) % nranks;
    ranks.signal(last, libc::SIGSTOP);
    assert_eq!(ranks.hear(first, deadline()).1, "here");
    for (before, next) in [(last, first), (first, other)] {
        // Most are so far by then.
        std::thread::sleep(Duration::from_millis(random.below(200) as u64));
        ranks.signal(next, libc::SIGSTOP);
        ranks.signal(before, libc::SIGCONT);
    }
    std::thread::sleep(Duration::from_millis(STOP_MS));
    ranks.signal(other, libc::SIGCONT);
}

#[test]
fn ranks_that_stop_while_they_meet_are_waited_for() {
    let (started, mut random) = (Instant::now(), Random(12));
    let (time, _) = patience();
    let (mut jobs, mut calls) = (0, 0);
    while started.elapsed() < time {
        let hosts = HOSTS[jobs % HOSTS.len()];
        let config = Config { timeout_ms: TIMEOUT_MS, spins: Some(4), ..config() };
        let mut ranks =
            Ranks::start_on_hosts(hosts, &config, &argument(1, hosts), |seat, argument| {
                meet(seat, argument)
            });
        delay(&mut ranks, hosts.len(), &mut random);
        calls += disturb(ranks, hosts, &[STOP_MS; 3], &mut random);
        jobs += 1;
    }
    println!("{jobs} jobs, {calls} calls after meetings, all exact, no alarm");
}
