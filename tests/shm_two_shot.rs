//! All-reduces through scratch that processes share, in windows: the bits of the serial loop in
//! every form, named errors when a rank fails in the middle, and slots where no scratch is shared.

mod support;

use ringcomm::communicator::{Call, Communicator, Explanation};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::delays::{asked, judge};
use support::holdings::{Holdings, set_descriptors};
use support::pace::Pace;
use support::processes::{Ranks, say};
use support::samples::operations;
use support::scratch::{ROOM, Scratch, run};
use support::{Case, Data, Prepared, Random, calm, on_processes, small_slots, windowed};

/// Bytes of a slot where a short vector is to take several windows.
const SLOT: usize = 1024;

/// Windows of as much as two slots for each peer.
fn short_windows(nranks: usize) -> Config {
    Config { tuning_file: windowed(nranks).tuning_file, ..small_slots(nranks, SLOT) }
}

fn window_bytes(nranks: usize) -> usize {
    2 * SLOT * (nranks - 1)
}

/// How an all-reduce of so many floats runs.
fn explained(comm: &Communicator, count: usize) -> Explanation {
    let (send, recv) =
        (std::ptr::without_provenance(1 << 20), std::ptr::without_provenance_mut(1 << 40));
    let call = Call { send, recv, count, ..Call::new(Collective::AllReduce, DataType::Float32) };
    comm.explain(&call).unwrap()
}

fn in_windows(comm: &Communicator) -> bool {
    explained(comm, ROOM).transport.ends_with("two-shot")
}

#[test]
fn sums_are_the_serial_loops_for_every_type_operation_and_count() {
    for nranks in [2, 3, 4, 7] {
        on_processes(nranks, &short_windows(nranks), "", |comm, _| {
            let nranks = comm.nranks();
            let mut seed = 0;
            for data_type in DataType::ALL {
                for op in operations().filter(|op| op.supports(data_type)) {
                    let window = window_bytes(nranks) / data_type.size();
                    for count in [1, nranks - 1, nranks + 1, window, 2 * window + nranks + 2] {
                        let case = Case::new(Collective::AllReduce, nranks, count, data_type);
                        for in_place in [false, true] {
                            let data = if data_type.is_float() { Data::Special } else { case.data };
                            seed += 1;
                            let case = Case { op, in_place, seed, data, ..case.clone() };
                            Prepared::of(case, comm.rank()).run(comm);
                        }
                    }
                }
            }
            assert!(in_windows(comm));
            String::new()
        });
    }
}

/// Two processes of two threads each: some scratch is in another process, some is not.
#[test]
fn ranks_that_share_processes_share_scratch_too() {
    let mut ranks = Ranks::start_apart(2, &short_windows(4), "", |seat, _| {
        let work = |rank: usize| {
            let comm = Communicator::init_rank(4, &seat.id, rank, &seat.config).unwrap();
            assert!(in_windows(&comm));
            for seed in 0..20 {
                let case = Case::new(Collective::AllReduce, 4, 5000, DataType::Bfloat16);
                let case = Case { seed, data: Data::Special, in_place: seed % 2 == 0, ..case };
                Prepared::of(case, rank).run(&comm);
            }
        };
        std::thread::scope(|scope| {
            (0..2).for_each(|thread| drop(scope.spawn(move || work(2 * seat.rank + thread))));
        });
        String::new()
    });
    (0..2).for_each(|rank| drop(ranks.end(rank, soon()).result.unwrap()));
}

#[test]
fn an_explanation_counts_windows_and_what_they_hold() {
    on_processes(3, &windowed(3), "", |comm, _| {
        // Two windows of 512 KiB and a rest of one element.
        let count = (1 << 18) + 1;
        let Explanation { algorithm, transport, chunks, slices, slice_bytes, .. } =
            explained(comm, count);
        assert_eq!((algorithm, transport), ("twoshot", "shm/direct or shm/two-shot"));
        assert_eq!((chunks, slices), (3, 3));
        assert_eq!(slice_bytes, (1usize << 17).div_ceil(3) * 4);
        String::new()
    });
}

/// What is asked for is what runs, and what must be in serial order is.
#[test]
fn settings_decide_whether_there_are_windows() {
    let ring = || Some("ring".to_string());
    let settings = [
        (Config { algorithm: Some("twoshot".into()), ..short_windows(3) }, "two-shot"),
        (Config { deterministic: true, ..short_windows(3) }, "two-shot"),
        (Config { deterministic: true, algorithm: ring(), ..short_windows(3) }, "two-shot"),
        (Config { algorithm: ring(), ..short_windows(3) }, "slots"),
        (Config { tuning_file: support::staged(3).tuning_file, ..short_windows(3) }, "slots"),
        // One host that is said to be several.
        (Config { hosts: Some(vec![0, 0, 1]), ..short_windows(3) }, "slots"),
    ];
    for (config, transport) in settings {
        on_processes(3, &config, transport, |comm, transport| {
            let explanation = explained(comm, ROOM);
            assert!(explanation.transport.ends_with(transport), "{explanation:?}");
            let asked = comm.config().algorithm.as_deref();
            let wanted = asked.filter(|_| !comm.config().deterministic);
            assert!(wanted.is_none_or(|wanted| explanation.algorithm == wanted));
            let case = Case::new(Collective::AllReduce, 3, ROOM, DataType::Float32);
            let order = comm.config().algorithm.as_deref() == Some("ring");
            let exact = order || comm.config().hosts.is_some();
            let data =
                if exact && !comm.config().deterministic { case.data } else { Data::Special };
            let in_place = comm.config().deterministic;
            Prepared::of(Case { data, in_place, ..case }, comm.rank()).run(comm);
            String::new()
        });
    }
}

#[test]
fn ranks_on_several_hosts_share_no_scratch() {
    for hosts in [&[0, 1][..], &[0, 0, 1]] {
        let config =
            Config { tuning_file: windowed(hosts.len()).tuning_file, ..small_slots(3, SLOT) };
        let mut ranks = Ranks::start_on_hosts(hosts, &config, "", |seat, _| {
            let comm = seat.join();
            let transport = explained(&comm, ROOM).transport;
            let case = Case::new(Collective::AllReduce, seat.nranks, ROOM, DataType::Float32);
            Prepared::of(case, seat.rank).run(&comm);
            transport.into()
        });
        for rank in 0..hosts.len() {
            let text = ranks.end(rank, soon()).result.unwrap();
            assert!(text.ends_with("tcp"), "{text}");
        }
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Ranks that meet in window after window until a call fails; its error.
fn sum_until_a_call_fails(comm: &Communicator) -> String {
    sum_and_count(comm, &AtomicUsize::new(0))
}

/// The same; how many calls were good.
fn sum_and_count(comm: &Communicator, good: &AtomicUsize) -> String {
    let mut scratch = Scratch::new(comm.nranks());
    let call = scratch.call(Collective::AllReduce, ROOM);
    assert!(in_windows(comm));
    run(comm, &call).unwrap();
    say("ready");
    loop {
        good.fetch_add(1, SeqCst);
        if let Err(error) = run(comm, &call) {
            return error.to_string();
        }
    }
}

#[test]
fn survivors_of_kills_in_windows_name_the_rank_and_hold_nothing() {
    let (mut random, mut delays) = (Random(7), Vec::new());
    // So few that only the longest delay is held to what is promised.
    for round in 0..asked().unwrap_or(30) {
        let nranks = 2 + round % 4;
        let mut ranks = Ranks::start_apart(nranks, &short_windows(nranks), "", |seat, _| {
            let before = Holdings::now();
            let comm = seat.join();
            let error = sum_until_a_call_fails(&comm);
            say(&error);
            drop(comm);
            assert_eq!(Holdings::back_to(&before), before, "nothing is left behind");
            error
        });
        (0..nranks).for_each(|rank| assert_eq!(ranks.hear(rank, soon()).1, "ready"));
        std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
        let victim = random.below(nranks);
        let (pace, killed) = (Pace::beside(ranks.pids()), Instant::now());
        ranks.signal(victim, libc::SIGKILL);
        let dead = ranks.who(victim) + " died";
        for rank in (0..nranks).filter(|rank| *rank != victim) {
            let (at, text) = ranks.hear(rank, soon());
            assert!(text.contains(&dead) && text.contains("AllReduce(count=20000"), "{text}");
            delays.push(pace.timed(killed, at));
        }
        for rank in (0..nranks).filter(|rank| *rank != victim) {
            ranks.end(rank, soon()).result.unwrap();
        }
    }
    judge("windows", &mut delays);
}

#[test]
fn a_rank_that_is_stopped_in_windows_is_named_at_the_deadline() {
    for nranks in [2, 4] {
        let config = Config { timeout_ms: 2500, ..short_windows(nranks) };
        let mut ranks = Ranks::start(nranks, &config, "", |comm, _| sum_until_a_call_fails(comm));
        (0..nranks).for_each(|rank| assert_eq!(ranks.hear(rank, soon()).1, "ready"));
        std::thread::sleep(Duration::from_millis(20));
        ranks.signal(1, libc::SIGSTOP);
        for rank in (0..nranks).filter(|rank| *rank != 1) {
            let text = ranks.end(rank, soon()).result.unwrap();
            assert!(text.contains("timeout") && text.contains("rank 1"), "{text}");
            assert!(text.contains("AllReduce(count=20000"), "{text}");
        }
        ranks.signal(1, libc::SIGCONT);
        let text = ranks.end(1, soon()).result.unwrap();
        assert!(text.contains("timeout"), "the stopped rank learns why it is alone: {text}");
    }
}

#[test]
fn an_abort_in_windows_ends_the_call_on_every_rank() {
    for after_us in [0, 300, 1000, 3000] {
        let config = short_windows(3);
        let mut ranks = Ranks::start(3, &config, &after_us.to_string(), |comm, after_us| {
            let after = Duration::from_micros(after_us.parse().unwrap());
            let good = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                if comm.rank() == 0 {
                    scope.spawn(|| {
                        // With the second call of one rank the first is over on all.
                        while good.load(SeqCst) < 2 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        std::thread::sleep(after);
                        comm.abort();
                    });
                }
                sum_and_count(comm, &good)
            })
        });
        for rank in 0..3 {
            let text = ranks.end(rank, soon()).result.unwrap();
            assert!(text.contains("abort"), "rank {rank}: {text}");
            assert!(rank == 0 || text.contains("rank 0"), "rank {rank}: {text}");
        }
    }
}

/// What rank 1 calls in the place of a sum of floats, and how errors name that.
type Slip = (fn(&mut Call), &'static str);

const SLIPS: [Slip; 5] = [
    (|call| call.count -= 1, "AllReduce(count=ONE_LESS,"),
    (|call| call.count = 1, "AllReduce(count=1,"),
    (|call| call.op = ReduceOp::Max, "op=max"),
    (|call| call.data_type = DataType::Int32, "type=int32"),
    (|call| (call.collective, call.count) = (Collective::AllGather, 100), "AllGather(count=100"),
];

/// Rank 1 makes another call after so many that agree.
fn disagree(comm: &Communicator, slip: usize, calls_before: usize, count: usize) {
    let mut scratch = Scratch::new(comm.nranks());
    let good = scratch.call(Collective::AllReduce, count);
    (0..calls_before).for_each(|_| run(comm, &good).unwrap());
    let (change, wrong) = SLIPS[slip];
    let mut call = good.clone();
    if comm.rank() == 1 {
        change(&mut call);
    }
    let outcome = run(comm, &call).and_then(|()| run(comm, &good));
    let text = outcome.expect_err("a mismatch").to_string();
    let (right, one_less) = (format!("AllReduce(count={count},"), (count - 1).to_string());
    let named = text.contains(&right) && text.contains(&wrong.replace("ONE_LESS", &one_less));
    assert!(named && text.contains("rank 1 "), "slip {slip} after {calls_before}: {text}");
}

/// In the first call, which opens the scratch, and in a later one.
#[test]
fn ranks_that_disagree_in_windows_all_fail_and_name_both_calls() {
    for nranks in [2, 3] {
        // A short vector's ranks do not ask where buffers are before they meet in windows.
        let short = Config { algorithm: Some("twoshot".into()), ..calm(nranks) };
        for (config, count) in [(short_windows(nranks), ROOM), (short, 37)] {
            for slip in 0..SLIPS.len() {
                let argument = format!("{slip} {count}");
                on_processes(nranks, &config, &argument, |comm, argument| {
                    let numbers: Vec<usize> =
                        argument.split(' ').map(|number| number.parse().unwrap()).collect();
                    let transport = explained(comm, numbers[1]).transport;
                    assert!(transport.ends_with("two-shot"), "{transport}");
                    assert_eq!(numbers[1] == ROOM, transport != "shm/two-shot");
                    for calls_before in [0, 2] {
                        let comm = comm.split(0, 0, None).unwrap().unwrap();
                        disagree(&comm, numbers[0], calls_before, numbers[1]);
                    }
                    String::new()
                });
            }
        }
    }
}

#[test]
fn communicators_with_scratch_come_and_go_without_a_trace() {
    on_processes(3, &short_windows(3), "", |comm, _| {
        let mut scratch = Scratch::new(3);
        let call = scratch.call(Collective::AllReduce, ROOM);
        let cycle = || {
            let child = comm.split(0, 0, None).unwrap().unwrap();
            assert!(in_windows(&child));
            run(&child, &call).unwrap();
            assert!(in_windows(&child), "there is scratch");
        };
        (0..3).for_each(|_| cycle());
        let before = Holdings::now();
        (0..20).for_each(|_| cycle());
        assert_eq!(Holdings::back_to(&before), before, "something is left behind");
        String::new()
    });
}

/// Rank 1 cannot make or take descriptors for so many calls; which of five went through scratch.
fn calls_with_scratch(comm: &Communicator, poor_calls: usize) -> String {
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
    let regions = || maps().lines().filter(|line| line.contains("memfd:ringcomm-user")).count();
    let went = |number| {
        if comm.rank() == 1 {
            set_descriptors((number < poor_calls).then_some(3));
        }
        let case = Case::new(Collective::AllReduce, 3, ROOM, DataType::Float32);
        Prepared::of(Case { data: Data::Special, ..case }, comm.rank()).run(comm);
        set_descriptors(None);
        // This rank's and those of its peers.
        if regions() == 3 { 'x' } else { '-' }
    };
    let went: String = (0..5).map(went).collect();
    format!("{went}, {}", if in_windows(comm) { "windows" } else { "slots" })
}

#[test]
fn where_a_rank_cannot_share_scratch_all_go_through_slots() {
    for (poor_calls, wanted) in [
        (0, "xxxxx, windows"),
        (1, "-xxxx, windows"),
        (2, "--xxx, windows"),
        // It is not tried again.
        (3, "-----, slots"),
        (5, "-----, slots"),
    ] {
        let poor = poor_calls.to_string();
        let ends = on_processes(3, &short_windows(3), &poor, |comm, poor_calls| {
            calls_with_scratch(comm, poor_calls.parse().unwrap())
        });
        assert!(ends.iter().all(|end| end == wanted), "{poor_calls}: {ends:?}");
    }
}
