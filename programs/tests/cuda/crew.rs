//! Ranks that are processes with a device each: kernels that wait for each other's, and graphs.

use super::fake;
use super::flags::{ALGORITHMS, cases};
use super::here::{has_devices, has_reach, hold, is_on_fake, release};
use super::processes::{SHARED, check_sum, finish, join, transport};
use super::streams::{Floats, sum};
use super::support::processes::{Ranks, Seat as Place};
use super::support::{HARD_DEADLINE_S, config, small_slots};
use super::{Bench, ndevices};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::Replay;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::time::{Duration, Instant};

/// How calls run by kernels that wait for other processes'.
const FLAGS: &str = "gpu/p2p by ipc";

/// Longer than all that is done while a stream is held, where it cannot be let go sooner.
const HELD: Duration = Duration::from_secs(8);

/// So many processes have a device each; says so where there are some, and fewer.
pub fn has_one_each(nranks: usize) -> bool {
    has_devices(nranks) && has_reach(nranks)
}

pub fn asking(algorithm: &str) -> Config {
    Config { algorithm: Some(algorithm.into()), ..config() }
}

/// Run `body` on processes with a device each.
#[track_caller]
pub fn each<F>(nranks: usize, config: &Config, argument: &str, body: F) -> Vec<String>
where
    F: Fn(&Place, &str) -> String,
{
    if !has_one_each(nranks) {
        return Vec::new();
    }
    finish(Ranks::start_apart(nranks, config, argument, body), nranks)
}

/// A graph of sums in place.
fn graph(
    comm: &Communicator,
    bench: &Bench,
    floats: &[&Floats],
) -> ringcomm::error::Result<Replay> {
    bench.stream.capture(|| {
        // SAFETY: the memory lives as long as the graph.
        floats.iter().try_for_each(|floats| unsafe { comm.call(&sum(floats, bench)) })
    })
}

/// The sum of a number of every rank's, in host memory.
pub fn sum_on_host(comm: &Communicator, mut value: f32) -> f32 {
    let place: *mut f32 = &mut value;
    let call = Call {
        send: place.cast(),
        recv: place.cast(),
        count: 1,
        ..Call::new(Collective::AllReduce, DataType::Float32)
    };
    // SAFETY: a float, in place.
    unsafe { comm.call(&call) }.unwrap();
    value
}

/// The error that a rank is told of without a call of its own, once it is.
fn told(comm: &Communicator) -> String {
    let started = Instant::now();
    loop {
        if let Some(error) = comm.async_error() {
            return error.to_string();
        }
        assert!(started.elapsed().as_secs() < HARD_DEADLINE_S, "nothing was told");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_algorithm_between_processes_with_a_device_each() {
    let nranks = if ndevices() > 3 { 4 } else { 2 };
    if !has_one_each(nranks) {
        return;
    }
    for (index, name) in ALGORITHMS.into_iter().enumerate() {
        let slots = small_slots(nranks, [1024, 4096, 40_000][index % 3]);
        // A rank says why it has no such kernels.
        let config = Config { algorithm: Some(name.into()), debug: 1, ..slots };
        each(nranks, &config, name, |place, name| {
            let (comm, bench) = join(place);
            let (mut went, seed) = (0, name.len() as u64);
            for case in cases(place.nranks, seed) {
                if let Err(text) = case.outcome_on(&comm, Some(&bench)) {
                    panic!("rank {} of {:?}, {name}: {text}", place.rank, case.case);
                }
                let answer = case.explain(&comm);
                went += usize::from(answer.transport == FLAGS && answer.algorithm == name);
            }
            assert!(
                went > 3,
                "{went} calls by kernels that wait, for {name}: {}",
                transport(&comm)
            );
            String::new()
        });
    }
}

/// Without an algorithm, calls are fused: nobody's kernel waits for a call that another rank has
/// yet to make.
#[test]
fn what_is_not_asked_for_is_fused() {
    each(2, &config(), "", |place, _| {
        let (comm, bench) = join(place);
        check_sum(&comm, &bench, 1000);
        let call = Call { count: 100, ..Call::new(Collective::AllReduce, DataType::Float32) };
        let answer = comm.explain(&call).unwrap();
        assert_eq!((answer.algorithm, answer.transport), ("fused", SHARED));
        String::new()
    });
}

#[test]
fn a_graph_of_processes_is_replayed_and_outlives_its_communicator() {
    each(2, &config(), "", |place, _| {
        let (comm, bench) = join(place);
        let (small, large) = (Floats::new(&bench, &[1.0; 50]), Floats::new(&bench, &[1.0; 70_000]));
        let replay = graph(&comm, &bench, &[&small, &large, &small]).unwrap();
        assert_eq!(small.read(&bench), [1.0; 50], "a captured call ran");
        for round in 1..=4 {
            replay.launch(&bench.stream).unwrap();
            // A call of its own between two launches, on the same stream.
            check_sum(&comm, &bench, 1000);
            assert_eq!(small.read(&bench), [(1 << (2 * round)) as f32; 50]);
            assert_eq!(large.read(&bench), vec![(1 << round) as f32; 70_000]);
        }
        drop(comm);
        replay.launch(&bench.stream).unwrap();
        assert_eq!(small.read(&bench), [1024.0; 50]);
        assert_eq!(large.read(&bench), vec![32.0; 70_000]);
        String::new()
    });
}

/// Every collective in a graph, on values that change between its launches.
#[test]
fn every_collective_between_processes_in_a_graph() {
    each(2, &config(), "", |place, _| {
        let (comm, bench) = join(place);
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast,
            Collective::Reduce,
            Collective::AllToAll,
            Collective::Gather,
            Collective::Scatter,
        ] {
            let (input, output) =
                (Floats::new(&bench, &[0.0; 600]), Floats::new(&bench, &[0.0; 600]));
            let call = Call {
                send: input.memory.pointer(),
                recv: output.memory.pointer(),
                root: 1,
                count: 300,
                ..Call::new(collective, DataType::Float32)
            };
            let call = Call { order: sum(&input, &bench).order, ..call };
            // SAFETY: the memory lives as long as the graph.
            let replay = bench.stream.capture(|| unsafe { comm.call(&call) }).unwrap();
            for round in 0..3 {
                let of = |rank: usize, at: usize| (100 * round + 10 * rank + at % 7) as f32;
                let mine: Vec<f32> = (0..600).map(|at| of(place.rank, at)).collect();
                input.write(&bench, &mine);
                output.write(&bench, &[-1.0; 600]);
                replay.launch(&bench.stream).unwrap();
                let (got, me) = (output.read(&bench), place.rank);
                let is_root = me == 1;
                let want = |at: usize| {
                    let (peer, within) = (at / 300, at % 300);
                    let both = |at: usize| of(0, at) + of(1, at);
                    match collective {
                        Collective::AllReduce if peer == 0 => both(at),
                        Collective::Reduce if is_root && peer == 0 => both(at),
                        Collective::ReduceScatter if peer == 0 => both(300 * me + at),
                        Collective::AllGather => of(peer, within),
                        Collective::Gather if is_root => of(peer, within),
                        Collective::Broadcast if peer == 0 => of(1, at),
                        Collective::AllToAll => of(peer, 300 * me + within),
                        Collective::Scatter if peer == 0 => of(1, 300 * me + at),
                        _ => -1.0,
                    }
                };
                let wrong = (0..600).find(|at| got[*at] != want(*at));
                assert!(wrong.is_none(), "{collective:?}, round {round}, at {wrong:?}");
            }
        }
        String::new()
    });
}

/// A graph has a call of all ranks or of none; a rank whose buffers no kernel reaches refuses; and
/// the communicator goes on after each.
#[test]
fn captures_that_not_all_ranks_share_are_refused_and_they_go_on() {
    each(2, &config(), "", |place, _| {
        let (comm, bench) = join(place);
        let floats = Floats::new(&bench, &[1.0; 100]);
        let mut values = vec![1f32; 100];
        let on_host = Call {
            send: values.as_ptr().cast(),
            recv: values.as_mut_ptr().cast(),
            ..sum(&floats, &bench)
        };
        for victim in [0, 1] {
            let is_victim = place.rank == victim;
            // SAFETY: the memory lives; nothing is run.
            let called = || unsafe { comm.call(&sum(&floats, &bench)) };
            let error = match is_victim {
                true => called().unwrap_err(),
                false => bench.stream.capture(called).err().expect("no graph"),
            };
            let text = error.to_string();
            let want = format!(
                "rank {} gives this call to a stream that is being captured, and rank {victim}",
                1 - victim
            );
            assert!(text.contains(&want), "{text}");
            let call = if is_victim { on_host.clone() } else { sum(&floats, &bench) };
            // SAFETY: as above.
            let error = bench.stream.capture(|| unsafe { comm.call(&call) }).err().expect("none");
            let want = match is_victim {
                true => "a buffer is not on its rank's device".to_string(),
                false => format!("rank {victim} has refused this call"),
            };
            assert!(error.to_string().contains(&want), "{error}");
            assert!(!comm.is_broken());
            check_sum(&comm, &bench, 1000);
        }
        assert_eq!((floats.read(&bench), values), (vec![1.0; 100], vec![1.0; 100]));
        String::new()
    });
}

/// A buffer in host memory takes a call through the host, between calls of kernels that wait; and
/// calls follow each other on two streams.
#[test]
fn calls_of_kernels_that_wait_follow_each_other_and_those_of_the_host() {
    each(2, &asking("ring"), "", |place, _| {
        let (comm, bench) = join(place);
        let other = Bench::new(comm.device().unwrap());
        let floats = Floats::new(&bench, &[1.0; 1000]);
        let mut want = 1.0;
        for index in 0..60 {
            if index % 20 == 10 && index / 20 % 2 == place.rank {
                assert_eq!(sum_on_host(&comm, place.rank as f32 + 1.0), 3.0);
            } else if index % 20 == 10 {
                check_sum(&comm, &bench, 1);
            }
            want = if want < 1e6 { 2.0 * want } else { want };
            let is_sum = index < 20;
            let call = sum(&floats, if index % 3 == 0 { &other } else { &bench });
            let op = match is_sum {
                true => ringcomm::types::ReduceOp::Sum,
                false => ringcomm::types::ReduceOp::Avg,
            };
            // SAFETY: the memory lives until it is read.
            unsafe { comm.call(&Call { op, ..call }) }.unwrap();
        }
        other.stream.synchronize().unwrap();
        assert_eq!(floats.read(&bench), vec![want; 1000]);
        String::new()
    });
}

/// How a rank is lost to a call that others' kernels are in.
fn lose(place: &Place, how: &str) -> String {
    let (comm, bench) = join(place);
    check_sum(&comm, &bench, 1000);
    let floats = Floats::new(&bench, &[1.0; 1000]);
    let replay = graph(&comm, &bench, &[&floats]).unwrap();
    let in_graph = how.starts_with("graph");
    let is_victim = place.rank == 1;
    if is_victim && !in_graph {
        hold(&bench, HELD);
    }
    if !in_graph {
        // SAFETY: the memory lives as long as the process.
        unsafe { comm.call(&sum(&floats, &bench)) }.unwrap();
    } else if !is_victim {
        replay.launch(&bench.stream).unwrap();
    }
    if is_victim && how.ends_with("dies") {
        // The other's kernel waits by then, or will.
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: it ends this process, as from outside.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    if is_victim && how.ends_with("aborts") {
        comm.abort();
    }
    if is_victim && how.ends_with("leaves") {
        comm.finalize().unwrap();
        // SAFETY: it ends this process, whose streams are where they are.
        unsafe { libc::_exit(0) };
    }
    if is_victim {
        // It lives on, and its part does not come: until the other has said so.
        let started = Instant::now();
        while comm.async_error().is_none() && started.elapsed().as_secs() < HARD_DEADLINE_S {
            std::thread::sleep(Duration::from_millis(5));
        }
        let text = comm.async_error().map(|error| error.to_string()).unwrap_or_default();
        release();
        bench.stream.synchronize().unwrap();
        return text;
    }
    // The stream comes to its end without a call of this rank's.
    bench.stream.synchronize().unwrap();
    let text = told(&comm);
    // SAFETY: the memory lives until the stream is synchronized.
    let error = unsafe { comm.call(&sum(&floats, &bench)) }.unwrap_err().to_string();
    assert!(error.contains("rank 1"), "{error}");
    let fresh = Floats::new(&bench, &[5.0; 10]);
    assert_eq!(fresh.read(&bench), [5.0; 10], "the stream is good for other work");
    text
}

#[test]
fn a_kernel_that_waits_for_a_process_that_is_lost_ends() {
    if !has_one_each(2) {
        return;
    }
    for how in [
        "call dies",
        "graph dies",
        "call aborts",
        "graph aborts",
        "call late",
        "graph late",
        "call leaves",
    ] {
        let timeout_ms = if how.ends_with("late") { 1500 } else { 60_000 };
        let config = Config { timeout_ms, ..asking("ring") };
        // A closure, by whose type the process finds its test.
        #[expect(clippy::redundant_closure)]
        let mut ranks = Ranks::start_apart(2, &config, how, |place, how| lose(place, how));
        let deadline = Instant::now() + Duration::from_secs(HARD_DEADLINE_S);
        let ends = [0, 1].map(|rank| ranks.end(rank, deadline));
        assert_eq!(ends[1].killed, how.ends_with("dies"), "{how}");
        let [survivor, _] = ends;
        let text = survivor.result.unwrap_or_else(|why| panic!("{how}: {why}"));
        assert!(text.contains("rank 1"), "{how}: {text}");
        if how.ends_with("late") {
            assert!(text.contains("a kernel waited for"), "{how}: {text}");
        }
        if how.ends_with("leaves") {
            assert!(text.contains("left and ended before its device"), "{how}: {text}");
        }
    }
}

/// What is called to make these kernels possible, and to try them.
const SYMBOLS: [&str; 11] = [
    "cuMemAlloc_v2",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemHostAlloc",
    "cuMemsetD8Async",
    "cuMemcpyAsync",
    "cuLaunchKernel",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventElapsedTime",
    "cuStreamCreate",
];

/// Every such entry point failing on one rank at one of its last calls, which are those of these
/// kernels: all are fused or go through the host, and say why, or end with an error; nobody waits
/// for ever.
#[test]
fn an_error_while_kernels_of_processes_are_tried_ends_in_words() {
    if !is_on_fake() || !has_one_each(2) {
        return;
    }
    let config = asking("ring");
    // A rank's process finds this test by the closure's name.
    #[allow(clippy::redundant_closure)]
    let run = |what: &str| each(2, &config, what, |place, what| afflicted(place, what));
    let counts = run("");
    let count = |rank: usize, at: usize| counts[rank].split(' ').nth(at).unwrap().parse::<u64>();
    let mut fused = 0;
    for (at, symbol) in SYMBOLS.into_iter().enumerate() {
        for before_last in [0, 1] {
            let victim = (at + before_last as usize) % 2;
            let nth = count(victim, at).unwrap().saturating_sub(before_last).max(1);
            let what = format!("{symbol} {nth} {victim}");
            let said = run(&what);
            let kinds: Vec<&str> =
                said.iter().map(|said| said.split(':').next().unwrap()).collect();
            assert!(kinds[0] == kinds[1] || kinds.contains(&"error"), "{what}: {said:?}");
            assert!(said[victim].ends_with("reached"), "{what}: {said:?}");
            assert!(!kinds.contains(&FLAGS), "{what}: {said:?}");
            fused += usize::from(kinds[0].starts_with(SHARED));
        }
    }
    assert!(fused > 5, "only {fused} failures left calls fused");
}

fn made(place: &Place) -> ringcomm::error::Result<Communicator> {
    let seat = DeviceChoice::Device(place.rank as i32);
    let config = Config { device: seat, timeout_ms: 20_000, ..place.config.clone() };
    Communicator::init_rank(place.nranks, &place.id, place.rank, &config)
}

/// How a sum runs, and all calls.
fn said(comm: &Communicator) -> (&'static str, &'static str) {
    let bench = Bench::new(comm.device().unwrap());
    check_sum(comm, &bench, 1000);
    let floats = Floats::new(&bench, &[1.0; 10]);
    let answer = comm.explain(&Call { count: 10, ..sum(&floats, &bench) }).unwrap();
    (answer.transport, transport(comm))
}

/// A rank of the test above: how its calls run, or its error; where nothing fails, how often what
/// might is called.
fn afflicted(place: &Place, argument: &str) -> String {
    if argument.is_empty() {
        let made = made(place).expect("nothing fails");
        let counts = SYMBOLS.map(|symbol| fake::calls(symbol).to_string());
        assert_eq!(said(&made).0, FLAGS);
        return counts.join(" ");
    }
    let words: Vec<&str> = argument.split(' ').collect();
    let (symbol, nth) = (words[0], words[1].parse().unwrap());
    let is_victim = words[2] == place.rank.to_string();
    if is_victim {
        fake::fail(symbol, nth, 999);
    }
    let made = made(place);
    let come = if is_victim && fake::calls(symbol) >= nth { "reached" } else { "" };
    fake::fail("", 0, 0);
    let comm = match made {
        Ok(comm) => comm,
        Err(error) => return format!("error: {error}; {come}"),
    };
    let (of_a_sum, of_all) = said(&comm);
    format!("{of_a_sum}: {of_all}; {come}")
}
