//! Ranks on several hosts: every collective through real sockets, held against the plain oracle.
//!
//! The hosts are one machine whose ranks are told apart by `RINGCOMM_HOSTID`; what crosses between
//! them takes the same sockets as between machines.

mod support;

use ringcomm::algorithm::{self, Algorithm, plan_on};
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::tcp::{AuthListener, NetworkConfig};
use ringcomm::communicator::{Call, Communicator, Message};
use ringcomm::config::{AddressFamily, Config, Protection};
use ringcomm::plan::Collective;
use ringcomm::plan::topology::Topology;
use ringcomm::types::{DataType, ReduceOp};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use support::samples::{COPYING, REDUCING, SLOT, blocks_of, sample_on};
use support::skips::skip;
use support::{
    Case, Prepared, Random, config, data, joined_hosts, on_hosts, on_threads, oracle, small_slots,
    threads, wired,
};

/// Who lives with whom: alone, all in pairs, unevenly, in turns.
const HOSTS: [&[usize]; 7] = [
    &[0, 1],
    &[0, 1, 2],
    &[0, 0, 1],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1, 2],
    &[0, 1, 2, 3, 4, 5, 6],
    &[0, 0, 0, 1, 1, 2, 2, 2],
];

/// What the machine's few cores stand: ranks of fake hosts do not know that they share them.
fn patient(config: Config) -> Config {
    Config { spins: Some(4), ..config }
}

/// Samples of every collective on every type, on `hosts`.
fn run_samples(hosts: &[usize], config: &Config, seed: u64) {
    let prepared: Vec<Prepared> = sample_on(hosts, seed).into_iter().map(Prepared::new).collect();
    on_hosts(hosts, config, |comm| prepared.iter().for_each(|case| case.run(comm)));
    println!("{} calls on {hosts:?}", prepared.len());
}

#[test]
fn every_collective_is_right_between_hosts() {
    for (seed, hosts) in HOSTS.iter().enumerate() {
        run_samples(hosts, &patient(config()), seed as u64);
    }
}

#[test]
fn short_slots_several_sockets_and_every_protection_change_nothing() {
    for (seed, protection) in Protection::ALL.into_iter().enumerate() {
        let hosts = [0, 1, 1, 2];
        let config =
            Config { protection, nsocks: 1 + seed, ..patient(small_slots(hosts.len(), SLOT)) };
        run_samples(&hosts, &config, 10 + seed as u64);
    }
}

#[test]
fn ipv6_alone_changes_nothing() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip(ipv6_alone_changes_nothing, "this machine has no ::1");
    }
    let config = Config { family: Some(AddressFamily::V6), ..patient(config()) };
    let here = Config { interfaces: Some("lo".into()), ..config.clone() };
    let listener =
        AuthListener::open(&UniqueId::generate().unwrap(), &NetworkConfig::from(&here)).unwrap();
    assert!(
        listener.addresses().iter().all(|address| address.is_ipv6()),
        "{:?}",
        listener.addresses()
    );
    run_samples(&[0, 0, 1, 1], &config, 30);
    run_samples(&[0, 1, 2], &config, 31);
}

#[test]
fn a_deterministic_result_is_the_serial_loops_between_hosts_too() {
    let config = Config { deterministic: true, ..patient(config()) };
    run_samples(&[0, 0, 1, 1], &config, 20);
    run_samples(&[0, 1, 2], &config, 21);
}

#[test]
fn messages_of_every_length_cross_in_both_directions() {
    let hosts = [0, 1, 1, 2];
    let nranks = hosts.len();
    on_hosts(&hosts, &patient(config()), |comm| {
        let rank = comm.rank();
        for bytes in [0, 1, 100, 5000, 300_000, 3_000_000] {
            let content = |from: usize, to: usize| -> Vec<u8> {
                (0..bytes).map(|i| (i * 31 + from * 7 + to * 3 + i / 256) as u8).collect()
            };
            let sent: Vec<Vec<u8>> = (0..nranks).map(|to| content(rank, to)).collect();
            let mut received = vec![vec![0u8; bytes]; nranks];
            let mut batch = Vec::new();
            for peer in 0..nranks {
                let (count, data_type) = (bytes, DataType::Uint8);
                let buffer = sent[peer].as_ptr();
                batch.push(Message::Send { buffer, count, data_type, peer });
                let buffer = received[peer].as_mut_ptr();
                batch.push(Message::Recv { buffer, count, data_type, peer });
            }
            // SAFETY: all buffers hold `bytes` bytes and outlive the batch.
            unsafe { comm.exchange(&batch).expect("exchange") };
            for (peer, received) in received.iter().enumerate() {
                assert!(*received == content(peer, rank), "{bytes} bytes from {peer} to {rank}");
            }
        }
    });
}

/// Around the lengths up to which they go whole, and of a piece.
#[test]
fn messages_between_hosts_of_one_rank_cross_at_every_length() {
    for protection in [Protection::default(), Protection::Encrypted] {
        let config = Config { protection, ..patient(config()) };
        on_hosts(&[0, 1], &config, |comm| {
            let (rank, peer) = (comm.rank(), 1 - comm.rank());
            let data_type = DataType::Uint8;
            for count in [260_095, 260_096, 260_097, 524_288, 524_289, 1 << 20, 3_000_001] {
                let content = |from: usize| -> Vec<u8> {
                    (0..count).map(|i| (i * 31 + from * 7 + i / 256) as u8).collect()
                };
                let (sent, mut received) = (content(rank), vec![0u8; count]);
                let send = Message::Send { buffer: sent.as_ptr(), count, data_type, peer };
                let buffer = received.as_mut_ptr();
                // SAFETY: both buffers hold `count` bytes and outlive the batch.
                let both = unsafe {
                    comm.exchange(&[send, Message::Recv { buffer, count, data_type, peer }])
                };
                both.expect("exchange");
                assert!(received == content(peer), "{protection:?}: {count} bytes");
            }
        });
    }
}

/// More than slots and socket buffers hold: what a rank has yet to write goes on while it reads.
#[test]
fn messages_that_no_buffer_holds_cross_at_once() {
    const BYTES: usize = 64 << 20;
    on_hosts(&[0, 1], &config(), |comm| {
        let peer = 1 - comm.rank();
        let (sent, mut received) = (vec![comm.rank() as u8 + 1; BYTES], vec![0u8; BYTES]);
        let (count, data_type) = (BYTES, DataType::Uint8);
        let batch = [
            Message::Send { buffer: sent.as_ptr(), count, data_type, peer },
            Message::Recv { buffer: received.as_mut_ptr(), count, data_type, peer },
        ];
        // SAFETY: both buffers hold `BYTES` bytes and outlive the batch.
        unsafe { comm.exchange(&batch).expect("exchange") };
        assert!(received.iter().all(|byte| *byte == peer as u8 + 1));
    });
}

#[test]
fn splits_make_groups_across_and_within_hosts() {
    let hosts = [0, 0, 1, 1, 2];
    on_hosts(&hosts, &patient(config()), |comm| {
        let rank = comm.rank();
        // Across hosts, within one, in reverse order, and left out.
        let colors: [&dyn Fn(usize) -> i32; 4] =
            [&|rank| rank as i32 % 2, &|rank| hosts[rank] as i32, &|_| 0, &|rank| {
                if rank == 3 { -1 } else { 5 }
            }];
        for (round, color) in colors.iter().enumerate() {
            let key = -(rank as i32);
            let child = comm.split(color(rank), key, None).expect("split");
            let mut group: Vec<usize> =
                (0..hosts.len()).filter(|other| color(*other) == color(rank)).collect();
            group.reverse();
            let Some(child) = child else {
                assert!(color(rank) < 0);
                continue;
            };
            assert_eq!(child.nranks(), group.len());
            assert_eq!(group[child.rank()], rank);
            let on: Vec<usize> = group.iter().map(|member| hosts[*member]).collect();
            for case in sample_on(&on, round as u64).into_iter().take(40) {
                Prepared::new(case).run(&child);
            }
        }
    });
}

#[test]
fn communicators_of_several_hosts_work_side_by_side() {
    let hosts = [0, 1, 1];
    let made: Vec<Vec<Communicator>> =
        (0..3).map(|_| joined_hosts(&hosts, &patient(config()))).collect();
    std::thread::scope(|scope| {
        threads::join_all(made.iter().enumerate().map(|(seed, communicators)| {
            scope.spawn(move || {
                let cases = sample_on(&hosts, 30 + seed as u64);
                let prepared: Vec<Prepared> =
                    cases.into_iter().take(80).map(Prepared::new).collect();
                threads::run_all(communicators, |comm| {
                    prepared.iter().for_each(|case| case.run(comm))
                });
            })
        }));
    });
}

#[test]
fn settings_that_differ_between_hosts_are_named() {
    use ringcomm::bootstrap::allgather::root_threads;
    let config = Config { interfaces: Some("lo".into()), ..config() };
    let id = root_threads::start(&config).expect("an id");
    let texts: Vec<String> = std::thread::scope(|scope| {
        let join = |rank: usize| {
            let (id, mut config) = (&id, config.clone());
            config.host_id = Some(rank.to_string());
            config.nsocks = 1 + rank;
            scope.spawn(move || Communicator::init_rank(2, id, rank, &config))
        };
        let ranks: Vec<_> = (0..2).map(join).collect();
        ranks
            .into_iter()
            .map(|rank| match rank.join().expect("no panic") {
                Ok(_) => "joined".to_string(),
                Err(error) => error.to_string(),
            })
            .collect()
    });
    for text in &texts {
        assert!(text.contains("RINGCOMM_NSOCKS"), "{texts:?}");
    }
}

/// Rank 0 has found nothing: what a barrier sends is a message, too.
static HAS_PROBED: AtomicBool = AtomicBool::new(false);

/// What crosses between the ranks of [`a_probe_finds_what_another_host_sent`].
fn probes_another_host(comm: &Communicator) {
    let (mut got, patience) = ([0u32], Duration::from_secs(20));
    let send = |value: u32| comm.messages().send(&[value], 0).run().expect("it leaves");
    if comm.rank() == 1 {
        let [value] = [5u32];
        let (buffer, data_type) = ((&raw const value).cast(), DataType::Uint32);
        let message = Message::Send { buffer, count: 1, data_type, peer: 0 };
        // SAFETY: the value outlives the call.
        let sent = unsafe { comm.try_send(message) }.expect("a right message");
        assert!(!sent, "no message to another host leaves at once for sure");
        while !HAS_PROBED.load(Relaxed) {
            std::thread::yield_now();
        }
        comm.barrier().expect("rank 0 comes");
        send(6);
        // The last that this rank does.
        return send(7);
    }
    let early = comm.probe(1, Duration::ZERO);
    HAS_PROBED.store(true, Relaxed);
    assert!(!early.expect("rank 1 is there"));
    comm.barrier().expect("rank 1 comes");
    for value in [6, 7] {
        assert!(comm.probe(1, patience).expect("rank 1 has sent"));
        comm.messages().recv(&mut got, 1).run().expect("it has come");
        assert_eq!(got, [value]);
    }
    let text = comm.probe(1, patience).expect_err("rank 1 has left").to_string();
    assert!(text.contains("rank 1"), "{text}");
}

#[test]
fn a_message_to_a_rank_of_the_same_host_leaves_at_once_beside_others() {
    on_hosts(&[0, 0, 1], &patient(config()), |comm| {
        let (mut got, value) = ([0u32], 5u32);
        if comm.rank() == 0 {
            let (buffer, data_type) = ((&raw const value).cast(), DataType::Uint32);
            let send = |peer| Message::Send { buffer, count: 1, data_type, peer };
            // SAFETY: the value outlives the calls.
            let sent = [1, 2].map(|peer| unsafe { comm.try_send(send(peer)) }.expect("in order"));
            assert_eq!(sent, [true, false]);
        } else if comm.rank() == 1 {
            assert!(comm.probe(0, Duration::from_secs(20)).expect("rank 0 sends"));
            comm.messages().recv(&mut got, 0).run().expect("it has come");
            assert_eq!(got, [value]);
        }
        comm.barrier().expect("all come");
    });
}

#[test]
fn a_probe_finds_what_another_host_sent() {
    let all = joined_hosts(&[0, 1], &patient(config()));
    std::thread::scope(|scope| {
        let runs = |comm: Communicator| scope.spawn(move || probes_another_host(&comm));
        threads::join_all(all.into_iter().map(runs));
    });
}

#[test]
fn random_lengths_at_slot_borders_arrive_whole() {
    let mut random = Random(40);
    let hosts = [0, 1];
    let config = patient(small_slots(2, SLOT));
    let lengths: Vec<usize> =
        (0..60).map(|_| random.below(6) * SLOT / 4 + random.below(3)).collect();
    on_hosts(&hosts, &config, |comm| {
        for (seed, count) in lengths.iter().enumerate() {
            let case = Case::new(Collective::AllReduce, 2, *count, DataType::Float32);
            Prepared::new(Case { seed: seed as u64, ..case }).run(comm);
        }
    });
}

/// Calls on vectors of 2.4 MB, in place and out of it in turns, which an algorithm has a plan for.
fn long_cases(hosts: &[usize], algorithm: Algorithm) -> Vec<Prepared> {
    let (nranks, topology) = (hosts.len(), Topology::new(hosts));
    let mut cases = Vec::new();
    for collective in REDUCING.into_iter().chain(COPYING) {
        if plan_on(&topology, algorithm, collective, 0, 0).is_none() {
            continue;
        }
        let count = 600_007 / blocks_of(collective, nranks);
        let (seed, root, in_place) =
            (cases.len() as u64, cases.len() % nranks, cases.len() % 2 > 0);
        let case = Case::new(collective, nranks, count, DataType::Float32);
        cases.push(Prepared::new(Case { in_place, root, seed, ..case }));
    }
    cases
}

/// At the default lengths of messages, a vector takes several.
#[test]
fn every_algorithm_cuts_long_vectors_between_hosts() {
    let mut calls = 0;
    for hosts in [&[0, 1, 2][..], &[0, 0, 1, 1]] {
        for algorithm in Algorithm::ALL {
            let cases = long_cases(hosts, algorithm);
            let name = algorithm.name();
            // With a core for each rank, and where they share one.
            for cores in [hosts.len(), 1] {
                let forced = Config { algorithm: Some(name.into()), ..wired(cores, FAST) };
                on_hosts(hosts, &patient(forced), |comm| {
                    for case in &cases {
                        case.run(comm);
                        let told = case.explain(comm);
                        assert_eq!(told.algorithm, name, "{hosts:?}, {:?}", case.case);
                        assert!(told.slices > 1, "{hosts:?}, {:?}: {told:?}", case.case);
                    }
                });
                calls += cases.len();
            }
        }
    }
    println!("{calls} calls");
}

/// The slices of a two-shot sum of so many bytes on these hosts, and the bytes of one.
fn sliced(hosts: &[usize], config: &Config, bytes: usize) -> (usize, usize) {
    let config = Config { algorithm: Some("twoshot".into()), ..patient(config.clone()) };
    let sum = Collective::AllReduce;
    let case = Case::new(sum, hosts.len(), bytes / 4, DataType::Float32);
    let prepared = Prepared::new(Case { seed: bytes as u64, ..case });
    let told = on_hosts(hosts, &config, |comm| {
        prepared.run(comm);
        let told = prepared.explain(comm);
        (told.slices, told.slice_bytes)
    });
    assert!(told.iter().all(|theirs| *theirs == told[0]), "{told:?}");
    told[0]
}

/// As fast as loopback, so that a core is never idle, and slower.
const FAST: f64 = 1.0 / 5_000.0;
const SLOW: f64 = 1.0 / 3_000.0;

#[test]
fn what_a_socket_takes_at_once_goes_whole_between_ranks_on_hosts_of_their_own() {
    const WHOLE: usize = 512 << 10;
    for nranks in [2, 3, 5] {
        let hosts: Vec<usize> = (0..nranks).collect();
        let fast = wired(nranks, FAST);
        for bytes in [WHOLE - 4, WHOLE] {
            assert_eq!(sliced(&hosts, &fast, nranks * bytes), (1, bytes), "{nranks} ranks");
        }
        let (slices, bytes) = sliced(&hosts, &fast, nranks * (WHOLE + 4));
        assert!(slices == 3 && bytes <= 254 << 10, "{nranks} ranks: {slices} of {bytes}");
        // Where cores are shared a slice is one of the kernel's segments.
        let (slices, bytes) = sliced(&hosts, &wired(1, FAST), nranks * (WHOLE + 4));
        assert!(slices == 9 && bytes <= 65_160, "{nranks} ranks: {slices} of {bytes}");
    }
}

#[test]
fn what_could_go_whole_is_cut_where_that_is_better_or_asked_for() {
    let bytes = 2 * (512 << 10);
    let cut = |hosts: &[usize], config: &Config| sliced(hosts, config, bytes).0;
    assert_eq!(cut(&[0, 1], &wired(2, FAST)), 1);
    assert_eq!(cut(&[0, 1], &wired(2, SLOW)), 3, "the wire leaves the core idle");
    assert_eq!(cut(&[0, 1], &wired(1, FAST)), 9, "the ranks take turns on a core");
    let protection = Protection::Encrypted;
    assert_eq!(cut(&[0, 1], &Config { protection, ..wired(2, FAST) }), 5);
    let nsocks = 2;
    assert_eq!(cut(&[0, 1], &Config { nsocks, ..wired(2, FAST) }), 3, "each socket takes some");
    let buff_size = Some(1 << 20);
    assert_eq!(cut(&[0, 1], &Config { buff_size, ..wired(2, FAST) }), 17, "of 32 KiB");
    // Two ranks of a host have slots of 128 KiB, however many others there are.
    assert_eq!(cut(&[0, 0, 1], &wired(3, FAST)), 3);
    assert_eq!(cut(&[0, 0, 1, 2, 3, 4, 5, 6], &wired(8, FAST)), 2);
}

/// Narrow floats: the bits of the largest, and how far it is from its neighbour.
const LARGEST: [(DataType, u64, f64); 3] = [
    (DataType::Float16, 0x7bff, 1.0 / 1024.0),
    (DataType::Float8e4m3, 0x7e, 1.0 / 8.0),
    (DataType::Float8e5m2, 0x7b, 1.0 / 4.0),
];

/// The average over all ranks of so many elements that are the same everywhere.
fn average(comm: &Communicator, data_type: DataType, bits: u64, count: usize) -> Vec<f64> {
    let size = data_type.size();
    let sent = bits.to_le_bytes()[..size].repeat(count);
    let mut got = vec![0; sent.len()];
    let call = Call {
        send: sent.as_ptr(),
        recv: got.as_mut_ptr(),
        count,
        op: ReduceOp::Avg,
        ..Call::new(Collective::AllReduce, data_type)
    };
    // SAFETY: both buffers hold so many elements until the call has returned.
    unsafe { comm.run(&call) }.expect("an average");
    let value = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        f64::from(oracle::decode(data_type, u64::from_le_bytes(wide)))
    };
    got.chunks_exact(size).map(value).collect()
}

fn assert_averages(comm: &Communicator) {
    for (data_type, bits, step) in LARGEST {
        let (largest, one) = (oracle::decode(data_type, bits), data::bits(data_type, 1.0));
        for count in [1, 700, 40_000] {
            let what = format!("{data_type}, {count}");
            for got in average(comm, data_type, bits, count) {
                assert!((got / f64::from(largest) - 1.0).abs() <= step, "{what}: {got}");
            }
            for got in average(comm, data_type, one, count) {
                assert_eq!(got, 1.0, "{what}");
            }
        }
    }
}

/// Sums of several hosts' ranks, or around a ring, are rounded to the type on their way, and would
/// be beyond it.
#[test]
fn averages_of_the_largest_do_not_overflow_on_their_way() {
    for hosts in [&[0, 0, 1][..], &[0, 0, 1, 1], &[0, 0, 1, 1, 2, 2, 3]] {
        on_hosts(hosts, &patient(config()), assert_averages);
    }
    for algorithm in Algorithm::ALL {
        let name = algorithm.name();
        let config = Config { algorithm: Some(name.into()), ..patient(config()) };
        for nranks in [2, 5, 7] {
            if algorithm::plan(algorithm, Collective::AllReduce, 0, nranks, 0).is_some() {
                on_threads(nranks, &config, assert_averages);
            }
        }
    }
}
