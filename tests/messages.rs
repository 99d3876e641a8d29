//! Sends and receives in batches: any pairs, sizes, types and orders, between threads and
//! processes.

mod support;

use ringcomm::communicator::{Call, Communicator, Message, VectorCounts};
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::transport::shm_export;
use ringcomm::types::DataType;
use std::sync::Barrier;
use std::time::Instant;
use support::exchange::{Planned, batch, run};
use support::pace::{Timed, assert_kept};
use support::threads::{joined_hosts, run_timed};
use support::{Guarded, MISMATCH_KNOWN, Random, config};
use support::{on_joined_threads, on_processes, on_threads, small_slots};

fn random_batches(comm: &Communicator, seed: u64, rounds: usize) {
    let mut plan = Random(seed);
    let mut order = Random(seed ^ comm.rank() as u64);
    for _ in 0..rounds {
        let batch = batch(comm.nranks(), &mut plan);
        run(comm, &batch, &mut order);
    }
}

#[test]
fn random_batches_between_threads_arrive_whole() {
    for nranks in [1, 2, 3, 4, 8] {
        on_threads(nranks, &small_slots(nranks, 1024), |comm| random_batches(comm, 1, 60));
        on_joined_threads(nranks, &config(), |comm| random_batches(comm, 2, 20));
    }
}

#[test]
fn random_batches_between_processes_arrive_whole() {
    for nranks in [1, 2, 3, 4, 8] {
        on_processes(nranks, &small_slots(nranks, 1024), "", |comm, _| {
            random_batches(comm, 3, 40);
            String::new()
        });
    }
}

fn mapped_files() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// Swap `bytes` bytes with the other one of two ranks, as messages or as an AllToAllv; whether that
/// mapped memory of its.
fn swaps_by_mapping(comm: &Communicator, buffers: [*mut u8; 2], bytes: usize, v: bool) -> bool {
    let (rank, peer, data_type) = (comm.rank(), 1 - comm.rank(), DataType::Uint8);
    let value = |rank: usize, index: usize| (index * 7 + index / 251 + 100 * rank) as u8;
    let [send, recv] = buffers;
    // SAFETY: both hold that many bytes, and nobody else uses them.
    unsafe {
        (0..bytes).for_each(|index| send.add(index).write(value(rank, index)));
        recv.write_bytes(0, bytes);
    }
    let before = mapped_files();
    let mut counts = vec![bytes; 2];
    counts[rank] = 0;
    let vector = VectorCounts {
        send_counts: counts.clone(),
        send_displacements: vec![0; 2],
        recv_counts: counts,
        recv_displacements: vec![0; 2],
    };
    // SAFETY: as above.
    unsafe {
        if v {
            let call = Call {
                send,
                recv,
                vector: Some(&vector),
                ..Call::new(Collective::AllToAll, data_type)
            };
            comm.run(&call).unwrap();
        } else {
            let send = Message::Send { buffer: send, count: bytes, data_type, peer };
            let recv = Message::Recv { buffer: recv, count: bytes, data_type, peer };
            comm.exchange(&[send, recv]).unwrap();
        }
    }
    // SAFETY: as above.
    let wrong = (0..bytes).find(|index| unsafe { recv.add(*index).read() } != value(peer, *index));
    assert_eq!(wrong, None, "{bytes} bytes, {v}");
    mapped_files() > before
}

#[test]
fn long_messages_between_processes_are_taken_from_where_exported_memory_is() {
    on_processes(2, &small_slots(2, 1024), "", |comm, _| {
        let long = 1 << 20;
        for v in [false, true] {
            let mut ordinary = [vec![0u8; long], vec![0u8; long]];
            let buffers = ordinary.each_mut().map(|one| one.as_mut_ptr());
            assert!(!swaps_by_mapping(comm, buffers, long, v));
            let exported = [0, 1].map(|_| shm_export::allocate(long).unwrap());
            assert!(!swaps_by_mapping(comm, exported, 1024, v), "one slot holds it");
            let inside = exported.map(|one| one.wrapping_add(24));
            assert!(swaps_by_mapping(comm, inside, long - 100, v));
            assert!(!swaps_by_mapping(comm, exported, long, v), "it is mapped already");
            exported.into_iter().for_each(|one| shm_export::release(one).unwrap());
        }
        String::new()
    });
}

#[test]
fn all_pairs_exchange_whatever_the_order_of_each_rank() {
    let nranks = 8;
    let batch: Vec<Planned> = (0..nranks * nranks)
        .map(|pair| Planned {
            from: pair / nranks,
            to: pair % nranks,
            count: 300 * pair,
            data_type: DataType::Float32,
            seed: pair as u64,
        })
        .collect();
    on_threads(nranks, &small_slots(nranks, 512), |comm| {
        for seed in 0..20 {
            run(comm, &batch, &mut Random(seed * 8 + comm.rank() as u64));
        }
    });
}

#[test]
fn messages_and_collectives_mix() {
    let cases: Vec<_> = (0..20)
        .map(|seed| {
            let collective = ringcomm::plan::Collective::AllReduce;
            let case = support::Case::new(collective, 4, 500, DataType::Int32);
            support::Prepared::new(support::Case { seed, ..case })
        })
        .collect();
    on_threads(4, &small_slots(4, 1024), |comm| {
        for (index, case) in cases.iter().enumerate() {
            random_batches(comm, index as u64, 3);
            case.run(comm);
        }
    });
}

#[test]
fn a_batch_of_a_few_ranks_does_not_involve_the_others() {
    on_threads(4, &config(), |comm| {
        let pair =
            [Planned { from: 1, to: 3, count: 100_000, data_type: DataType::Uint8, seed: 5 }];
        if comm.rank() == 1 || comm.rank() == 3 {
            run(comm, &pair, &mut Random(1));
        }
    });
}

fn one_byte(sends: bool, peer: usize, buffer: &mut u8) -> Message {
    let (count, data_type) = (1, DataType::Uint8);
    match sends {
        true => Message::Send { buffer, count, data_type, peer },
        false => Message::Recv { buffer, count, data_type, peer },
    }
}

#[test]
fn a_refused_batch_leaves_the_communicator_as_it_was() {
    on_threads(2, &config(), |comm| {
        let peer = 1 - comm.rank();
        let (mut a, mut b, mut c) = (7u8, 0u8, 0u8);
        let bad = [one_byte(true, peer, &mut a), one_byte(false, 2, &mut b)];
        // SAFETY: every buffer holds a byte.
        let error = unsafe { comm.exchange(&bad) }.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("peer 2"), "{error}");
        let null =
            Message::Send { buffer: std::ptr::null(), count: 3, data_type: DataType::Int32, peer };
        // SAFETY: as above.
        let error = unsafe { comm.exchange(&[one_byte(true, peer, &mut a), null]) }.unwrap_err();
        assert!(error.to_string().contains("NULL"), "{error}");
        let good = [one_byte(true, peer, &mut a), one_byte(false, peer, &mut c)];
        // SAFETY: as above.
        unsafe { comm.exchange(&good) }.unwrap();
        assert_eq!(c, 7);
    });
}

/// What a rank calls: elements sent to the other one of two and received from it, none where 0.
type Ends = (usize, DataType, usize, DataType);

/// Two ranks whose messages differ are told so, at once or at their next call, and how both ends
/// are called; how long that took.
fn differ(communicators: &[Communicator], ends: [Ends; 2], parts: [&str; 2]) -> Timed {
    run_timed(communicators, |comm, together| {
        let rank = comm.rank();
        let (sent, sent_type, received, received_type) = ends[rank];
        let peer = 1 - rank;
        let mut send = Guarded::new(sent * sent_type.size(), 13);
        let mut recv = Guarded::new(received * received_type.size(), 26);
        let mut byte = 0;
        let mut messages = Vec::new();
        if sent > 0 {
            let (buffer, count) = (send.pointer().cast_const(), sent);
            messages.push(Message::Send { buffer, count, data_type: sent_type, peer });
        }
        if received > 0 {
            let (buffer, count) = (recv.pointer(), received);
            messages.push(Message::Recv { buffer, count, data_type: received_type, peer });
        }
        // A small send is complete once it is posted; then the next call learns of the failure.
        let next = [one_byte(false, peer, &mut byte)];
        together.wait();
        let started = Instant::now();
        // SAFETY: every buffer holds its message.
        let outcome = unsafe { comm.exchange(&messages).and_then(|()| comm.exchange(&next)) };
        let known = Instant::now();
        let text = outcome.expect_err("a mismatch").to_string();
        let pid = format!("pid {}", std::process::id());
        for part in ["rank 0", "rank 1", &pid].into_iter().chain(parts) {
            assert!(text.contains(part), "rank {rank}: {part} is not in: {text}");
        }
        for buffer in [&send, &recv] {
            assert_eq!(buffer.differs(buffer.content(), 1), None, "rank {rank}: {text}");
        }
        (started, known)
    })
}

/// Every way in which two ends may differ, and how they are called.
const ENDS: [([Ends; 2], [&str; 2]); 4] = {
    use DataType::{Float32, Int32, Uint8};
    [
        (
            [(8, Float32, 0, Uint8), (0, Uint8, 9, Float32)],
            ["Send(count=8, type=float, peer=1) #0", "Recv(count=9, type=float, peer=0) #0"],
        ),
        // As many bytes.
        (
            [(8, Int32, 0, Uint8), (0, Uint8, 8, Float32)],
            ["Send(count=8, type=int32, peer=1) #0", "Recv(count=8, type=float, peer=0) #0"],
        ),
        // Rank 0 receives what it expects.
        (
            [(9, Int32, 4, Int32), (4, Int32, 7, Int32)],
            ["Send(count=9, type=int32, peer=1) #0", "Recv(count=7, type=int32, peer=0) #0"],
        ),
        // Longer than a slot.
        (
            [(200_000, Float32, 0, Uint8), (0, Uint8, 200_001, Float32)],
            [
                "Send(count=200000, type=float, peer=1) #0",
                "Recv(count=200001, type=float, peer=0) #0",
            ],
        ),
    ]
};

#[test]
fn ends_that_disagree_on_a_message_both_name_both_calls() {
    let config = ringcomm::config::Config { timeout_ms: 20_000, ..config() };
    let mut took = Vec::new();
    for (ends, parts) in ENDS {
        took.push(differ(&Communicator::init_all(2, &config).unwrap(), ends, parts));
        took.push(differ(&joined_hosts(&[0, 1], &config), ends, parts));
    }
    assert_kept("messages whose ends differ", MISMATCH_KNOWN, &took);
}

/// Rank 0 sends to rank 1, which is at a barrier.
fn send_to_one_at_a_barrier(comm: &Communicator, together: &Barrier) -> (Instant, Instant) {
    let mut byte = 1u8;
    together.wait();
    let started = Instant::now();
    // SAFETY: the buffers hold the bytes.
    let outcome = unsafe {
        if comm.rank() == 0 {
            let send = one_byte(true, 1, &mut byte);
            comm.exchange(&[send]).and_then(|()| comm.exchange(&[one_byte(false, 1, &mut byte)]))
        } else {
            comm.run(&Call::new(Collective::Barrier, DataType::Uint8))
        }
    };
    let known = Instant::now();
    let text = outcome.expect_err("a mismatch").to_string();
    // Rank 0 may see first that rank 1 is elsewhere, when it waits for an answer itself, and tell
    // rank 1.
    let calls = ["Send(count=1, type=uint8, peer=1) #0", "Recv(count=1, type=uint8, peer=1) #0"];
    let is_named = calls.iter().any(|call| text.contains(call));
    let both = text.contains("rank 1") && text.contains("called Barrier() #0") && is_named;
    assert!(both, "rank {}: {text}", comm.rank());
    (started, known)
}

#[test]
fn a_message_where_a_collective_is_expected_is_named() {
    let config = ringcomm::config::Config { timeout_ms: 20_000, ..config() };
    let here = Communicator::init_all(2, &config).unwrap();
    let took =
        [here, joined_hosts(&[0, 1], &config)].map(|all| run_timed(&all, send_to_one_at_a_barrier));
    assert_kept("messages where a collective is expected", MISMATCH_KNOWN, &took);
}

#[test]
fn a_rank_that_sends_itself_nothing_back_is_told_so_and_goes_on() {
    on_threads(2, &config(), |comm| {
        let rank = comm.rank();
        let (mut one, mut other) = (1u8, 0u8);
        let send = one_byte(true, rank, &mut one);
        let short = Message::Recv {
            buffer: &raw mut other,
            count: 0,
            data_type: DataType::Uint8,
            peer: rank,
        };
        let refused = [
            (vec![send], "sends to itself"),
            (vec![one_byte(false, rank, &mut other)], "sends to itself"),
            (vec![send, short], "sends itself 1 elements of type uint8 but receives 0"),
        ];
        for (batch, why) in refused {
            // SAFETY: the buffers hold a byte.
            let error = unsafe { comm.exchange(&batch) }.unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_eq!(comm.async_error(), None);
        // SAFETY: as above; a barrier has no buffers.
        unsafe {
            comm.exchange(&[send, one_byte(false, rank, &mut other)]).unwrap();
            comm.run(&Call::new(Collective::Barrier, DataType::Uint8)).unwrap();
        }
        assert_eq!(other, 1);
    });
}
