//! Ranks that make different calls: an error on every rank that names both ranks and both calls,
//! whether they share memory or sockets, and never a byte outside their buffers.

mod support;

use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::communicator::{Call, Communicator, VectorCounts};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::guarded::UNTOUCHED;
use support::pace::{Pace, Timed, assert_kept};
use support::processes::{Ranks, say};
use support::samples::blocks_of;
use support::scratch::{ROOM, Scratch, run};
use support::slips::{Exact, SLIPS, Slip, slipped};
use support::threads::run_timed;
use support::{MISMATCH_KNOWN, Memory, by_cma, config, joined_hosts, on_processes, windowed};

/// A deadline that no mismatch waits for.
fn patient() -> Config {
    Config { timeout_ms: 20_000, ..config() }
}

/// On which hosts the ranks are that sockets connect.
const HOSTS: [&[usize]; 4] = [&[0, 1], &[0, 0, 1], &[0, 1, 2], &[0, 0, 1, 1, 2]];

/// Bytes of the vectors that travel in several messages between hosts, which are of 127 to 512 KiB:
/// pieces go to where they are wanted, and some are under way when ranks find that they disagree.
const LONG: usize = 3 << 20;

/// How many elements a call on floats has, where the longest of its buffers is to have [`LONG`].
fn long(collective: Collective, nranks: usize) -> usize {
    LONG / DataType::Float32.size() / blocks_of(collective, nranks)
}

/// Rank 1 slips, on a fresh communicator of these ranks, where the right call has so many elements;
/// how long it took until all knew.
fn disagree(
    communicators: &[Communicator],
    (collective, slip): (Collective, Slip),
    count: usize,
) -> Timed {
    let nranks = communicators.len();
    run_timed(communicators, |comm, together| {
        let rank = comm.rank();
        let good = Call { count, ..Call::new(collective, DataType::Float32) };
        let mut agreed = Exact::of(&good, rank, nranks, Memory::Ordinary);
        agreed.run(comm, &good).unwrap();
        let (wrong, texts) = slipped(&good, slip);
        let call = if rank == 1 { wrong } else { good };
        let mut exact = Exact::of(&call, rank, nranks, Memory::Ordinary);
        // A rank that only sends may be through before anybody can know; it learns of it at its
        // next call.
        let mut scratch = Scratch::new(nranks);
        let next = scratch.call(Collective::AllReduce, 1);
        together.wait();
        let started = Instant::now();
        let outcome = exact.run(comm, &call).and_then(|()| run(comm, &next));
        let known = Instant::now();
        let text = outcome.expect_err("a mismatch").to_string();
        let others = (0..nranks).filter(|other| *other != 1);
        let named = texts.iter().all(|call| text.contains(call))
            && text.contains("rank 1 ")
            && others.into_iter().any(|other| text.contains(&format!("rank {other} ")))
            && text.contains(&format!("pid {}", std::process::id()));
        let shown = format!("{} of {count}, {}", collective.name(), slip.0);
        assert!(named, "{shown}, rank {rank} of {nranks}: {text}");
        let spilled = exact.spilled().or_else(|| agreed.spilled());
        assert_eq!(spilled, None, "{shown}, rank {rank} of {nranks}");
        (started, known)
    })
}

#[test]
fn ranks_that_disagree_all_fail_and_name_both_ranks_and_both_calls() {
    let mut took = Vec::new();
    for nranks in [2, 3, 5] {
        for slip in SLIPS {
            let communicators = Communicator::init_all(nranks, &patient()).unwrap();
            took.push(disagree(&communicators, slip, 100));
        }
    }
    assert_kept("mismatches in shared memory", MISMATCH_KNOWN, &took);
}

/// Every slip on all hosts, where the right call of so many ranks has so many elements.
fn disagree_on_hosts(name: &str, count: impl Fn(Collective, usize) -> usize) {
    let config = Config { spins: Some(4), ..patient() };
    let mut took = Vec::new();
    for hosts in HOSTS {
        for slip in SLIPS {
            let count = count(slip.0, hosts.len());
            took.push(disagree(&joined_hosts(hosts, &config), slip, count));
        }
    }
    assert_kept(name, MISMATCH_KNOWN, &took);
}

#[test]
fn ranks_of_several_hosts_that_disagree_all_fail_too() {
    disagree_on_hosts("mismatches over TCP", |_, _| 100);
}

#[test]
fn ranks_of_several_hosts_that_disagree_on_long_vectors_all_fail_too() {
    disagree_on_hosts("mismatches of long vectors over TCP", long);
}

/// What each rank of these hosts gets where rank 1 forces another algorithm than the others; how
/// long that took.
fn force_apart(hosts: &[usize], config: &Config) -> Timed {
    let config = Config { interfaces: Some("lo".into()), ..config.clone() };
    let id = root_threads::start(&config).unwrap();
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

/// Rank 2 of three takes the block of rank 1 for one element shorter than the others do, and its
/// own for so many longer, in a form in which every rank knows all blocks. Those have `unit`
/// elements a handful of times.
fn differing_lists(
    comm: &Communicator,
    together: &Barrier,
    collective: Collective,
    (unit, longer): (usize, usize),
) -> (Instant, Instant) {
    let rank = comm.rank();
    let mut counts = vec![5 * unit, 6 * unit, 6 * unit];
    if rank == 2 {
        counts[1] -= 1;
        counts[2] += longer;
    }
    let gathers = collective == Collective::AllGather;
    let vector = VectorCounts {
        recv_displacements: if gathers { vec![0, 10 * unit, 20 * unit] } else { vec![] },
        recv_counts: counts.clone(),
        ..VectorCounts::default()
    };
    let call = Call { count: counts[rank], ..Call::new(collective, DataType::Float32) };
    let call = Call { vector: Some(&vector), ..call };
    let (own, all) = (call.count, counts.iter().sum());
    let [send, recv] = if gathers { [own, 20 * unit + counts[2]] } else { [all, own] };
    let mut exact = Exact::new(call.data_type, send, recv, rank);
    together.wait();
    let started = Instant::now();
    let outcome = exact.run(comm, &call);
    let known = Instant::now();
    let text = outcome.unwrap_err().to_string();
    // The counts of all blocks together. Where those are the same, the calls look alike.
    let alls = [17 * unit, 17 * unit - 1 + longer];
    let calls = alls.map(|all| format!("{}(count={all},", collective.name()));
    let reason = if alls[0] == alls[1] { "the block counts differ" } else { "; every rank" };
    for part in calls.iter().map(String::as_str).chain([reason, "rank 2 "]) {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert!(text.contains("rank 0 ") || text.contains("rank 1 "), "{text}");
    assert_eq!(exact.spilled(), None, "{calls:?}, rank {rank}");
    if gathers {
        let bytes = |from: usize, to: usize| {
            &exact.recv.content()[from * call.data_type.size()..to * call.data_type.size()]
        };
        let mut between = [bytes(5 * unit, 10 * unit), bytes(10 * unit + counts[1], 20 * unit)];
        let is_written = |bytes: &mut &[u8]| bytes.iter().any(|byte| *byte != UNTOUCHED);
        assert!(!between.iter_mut().any(is_written), "{calls:?}, rank {rank}: no block's bytes");
    }
    (started, known)
}

/// Rank 1 has five elements for rank 2, which takes six from everybody.
fn differing_blocks(comm: &Communicator, together: &Barrier) -> (Instant, Instant) {
    let rank = comm.rank();
    let mut vector = VectorCounts {
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
    // The others' blocks are right: they may be told at their next call.
    let next = Call::new(Collective::Barrier, DataType::Uint8);
    together.wait();
    let started = Instant::now();
    let outcome = exact.run(comm, &call).and_then(|()| run(comm, &next));
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

/// Rank 1 of three has one element more or fewer than the root, rank 0, takes of it or has for it.
/// Nobody but the root has lists.
fn differing_parts(
    comm: &Communicator,
    together: &Barrier,
    collective: Collective,
    (ours, theirs): (usize, usize),
) -> (Instant, Instant) {
    let rank = comm.rank();
    let (counts, displacements) = (vec![ours; 3], vec![0, ours, 2 * ours]);
    let gathers = collective == Collective::Gather;
    let vector = match (rank, gathers) {
        (0, true) => VectorCounts {
            recv_counts: counts,
            recv_displacements: displacements,
            ..VectorCounts::default()
        },
        (0, false) => VectorCounts {
            send_counts: counts,
            send_displacements: displacements,
            ..VectorCounts::default()
        },
        _ => VectorCounts::default(),
    };
    let count = if rank == 1 { theirs } else { ours };
    let call = Call { count, ..Call::new(collective, DataType::Float32) };
    let call = Call { vector: Some(&vector), ..call };
    let many = if rank == 0 { 3 * ours } else { 0 };
    let [send, recv] = if gathers { [count, many] } else { [many, count] };
    let mut exact = Exact::new(call.data_type, send, recv, rank);
    // The others' parts are right: they may be told at their next call.
    let next = Call::new(Collective::Barrier, DataType::Uint8);
    together.wait();
    let started = Instant::now();
    let outcome = exact.run(comm, &call).and_then(|()| run(comm, &next));
    let known = Instant::now();
    let text = outcome.unwrap_err().to_string();
    let way = if gathers { "from rank 1 to 0" } else { "from rank 0 to 1" };
    let calls = [ours, theirs].map(|count| format!("{}(count={count} {way}", collective.name()));
    for part in calls.iter().map(String::as_str).chain(["rank 0 ", "rank 1 "]) {
        assert!(text.contains(part), "rank {rank}: {part} is not in: {text}");
    }
    assert_eq!(exact.spilled(), None, "{calls:?}, rank {rank}");
    (started, known)
}

/// Blocks in one message, and blocks in several, or that go from memory to memory.
const UNITS: [usize; 2] = [1, 50_000];

#[test]
fn v_forms_whose_counts_disagree_fail_everywhere() {
    use Collective::{AllGather, Gather, ReduceScatter, Scatter};
    let mut took = Vec::new();
    for hosts in [None, Some([0, 1, 2]), Some([0, 1, 1])] {
        let ranks = || match hosts {
            None => Communicator::init_all(3, &patient()).unwrap(),
            Some(hosts) => joined_hosts(&hosts, &patient()),
        };
        for unit in UNITS {
            for (form, part) in [(AllGather, Gather), (ReduceScatter, Scatter)] {
                for longer in [0, 1] {
                    let sizes = (unit, longer);
                    let differ =
                        |comm: &_, together: &_| differing_lists(comm, together, form, sizes);
                    took.push(run_timed(&ranks(), differ));
                }
                for theirs in [6 * unit - 1, 6 * unit + 1] {
                    let counts = (6 * unit, theirs);
                    let differ =
                        |comm: &_, together: &_| differing_parts(comm, together, part, counts);
                    took.push(run_timed(&ranks(), differ));
                }
            }
        }
        took.push(run_timed(&ranks(), differing_blocks));
    }
    assert_kept("v forms that differ", MISMATCH_KNOWN, &took);
}

/// The last of three ranks differs in the count; what the error says.
fn differ_last(comm: &Communicator, [right, wrong]: [usize; 2]) -> String {
    let rank = comm.rank();
    let mut scratch = Scratch::new(3);
    run(comm, &scratch.call(Collective::Barrier, 0)).unwrap();
    let count = if rank == 2 { wrong } else { right };
    let mut exact = Exact::new(DataType::Float32, count, count, rank);
    let call = Call { count, ..Call::new(Collective::AllReduce, DataType::Float32) };
    say("ready");
    let text = exact.run(comm, &call).unwrap_err().to_string();
    say("known");
    assert_eq!(exact.spilled(), None, "rank {rank}");
    text
}

/// Three processes of [`differ_last`] all know, soon, and name it.
fn assert_all_know(ranks: &mut Ranks, counts: [usize; 2]) {
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
    let (made, known) = (heard(ranks, "ready"), heard(ranks, "known"));
    assert_kept("processes that disagree", MISMATCH_KNOWN, &[pace.timed(made, known)]);
    let who = ranks.who(2);
    for rank in 0..3 {
        let text = ranks.end(rank, deadline).result.unwrap();
        let calls = counts.map(|count| format!("AllReduce(count={count},"));
        assert!(calls.iter().all(|call| text.contains(call)), "{text}");
        let others = ["rank 0 ", "rank 1 "].iter().any(|other| text.contains(other));
        assert!(others && text.contains(if rank == 2 { "rank 2 " } else { &who }), "{text}");
    }
}

#[test]
fn processes_that_disagree_all_fail_too() {
    let mut ranks = Ranks::start(3, &patient(), "", |comm, _| differ_last(comm, [60, 50]));
    assert_all_know(&mut ranks, [60, 50]);
}

#[test]
fn processes_on_several_hosts_that_disagree_all_fail_too() {
    for hosts in [&[0, 1, 2], &[0, 0, 1], &[0, 1, 1]] {
        for counts in [[60, 50], [500_000, 500_001]] {
            let argument = format!("{} {}", counts[0], counts[1]);
            let mut ranks = Ranks::start_on_hosts(hosts, &patient(), &argument, |seat, counts| {
                let (right, wrong) = counts.split_once(' ').expect("two counts");
                differ_last(&seat.join(), [right, wrong].map(|count| count.parse().unwrap()))
            });
            assert_all_know(&mut ranks, counts);
        }
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
    (collective, slip): (Collective, Slip),
) -> String {
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let good = Call { count: ROOM, ..Call::new(collective, DataType::Float32) };
    let mut agreed = Exact::of(&good, rank, nranks, memory);
    let good = agreed.on(&good);
    let transport = comm.explain(&good).unwrap().transport;
    let shown = format!("{}, {}, rank {rank}, after {before}", collective.name(), slip.0);
    (0..before).for_each(|_| run(comm, &good).unwrap());
    // In this one every rank reads all others' buffers, beside which it has two of its own.
    let reads = memory == Memory::Exported && collective == Collective::AllGather && before > 0;
    assert!(!reads || exported_mappings() > 2, "{shown}: no peer's memory is mapped");
    let (wrong, texts) = slipped(&good, slip);
    let call = if rank == 1 { wrong } else { good.clone() };
    let mut exact = Exact::of(&call, rank, nranks, memory);
    let outcome = exact.run(comm, &call).and_then(|()| run(comm, &good));
    let text = outcome.expect_err("a mismatch").to_string();
    let named = texts.iter().all(|call| text.contains(call)) && text.contains("rank 1 ");
    assert!(named, "{shown}: {text}");
    assert_eq!(exact.spilled().or_else(|| agreed.spilled()), None, "{shown}");
    format!("{} {transport}", collective.name())
}

#[test]
fn processes_that_disagree_where_they_reach_each_others_buffers_all_fail_too() {
    for (profile, memory) in [(by_cma(3), "ordinary"), (windowed(3), "exported")] {
        let config = Config { tuning_file: profile.tuning_file, ..patient() };
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
                "exported" => way.contains(" shm/direct"),
                _ => way.ends_with("cma") || !copies,
            };
            assert!(reaches, "in {memory} memory: {way}");
        }
    }
}

/// A root that only sends may be through before anybody can know that others have another one.
#[test]
fn roots_that_differ_are_told_by_the_goodbye_at_the_latest() {
    let mut ranks = Ranks::start(3, &patient(), "", |comm, _| {
        let rank = comm.rank();
        let mut exact = Exact::new(DataType::Float32, 1000, 1000, rank);
        let call = Call {
            count: 1000,
            root: rank.min(1),
            ..Call::new(Collective::Broadcast, DataType::Float32)
        };
        let called = exact.run(comm, &call);
        called.and_then(|()| comm.finalize()).unwrap_err().to_string()
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    for rank in 0..3 {
        let text = ranks.end(rank, deadline).result.unwrap();
        assert!(text.contains("root=0") && text.contains("root=1"), "rank {rank}: {text}");
    }
}
