//! Sends and receives in batches: any pairs, sizes, types and orders, between threads and
//! processes.

mod support;

use ringcomm::communicator::{Call, Communicator, Message};
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use support::exchange::{Planned, batch, run};
use support::{Random, config, on_hosts, on_joined_threads, on_processes, on_threads, small_slots};

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

/// What two ranks whose messages differ are told, at once or at their next call.
fn told(comm: &Communicator, ends: [Ends; 2]) -> String {
    let (sent, sent_type, received, received_type) = ends[comm.rank()];
    let peer = 1 - comm.rank();
    let (send, mut recv) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let mut messages = Vec::new();
    if sent > 0 {
        let (buffer, count) = (send.as_ptr(), sent);
        messages.push(Message::Send { buffer, count, data_type: sent_type, peer });
    }
    if received > 0 {
        let (buffer, count) = (recv.as_mut_ptr(), received);
        messages.push(Message::Recv { buffer, count, data_type: received_type, peer });
    }
    // A small send is complete once it is posted; then the next call learns of the failure.
    messages.push(one_byte(false, peer, &mut recv[0]));
    let (first, next) = messages.split_at(messages.len() - 1);
    // SAFETY: the buffers are long enough.
    let outcome = unsafe { comm.exchange(first).and_then(|()| comm.exchange(next)) };
    outcome.expect_err("a mismatch").to_string()
}

/// Every way in which two ends may differ, and how the receiver names it.
fn differ(comm: &Communicator, ends: [Ends; 2], right: &str, wrong: &str) {
    let text = told(comm, ends);
    let (rank, pid) = (comm.rank(), std::process::id());
    for part in ["rank 0", "rank 1", right, wrong, &format!("pid {pid}")] {
        assert!(text.contains(part), "rank {rank}: {part} is not in: {text}");
    }
}

const ENDS: [([Ends; 2], &str, &str); 4] = {
    use DataType::{Float32, Int32, Uint8};
    [
        (
            [(8, Float32, 0, Uint8), (0, Uint8, 9, Float32)],
            "Send(count=8, type=float, peer=1) #0",
            "Recv(count=9, type=float, peer=0) #0",
        ),
        // As many bytes.
        (
            [(8, Int32, 0, Uint8), (0, Uint8, 8, Float32)],
            "Send(count=8, type=int32, peer=1) #0",
            "Recv(count=8, type=float, peer=0) #0",
        ),
        // Rank 0 receives what it expects.
        (
            [(9, Int32, 4, Int32), (4, Int32, 7, Int32)],
            "Send(count=9, type=int32, peer=1) #0",
            "Recv(count=7, type=int32, peer=0) #0",
        ),
        // Longer than a slot.
        (
            [(200_000, Float32, 0, Uint8), (0, Uint8, 200_001, Float32)],
            "Send(count=200000, type=float, peer=1) #0",
            "Recv(count=200001, type=float, peer=0) #0",
        ),
    ]
};

#[test]
fn ends_that_disagree_on_a_message_both_name_both_calls() {
    let config = ringcomm::config::Config { timeout_ms: 20_000, ..config() };
    for (ends, sent, received) in ENDS {
        on_threads(2, &config, |comm| differ(comm, ends, sent, received));
        on_hosts(&[0, 1], &config, |comm| differ(comm, ends, sent, received));
    }
}

#[test]
fn a_message_where_a_collective_is_expected_is_named() {
    let config = ringcomm::config::Config { timeout_ms: 20_000, ..config() };
    on_threads(2, &config, |comm| {
        let mut byte = 1u8;
        // SAFETY: the buffers hold the bytes.
        let outcome = unsafe {
            if comm.rank() == 0 {
                let send = one_byte(true, 1, &mut byte);
                comm.exchange(&[send])
                    .and_then(|()| comm.exchange(&[one_byte(false, 1, &mut byte)]))
            } else {
                comm.run(&Call::new(Collective::Barrier, DataType::Uint8))
            }
        };
        let text = outcome.expect_err("a mismatch").to_string();
        // Rank 0 may see first that rank 1 is elsewhere, when it waits for an answer itself.
        let calls =
            ["Send(count=1, type=uint8, peer=1) #0", "Recv(count=1, type=uint8, peer=1) #0"];
        let is_named = calls[..2 - comm.rank()].iter().any(|call| text.contains(call));
        let both = text.contains("rank 1") && text.contains("called Barrier() #0") && is_named;
        assert!(both, "rank {}: {text}", comm.rank());
    });
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
