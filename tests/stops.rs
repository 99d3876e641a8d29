//! Ranks that are stopped for a while, as a debugger, a snapshot or a busy machine stops them: the
//! others wait, every result is exact, and nobody takes anybody for dead.
//!
//! `scripts/soak stops` goes on for an hour, RINGCOMM_SECONDS for as long as it says.

mod support;

use ringcomm::communicator::Call;
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

/// A rank: rounds of every collective, until rank 0's clock says that it is enough.
fn work(seat: &Seat, (seconds, hosts): (&str, &str)) -> String {
    let hosts: Vec<usize> = hosts.split(' ').map(|host| host.parse().expect("a host")).collect();
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("seconds"));
    let comm = seat.join();
    say("ready");
    let (mut calls, mut random) = (0, Random(seat.nranks as u64));
    loop {
        let is_over = Instant::now() >= end;
        let mut last = u8::from(is_over);
        let call = Call {
            send: &raw const last,
            recv: &raw mut last,
            count: 1,
            ..Call::new(Collective::Broadcast, DataType::Uint8)
        };
        // SAFETY: one element, in place.
        unsafe { comm.run(&call) }.expect("nobody is dead");
        if last == 1 {
            break;
        }
        for case in mixed(&hosts, random.next()) {
            Prepared::of(case, seat.rank).run(&comm);
            calls += 1;
        }
    }
    comm.finalize().expect("nobody is dead");
    calls.to_string()
}

/// Stop random ranks of a job for random times, the first of them for `long_ms` if that is given;
/// how many calls were exact.
fn disturb(mut ranks: Ranks, hosts: &[usize], long_ms: Option<u64>, random: &mut Random) -> usize {
    let deadline = Instant::now() + Duration::from_secs(120);
    for rank in 0..hosts.len() {
        assert_eq!(ranks.hear(rank, deadline).1, "ready");
    }
    for stop in 0..STOPS {
        // Shorter than a heartbeat, than what survivors of a death take, and longer than either.
        let most = random.pick(&[5, 50, 500, 500, 2000]);
        let rank = random.below(hosts.len());
        ranks.signal(rank, libc::SIGSTOP);
        let time_ms = long_ms.filter(|_| stop == 0).unwrap_or(random.below(most) as u64);
        std::thread::sleep(Duration::from_millis(time_ms));
        ranks.signal(rank, libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(random.below(100) as u64));
    }
    let calls = |rank| {
        let end = ranks.end(rank, deadline);
        let text = end.result.unwrap_or_else(|why| panic!("{hosts:?}, rank {rank}: {why}"));
        text.parse::<usize>().expect("a number")
    };
    (0..hosts.len()).map(calls).sum()
}

#[test]
fn ranks_that_stop_and_go_on_change_nothing_and_are_taken_for_dead_by_nobody() {
    let asked = std::env::var("RINGCOMM_SECONDS").ok();
    let is_long_run = asked.is_some();
    let seconds = asked.map_or(10, |text| text.parse().expect("RINGCOMM_SECONDS is a number"));
    let (started, mut random) = (Instant::now(), Random(11));
    let (mut jobs, mut calls, mut long_stops) = (0, 0, [0; LONG_STOPS.len()]);
    while started.elapsed() < Duration::from_secs(seconds) {
        let hosts = HOSTS[jobs % HOSTS.len()];
        let words: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        // As long as the stops take.
        let argument = format!("4 {}", words.join(" "));
        let config = Config { timeout_ms: TIMEOUT_MS, spins: Some(4), ..config() };
        let ranks = Ranks::start_on_hosts(hosts, &config, &argument, |seat, argument| {
            work(seat, argument.split_once(' ').expect("seconds and hosts"))
        });
        let long = (is_long_run && jobs % LONG_EVERY == 0).then_some(jobs / LONG_EVERY % 2);
        long.iter().for_each(|which| long_stops[*which] += 1);
        calls += disturb(ranks, hosts, long.map(|which| LONG_STOPS[which]), &mut random);
        jobs += 1;
    }
    println!(
        "{jobs} jobs, {} stops, {long_stops:?} of them of {LONG_STOPS:?} ms, {calls} calls, all \
         exact, no alarm",
        jobs * STOPS
    );
}
