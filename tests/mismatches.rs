//! Ranks that make different calls: an error on every rank that names both ranks and both calls,
//! whether they share memory or sockets, and never a byte outside their buffers.

mod support;

use ringcomm::bootstrap::network::Root;
use ringcomm::communicator::{Call, Communicator, Vector};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::guarded::UNTOUCHED;
use support::pace::{Pace, Timed, assert_kept};
use support::processes::{Ranks, say};
use support::scratch::{ROOM, Scratch, run};
use support::threads::run_timed;
use support::{
    Guarded, MISMATCH_KNOWN, Memory, by_kernel, config, joined_hosts, on_processes, windowed,
};

/// One way in which rank 1 may differ, and what the two calls are called.
type Slip = (&'static str, fn(&mut Call), &'static str, &'static str);

const SLIPS: [(Collective, Slip); 13] = [
    (
        Collective::AllReduce,
        (
            "collective",
            |call| call.collective = Collective::AllGather,
            "AllReduce(count=100",
            "AllGather(count=100",
        ),
    ),
    (Collective::AllReduce, ("count", |call| call.count = 101, "count=100", "count=101")),
    (Collective::AllToAll, ("count", |call| call.count = 3000, "count=100", "count=3000")),
    (
        Collective::AllReduce,
        ("type", |call| call.data_type = DataType::Int32, "type=float", "type=int32"),
    ),
    (Collective::AllReduce, ("op", |call| call.op = ReduceOp::Max, "op=sum", "op=max")),
    (Collective::Broadcast, ("root", |call| call.root = 1, "root=0", "root=1")),
    (Collective::Reduce, ("root", |call| call.root = 1, "root=0", "root=1")),
    (Collective::Gather, ("count", |call| call.count = 7, "count=100", "count=7")),
    (Collective::AllGather, ("count", |call| call.count = 99, "count=100", "count=99")),
    (Collective::Scatter, ("count", |call| call.count = 101, "count=100", "count=101")),
    (Collective::Scatter, ("root", |call| call.root = 1, "root=0", "root=1")),
    (
        Collective::Broadcast,
        (
            "collective",
            |call| call.collective = Collective::Barrier,
            "Broadcast(count=100",
            "Barrier(",
        ),
    ),
    // Made by rank 1 before a call that the others make first.
    (
        Collective::AllReduce,
        (
            "order",
            |call| (call.collective, call.count) = (Collective::AllReduce, 1),
            "AllReduce(count=100",
            "AllReduce(count=1,",
        ),
    ),
];

/// A deadline that no mismatch waits for.
fn patient() -> Config {
    Config { timeout_ms: 20_000, ..config() }
}

/// On which hosts the ranks are that sockets connect.
const HOSTS: [&[usize]; 4] = [&[0, 1], &[0, 0, 1], &[0, 1, 2], &[0, 0, 1, 1, 2]];

/// Buffers of exactly the length that a call on them may touch.
struct Exact {
    send: Guarded,
    recv: Guarded,
}

impl Exact {
    /// For so many elements of this type to send and to receive.
    fn new(data_type: DataType, send: usize, recv: usize, rank: usize) -> Exact {
        Exact::within(Memory::Ordinary, data_type, [send, recv], rank)
    }

    fn within(memory: Memory, data_type: DataType, elements: [usize; 2], rank: usize) -> Exact {
        let [send, recv] =
            elements.map(|count| Guarded::of(memory, count * data_type.size(), rank * 13));
        Exact { send, recv }
    }

    fn of(call: &Call, rank: usize, nranks: usize, memory: Memory) -> Exact {
        use Collective::*;
        let (all, one) = (call.count * nranks, call.count);
        let (send, recv) = match call.collective {
            AllReduce | Broadcast | Reduce => (one, one),
            AllGather | Gather => (one, all),
            ReduceScatter | Scatter => (all, one),
            AllToAll => (all, all),
            Barrier => (0, 0),
        };
        Exact::within(memory, call.data_type, [send, recv], rank)
    }

    /// The call, on these buffers.
    fn on<'a>(&mut self, call: &Call<'a>) -> Call<'a> {
        Call { send: self.send.pointer(), recv: self.recv.pointer(), ..call.clone() }
    }

    /// What was written outside of them, if anything was.
    fn spilled(&self) -> Option<String> {
        let outside = |buffer: &Guarded| buffer.differs(buffer.content(), 1);
        outside(&self.send).or_else(|| outside(&self.recv))
    }
}

/// Rank 1 slips, on a fresh communicator of these ranks; how long it took until all knew.
fn disagree(communicators: &[Communicator], collective: Collective, slip: Slip) -> Timed {
    let (what, change, right, wrong) = slip;
    let nranks = communicators.len();
    run_timed(communicators, |comm, together| {
        let rank = comm.rank();
        let mut scratch = Scratch::new(nranks);
        let good = scratch.call(collective, 100);
        run(comm, &good).unwrap();
        let mut call = good.clone();
        if rank == 1 {
            change(&mut call);
        }
        let mut exact = Exact::of(&call, rank, nranks, Memory::Ordinary);
        // A rank that only sends may be through before anybody can know; it learns of it at its
        // next call.
        let next = scratch.call(Collective::AllReduce, 1);
        together.wait();
        let started = Instant::now();
        let outcome = run(comm, &exact.on(&call)).and_then(|()| run(comm, &next));
        let known = Instant::now();
        let text = outcome.expect_err("a mismatch").to_string();
        let others = (0..nranks).filter(|other| *other != 1);
        let named = text.contains(right)
            && text.contains(wrong)
            && text.contains("rank 1 ")
            && others.into_iter().any(|other| text.contains(&format!("rank {other} ")))
            && text.contains(&format!("pid {}", std::process::id()));
        let shown = collective.name();
        assert!(named, "{shown}, {what}, rank {rank} of {nranks}: {text}");
        assert_eq!(exact.spilled(), None, "{shown}, {what}, rank {rank} of {nranks}");
        (started, known)
    })
}

#[test]
fn ranks_that_disagree_all_fail_and_name_both_ranks_and_both_calls() {
    let mut took = Vec::new();
    for nranks in [2, 3, 5] {
        for (collective, slip) in SLIPS {
            let communicators = Communicator::init_all(nranks, &patient()).unwrap();
            took.push(disagree(&communicators, collective, slip));
        }
    }
    assert_kept("mismatches in shared memory", MISMATCH_KNOWN, &took);
}

#[test]
fn ranks_of_several_hosts_that_disagree_all_fail_too() {
    let config = Config { spins: Some(4), ..patient() };
    let mut took = Vec::new();
    for hosts in HOSTS {
        for (collective, slip) in SLIPS {
            let communicators = joined_hosts(hosts, &config);
            took.push(disagree(&communicators, collective, slip));
        }
    }
    assert_kept("mismatches over TCP", MISMATCH_KNOWN, &took);
}

/// What each rank of these hosts gets where rank 1 forces another algorithm than the others; how
/// long that took.
fn force_apart(hosts: &[usize], config: &Config) -> Timed {
    let config = Config { interfaces: Some("lo".into()), ..config.clone() };
    let id = Root::start(&config).unwrap();
    let (pace, agreed) = (Pace::start(), Barrier::new(hosts.len()));
    std::thread::scope(|scope| {
        let join = |(rank, host): (usize, &usize)| {
            let algorithm = if rank == 1 { "oneshot" } else { "ring" };
            let (host_id, algorithm) = (Some(format!("host {host}")), Some(algorithm.into()));
            let config = Config { host_id, algorithm, ..config.clone() };
            let (id, agreed) = (&id, &agreed);
            scope.spawn(move || {
                agreed.wait();
                let started = Instant::now();
                let made = Communicator::init_rank(hosts.len(), id, rank, &config);
                let known = Instant::now();
                let text = made.err().expect("no communicator").to_string();
                let named = text.contains("RINGCOMM_ALGO") && text.contains("rank 1");
                assert!(named, "{hosts:?}, rank {rank}: {text}");
                (started, known)
            })
        };
        let ranks: Vec<_> = hosts.iter().enumerate().map(join).collect();
        let spans: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        pace.over(&spans)
    })
}

#[test]
fn ranks_that_force_different_algorithms_are_all_refused() {
    let took = HOSTS.map(|hosts| force_apart(hosts, &patient()));
    assert_kept("different algorithms", MISMATCH_KNOWN, &took);
}

/// Rank 2 of three takes its own block for one element shorter than the others do.
fn differing_v_forms(comm: &Communicator, together: &Barrier) -> (Instant, Instant) {
    let rank = comm.rank();
    let counts = if rank == 2 { vec![5, 5, 6] } else { vec![5, 6, 6] };
    let vector = Vector {
        recv_displacements: vec![0, 10, 20],
        recv_counts: counts.clone(),
        ..Vector::default()
    };
    let call = Call { count: counts[rank], ..Call::new(Collective::AllGather, DataType::Float32) };
    let call = Call { vector: Some(&vector), ..call };
    let mut exact = Exact::new(call.data_type, call.count, 26, rank);
    let call = exact.on(&call);
    together.wait();
    let started = Instant::now();
    let outcome = run(comm, &call);
    let known = Instant::now();
    let text = outcome.unwrap_err().to_string();
    // The counts of all blocks together.
    for part in ["AllGather(count=16,", "AllGather(count=17,", "rank 2 "] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert!(text.contains("rank 0 ") || text.contains("rank 1 "), "{text}");
    assert_eq!(exact.spilled(), None, "rank {rank}");
    let is_written = |element: usize| {
        let bytes = element * call.data_type.size()..(element + 1) * call.data_type.size();
        exact.recv.content()[bytes].iter().any(|byte| *byte != UNTOUCHED)
    };
    let between = (5..10).chain(10 + counts[1]..20);
    assert_eq!(between.into_iter().find(|at| is_written(*at)), None, "rank {rank}, no block's");
    (started, known)
}

/// Rank 1 has five elements for rank 2, which takes six from everybody.
fn differing_blocks(comm: &Communicator, together: &Barrier) -> (Instant, Instant) {
    let rank = comm.rank();
    let mut vector = Vector {
        send_counts: vec![6; 3],
        send_displacements: vec![0, 6, 12],
        recv_counts: vec![6; 3],
        recv_displacements: vec![0, 6, 12],
    };
    if rank == 1 {
        vector.send_counts[2] = 5;
    }
    let call = Call { count: 6, ..Call::new(Collective::AllToAll, DataType::Float32) };
    let call = Call { vector: Some(&vector), ..call };
    let mut exact = Exact::new(call.data_type, 18, 18, rank);
    let call = exact.on(&call);
    // The others' blocks are right: they may be told at their next call.
    let next = Call::new(Collective::Barrier, DataType::Uint8);
    together.wait();
    let started = Instant::now();
    let outcome = run(comm, &call).and_then(|()| run(comm, &next));
    let known = Instant::now();
    let text = outcome.unwrap_err().to_string();
    for part in
        ["rank 1 ", "rank 2 ", "AllToAll(count=5 from rank 1", "AllToAll(count=6 from rank 1"]
    {
        assert!(text.contains(part), "rank {rank}: {part} is not in: {text}");
    }
    assert_eq!(exact.spilled(), None, "rank {rank}");
    (started, known)
}

#[test]
fn v_forms_whose_counts_disagree_fail_everywhere() {
    let here = || Communicator::init_all(3, &patient()).unwrap();
    let there = |hosts: &[usize]| joined_hosts(hosts, &patient());
    let took = [
        run_timed(&here(), differing_v_forms),
        run_timed(&there(&[0, 1, 2]), differing_v_forms),
        run_timed(&there(&[0, 1, 1]), differing_v_forms),
        run_timed(&here(), differing_blocks),
        run_timed(&there(&[0, 1, 2]), differing_blocks),
    ];
    assert_kept("v forms that differ", MISMATCH_KNOWN, &took);
}

#[test]
fn processes_that_disagree_all_fail_too() {
    let mut ranks = Ranks::start(3, &patient(), "", |comm, _| {
        let rank = comm.rank();
        let mut scratch = Scratch::new(3);
        run(comm, &scratch.call(Collective::Barrier, 0)).unwrap();
        let count = if rank == 2 { 50 } else { 60 };
        let mut exact = Exact::new(DataType::Float32, count, count, rank);
        let call = exact.on(&scratch.call(Collective::AllReduce, count));
        say("ready");
        let text = run(comm, &call).unwrap_err().to_string();
        say("known");
        assert_eq!(exact.spilled(), None, "rank {rank}");
        text
    });
    let pace = Pace::beside(ranks.pids());
    let deadline = Instant::now() + Duration::from_secs(60);
    let heard = |ranks: &mut Ranks, word: &str| {
        (0..3)
            .map(|rank| match ranks.hear(rank, deadline) {
                (at, said) if said == word => at,
                (_, said) => panic!("rank {rank} says {said}"),
            })
            .max()
            .expect("three ranks")
    };
    // The last call is made when the last rank is ready.
    let (made, known) = (heard(&mut ranks, "ready"), heard(&mut ranks, "known"));
    assert_kept("processes that disagree", MISMATCH_KNOWN, &[pace.timed(made, known)]);
    for rank in 0..3 {
        let text = ranks.end(rank, deadline).result.unwrap();
        assert!(text.contains("count=50") && text.contains("count=60"), "{text}");
        assert!(text.contains("rank 2"), "{text}");
    }
}

/// A thread that made all ranks and waits for one of them is told at the deadline what it may have
/// forgotten; another thread is not.
#[test]
fn one_thread_that_may_wait_for_itself_is_told_at_the_deadline() {
    let config = Config { timeout_ms: 500, ..config() };
    let told = |is_maker: bool| {
        let ranks = Communicator::init_all(2, &config).unwrap();
        let mut scratch = Scratch::new(2);
        let mut call = || {
            let call = scratch.call(Collective::AllReduce, 10);
            run(&ranks[0], &call).unwrap_err().to_string()
        };
        match is_maker {
            true => call(),
            false => std::thread::scope(|scope| scope.spawn(call).join().unwrap()),
        }
    };
    let hint = "this thread made rank 1 and may have to call it, too: one thread that drives \
                several ranks puts their calls between ringGroupStart and ringGroupEnd";
    let (maker, other) = (told(true), told(false));
    assert!(maker.contains(hint), "{maker}");
    assert!(other.contains("rank 1") && !other.contains("this thread"), "{other}");
}

/// Lines of this process's map that are memory which it or another process exports.
fn exported_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:ringcomm-user")).count()
}

/// Rank 1 slips after so many calls that agree, where the ranks reach into each other's buffers:
/// through the kernel, or those that all map. Says how calls run that agree.
fn disagree_within(
    memory: Memory,
    comm: &Communicator,
    before: usize,
    (collective, (what, change, right, wrong)): (Collective, Slip),
) -> String {
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let good = Call { count: ROOM, ..Call::new(collective, DataType::Float32) };
    let mut agreed = Exact::of(&good, rank, nranks, memory);
    let good = agreed.on(&good);
    let transport = comm.explain(&good).unwrap().transport;
    let shown = format!("{}, {what}, rank {rank}, after {before}", collective.name());
    (0..before).for_each(|_| run(comm, &good).unwrap());
    // In this one every rank reads all others' buffers, beside which it has two of its own.
    let reads = memory == Memory::Exported && collective == Collective::AllGather && before > 0;
    assert!(!reads || exported_mappings() > 2, "{shown}: no peer's memory is mapped");
    let mut call = good.clone();
    if rank == 1 {
        change(&mut call);
    }
    let mut exact = Exact::of(&call, rank, nranks, memory);
    let outcome = run(comm, &exact.on(&call)).and_then(|()| run(comm, &good));
    let text = outcome.expect_err("a mismatch").to_string();
    // The slips are those of shorter calls.
    let [right, wrong] =
        [right, wrong].map(|call| call.replace("count=100", &format!("count={ROOM}")));
    let named = text.contains(&right) && text.contains(&wrong) && text.contains("rank 1 ");
    assert!(named, "{shown}: {text}");
    assert_eq!(exact.spilled().or_else(|| agreed.spilled()), None, "{shown}");
    format!("{} {transport}", collective.name())
}

#[test]
fn processes_that_disagree_where_they_reach_each_others_buffers_all_fail_too() {
    for (profile, memory) in [(by_kernel(3), "ordinary"), (windowed(3), "exported")] {
        let config = Config { profile: profile.profile, ..patient() };
        let ends = on_processes(3, &config, memory, |comm, memory| {
            let memory = match memory {
                "exported" => Memory::Exported,
                _ => Memory::Ordinary,
            };
            // In the first call, in which the ranks first learn of any buffer, and in a later one.
            let disagree = |before, slip| {
                let comm = comm.split(0, 0, None).unwrap().unwrap();
                disagree_within(memory, &comm, before, slip)
            };
            let ways = [0, 2].map(|before| SLIPS.map(|slip| disagree(before, slip)).join("; "));
            ways.join("; ")
        });
        println!("{memory} memory: {}", ends[0]);
        for way in ends[0].split("; ") {
            let copies = ["AllGather", "Broadcast", "Scatter"].iter().any(|it| way.starts_with(it));
            let reaches = match memory {
                "exported" => way.contains(" process mapped"),
                _ => way.ends_with("kernel") || !copies,
            };
            assert!(reaches, "in {memory} memory: {way}");
        }
    }
}
