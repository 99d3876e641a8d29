//! Sends and receives in batches: any pairs, sizes, types and orders, between threads and
//! processes.

mod support;

use ringcomm::communicator::{Communicator, Message};
use ringcomm::error::Error;
use ringcomm::types::DataType;
use support::exchange::{Planned, batch, run};
use support::{Random, config, on_joined_threads, on_processes, on_threads, small_slots};

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

#[test]
fn ends_that_disagree_on_a_message_fail_on_both_ranks() {
    let config = ringcomm::config::Config { timeout_ms: 5000, ..config() };
    on_threads(2, &config, |comm| {
        let mut buffer = vec![0u8; 4096];
        let count = 8 + comm.rank();
        let message = match comm.rank() {
            0 => Message::Send {
                buffer: buffer.as_ptr(),
                count,
                data_type: DataType::Float32,
                peer: 1,
            },
            _ => Message::Recv {
                buffer: buffer.as_mut_ptr(),
                count,
                data_type: DataType::Float32,
                peer: 0,
            },
        };
        // SAFETY: the buffer is long enough.
        let first = unsafe { comm.exchange(&[message]) };
        // A small send is complete once it is posted; then the next call learns of the failure.
        let error = match first {
            Err(error) => error,
            Ok(()) => {
                // SAFETY: the buffer is long enough.
                unsafe { comm.exchange(&[one_byte(false, 1, &mut buffer[0])]) }.unwrap_err()
            }
        };
        let text = error.to_string();
        assert!(text.contains("rank 1") && text.contains("rank 0"), "{text}");
    });
}

#[test]
fn a_rank_that_sends_itself_nothing_back_is_told_so() {
    on_threads(1, &config(), |comm| {
        let mut byte = 1u8;
        // SAFETY: the buffer holds a byte.
        let error = unsafe { comm.exchange(&[one_byte(true, 0, &mut byte)]) }.unwrap_err();
        assert!(error.to_string().contains("sends to itself"), "{error}");
    });
}
