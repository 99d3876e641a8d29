//! Every collective, on every type, operation, count and rank count, against the plain oracle.

mod support;

use ringcomm::bootstrap::UniqueId;
use ringcomm::communicator::{Call, Communicator, Explanation, Message, VectorCounts};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use support::samples::{
    COPYING, RANKS, REDUCING, SLOT, counts, long_cases, operations, run_on_threads, sample, v_cases,
};
use support::{
    Case, Memory, Prepared, Random, calm, config, on_joined_threads, on_processes, on_threads,
    small_slots, threads,
};

/// Every type and operation that the collective can reduce by, on every rank count.
fn every_type_and_operation(collective: Collective) {
    let mut calls = 0;
    for nranks in RANKS {
        let mut cases = Vec::new();
        for data_type in DataType::ALL {
            for op in operations().filter(|op| op.supports(data_type)) {
                for count in counts(collective, nranks, data_type) {
                    for in_place in [false, true] {
                        let seed = cases.len() as u64;
                        let root = cases.len() % nranks;
                        let case = Case::new(collective, nranks, count, data_type);
                        cases.push(Case { op, in_place, root, seed, ..case });
                    }
                }
            }
        }
        calls += run_on_threads(nranks, &small_slots(nranks, SLOT), cases);
    }
    println!("{calls} calls of {}", collective.name());
}

#[test]
fn all_reduce_is_right_for_every_type_operation_and_count() {
    every_type_and_operation(Collective::AllReduce);
}

#[test]
fn reduce_scatter_is_right_for_every_type_operation_and_count() {
    every_type_and_operation(Collective::ReduceScatter);
}

#[test]
fn reduce_is_right_for_every_type_operation_and_count() {
    every_type_and_operation(Collective::Reduce);
}

#[test]
fn copying_collectives_are_right_for_every_type_count_and_root() {
    let mut calls = 0;
    for nranks in RANKS {
        let mut cases = Vec::new();
        for collective in COPYING {
            for data_type in DataType::ALL {
                for count in counts(collective, nranks, data_type) {
                    for root in 0..if collective.has_root() { nranks } else { 1 } {
                        for in_place in [false, true] {
                            let seed = cases.len() as u64;
                            let case = Case::new(collective, nranks, count, data_type);
                            cases.push(Case { root, in_place, seed, ..case });
                        }
                    }
                }
            }
        }
        calls += run_on_threads(nranks, &small_slots(nranks, SLOT), cases);
    }
    println!("{calls} calls");
}

#[test]
fn v_forms_take_any_block_lengths_and_displacements() {
    let mut random = Random(3);
    let mut calls = 0;
    for nranks in RANKS {
        let cases = v_cases(nranks, 4, &mut random);
        calls += run_on_threads(nranks, &small_slots(nranks, SLOT), cases);
    }
    println!("{calls} calls");
}

#[test]
fn long_vectors_between_threads_go_straight_from_buffer_to_buffer() {
    for nranks in RANKS {
        let prepared: Vec<Prepared> = long_cases(nranks).into_iter().map(Prepared::new).collect();
        let direct = on_threads(nranks, &calm(nranks), |comm| {
            let is_direct = |case: &&Prepared| {
                case.run(comm);
                case.explain(comm).transport.starts_with("threads/direct")
            };
            prepared.iter().filter(is_direct).count()
        });
        println!("{nranks} ranks: {} of {} calls direct", direct[0], prepared.len());
        assert!(nranks == 1 || direct[0] > 100, "few calls of {nranks} ranks were direct");
    }
}

/// Bytes of a vector or a block that no cost model takes for small.
const LONG: usize = 8 << 20;

/// How each collective of `LONG` bytes would run, by name: sums, pre-multiplied ones, and copies.
fn explained(comm: &Communicator) -> Vec<(String, Explanation)> {
    let sums = |collective: Collective| {
        [ReduceOp::Sum, ReduceOp::PreMulSum].map(|op| (collective, op)).into_iter()
    };
    let all = REDUCING.into_iter().flat_map(sums);
    let all = all.chain(COPYING.map(|collective| (collective, ReduceOp::Sum)));
    all.filter(|(collective, _)| *collective != Collective::Barrier)
        .map(|(collective, op)| {
            let call = Call {
                // Any address does: nothing is moved.
                send: std::ptr::without_provenance(1 << 20),
                recv: std::ptr::without_provenance_mut(1 << 40),
                count: LONG / 4,
                op,
                ..Call::new(collective, DataType::Float32)
            };
            (format!("{} {op}", collective.name()), comm.explain(&call).unwrap())
        })
        .collect()
}

#[test]
fn every_long_collective_goes_straight_from_buffer_to_buffer() {
    for nranks in [2, 3, 4, 8] {
        let all = on_threads(nranks, &calm(nranks), explained).swap_remove(0);
        assert_eq!(all.len(), 11);
        for (name, explanation) in all {
            let name = format!("{name}, {nranks} ranks: {explanation:?}");
            if name.starts_with("AllToAll") {
                // What it is in place, and what it is else.
                assert_eq!(explanation.transport, "threads/direct or threads/slots", "{name}");
                assert!(explanation.mapped.is_some_and(|mapped| !mapped.in_place), "{name}");
                assert!(explanation.slices > 1 && explanation.slice_bytes < LONG, "{name}");
                continue;
            }
            assert_eq!(explanation.transport, "threads/direct", "{name}");
            assert!(explanation.mapped.is_none(), "{name}");
            // One pass over chunks of the whole vector, or of a rank's block of that length.
            let (slices, bytes) = (explanation.slices, explanation.slice_bytes);
            assert_eq!(slices, 1, "{name}");
            assert!(bytes == LONG || bytes == LONG.div_ceil(4 * explanation.chunks) * 4, "{name}");
        }
    }
    on_processes(3, &calm(3), "", |comm, _| {
        for (name, explanation) in explained(comm) {
            let mapped = explanation.mapped.unwrap_or_else(|| panic!("{name} is staged"));
            assert_eq!(mapped.in_place, !name.starts_with("AllToAll"), "{name}");
        }
        String::new()
    });
}

/// A rank knows its own blocks only: its explanation is of them.
#[test]
fn v_forms_by_messages_are_explained_by_their_blocks() {
    let nranks = 3;
    let explained = on_threads(nranks, &calm(nranks), |comm| {
        let of = |collective: Collective, send: &[usize], recv: &[usize]| {
            let behind_each_other =
                |counts: &[usize]| (0..counts.len()).map(|at| counts[..at].iter().sum()).collect();
            let vector = VectorCounts {
                send_counts: send.to_vec(),
                send_displacements: behind_each_other(send),
                recv_counts: recv.to_vec(),
                recv_displacements: behind_each_other(recv),
            };
            let call = Call {
                // Of a gather or a scatter.
                count: (comm.rank() + 1) << 20,
                send: std::ptr::without_provenance(1 << 20),
                recv: std::ptr::without_provenance_mut(1 << 40),
                vector: Some(&vector),
                ..Call::new(collective, DataType::Float32)
            };
            let told = comm.explain(&call).unwrap();
            (told.slices, told.slice_bytes, told.predicted_us)
        };
        let all = |counts: &[usize]| of(Collective::AllToAll, counts, counts);
        let (short, long) = (all(&[1, 2, 3]), all(&[1 << 20, 2 << 20, 3 << 20]));
        assert_eq!(((short.0, short.1), (long.0, long.1)), ((1, 12), (1, 12 << 20)));
        // Eighteen megabytes take longer than twenty-four bytes.
        assert!(long.2 > 100.0 * short.2, "{short:?}, {long:?}");
        let root = comm.rank() == 0;
        let gathered = |counts: &[usize]| {
            let (at_root, none): (&[usize], &[usize]) = (if root { counts } else { &[] }, &[]);
            let call = of(Collective::Gather, none, at_root);
            let scattered = of(Collective::Scatter, at_root, none);
            assert_eq!(call.0, 1);
            if root {
                assert_eq!((call.1, scattered.1), (12 << 20, 12 << 20));
                assert!(call.2.min(scattered.2) > 100.0 * short.2, "{call:?}, {scattered:?}");
            }
        };
        gathered(&[1 << 20, 2 << 20, 3 << 20]);
    });
    assert_eq!(explained.len(), nranks);
}

#[test]
fn processes_compute_what_threads_compute() {
    for nranks in RANKS {
        on_processes(nranks, &small_slots(nranks, SLOT), "", |comm, _| {
            for case in sample(comm.nranks(), 11) {
                Prepared::of(case, comm.rank()).run(comm);
            }
            String::new()
        });
    }
}

/// In exported memory the ranks read and write each other's buffers, in place and out of place; of
/// `v` forms a message that is longer than a slot is copied from where it lies.
#[test]
fn processes_compute_the_same_in_memory_that_they_map() {
    for nranks in [2, 3, 4] {
        let slots = small_slots(nranks, SLOT).buff_size;
        on_processes(nranks, &Config { buff_size: slots, ..calm(nranks) }, "", |comm, _| {
            let mut mapped = Vec::new();
            let nranks = comm.nranks();
            for case in sample(nranks, 71).into_iter().chain(long_cases(nranks)) {
                let kind = (case.collective, case.in_place);
                let prepared = Prepared::of(case, comm.rank()).within(Memory::Exported);
                prepared.run(comm);
                if prepared.explain(comm).mapped.is_some() {
                    mapped.push(kind);
                }
            }
            for collective in REDUCING.into_iter().chain(COPYING) {
                for kind in [(collective, false), (collective, true)] {
                    let calls = mapped.iter().filter(|other| **other == kind).count();
                    assert!(calls >= DataType::ALL.len(), "{calls} mapped calls: {kind:?}");
                }
            }
            String::new()
        });
    }
}

/// Shapes between processes that are run in the ranks' own buffers where those suit it, short
/// enough that asking for them matters: calls that asked in vain are followed by some that do not.
fn asking_shapes(comm: &Communicator) -> Vec<Case> {
    let mut shapes = Vec::new();
    for collective in REDUCING.into_iter().chain(COPYING) {
        for count in [1000, 4000, 8000, 16000] {
            let case = Case::new(collective, comm.nranks(), count, DataType::Int32);
            if Prepared::of(case.clone(), comm.rank()).explain(comm).mapped.is_some() {
                shapes.push(case);
            }
        }
    }
    assert!(shapes.len() > 10, "{} shapes", shapes.len());
    shapes
}

/// Which ranks' buffers are shared differs from rank to rank and call to call, and all know alike
/// whether the next call of the shape asks.
#[test]
fn memory_is_mapped_by_turns() {
    for nranks in [2, 3] {
        on_processes(nranks, &calm(nranks), "", |comm, _| {
            let (rank, mut random) = (comm.rank() as u64, Random(comm.rank() as u64 + 3));
            for case in asking_shapes(comm) {
                for seed in 0..40 {
                    let in_place = random.chance(2);
                    let case = Case { seed, in_place, ..case.clone() };
                    // Nobody's; anybody's; everybody's.
                    let is_shared = seed >= 8 && (seed >= 20 || (seed + rank) % 5 > 1);
                    let memory = if is_shared { Memory::Exported } else { Memory::Ordinary };
                    Prepared::of(case, comm.rank()).within(memory).run(comm);
                }
            }
            String::new()
        });
    }
}

/// Once it was in vain to ask the leaf for its buffer, a root leaves as soon as it has a slot.
#[test]
fn a_root_that_asked_in_vain_runs_ahead() {
    on_processes(2, &Config { timeout_ms: 20_000, ..calm(2) }, "", |comm, _| {
        let other = comm.split(0, comm.rank() as i32, None).unwrap().expect("all are in it");
        let case = Case::new(Collective::Broadcast, 2, 4000, DataType::Int32);
        let prepared = |seed| Prepared::of(Case { seed, ..case.clone() }, comm.rank());
        assert!(prepared(0).explain(comm).mapped.is_some(), "nothing to ask for");
        prepared(0).run(comm);
        let mut word = 7u8;
        let (buffer, count, data_type) = (&raw mut word, 1, DataType::Uint8);
        let message = match comm.rank() {
            0 => Message::Send { buffer, count, data_type, peer: 1 },
            _ => Message::Recv { buffer, count, data_type, peer: 0 },
        };
        // SAFETY: the buffer has that many bytes.
        let pass = || unsafe { other.exchange(&[message]).unwrap() };
        // The leaf comes to the broadcast when the root has left it.
        if comm.rank() == 1 {
            pass();
        }
        prepared(1).run(comm);
        if comm.rank() == 0 {
            pass();
        }
        String::new()
    });
}

#[test]
fn ranks_that_join_one_by_one_in_one_process_work_too() {
    for nranks in [1, 2, 5] {
        let cases: Vec<Prepared> = sample(nranks, 21).into_iter().map(Prepared::new).collect();
        on_joined_threads(nranks, &small_slots(nranks, SLOT), |comm| {
            cases.iter().for_each(|case| case.run(comm));
        });
    }
}

#[test]
fn sixteen_ranks_on_few_cores_are_a_normal_run() {
    let cases: Vec<Prepared> =
        sample(16, 31).into_iter().filter(fits_sixteen).map(Prepared::new).collect();
    on_threads(16, &small_slots(16, SLOT), |comm| {
        cases.iter().for_each(|case| case.run(comm));
    });
}

/// Sixteen summands leave the whole numbers that fp8 and their products that f16 can hold.
fn fits_sixteen(case: &Case) -> bool {
    !case.collective.reduces() || case.data_type.size() > 1 || !case.data_type.is_float()
}

#[test]
fn a_barrier_holds_every_rank_until_the_last_has_come() {
    for nranks in RANKS {
        let arrived = AtomicUsize::new(0);
        on_threads(nranks, &config(), |comm| {
            let mut random = Random(comm.rank() as u64);
            for round in 1..=100 {
                if random.chance(20) {
                    std::thread::sleep(std::time::Duration::from_micros(300));
                }
                arrived.fetch_add(1, SeqCst);
                let barrier = Call::new(Collective::Barrier, DataType::Uint8);
                // SAFETY: a barrier has no buffers.
                unsafe { comm.run(&barrier) }.unwrap();
                assert!(arrived.load(SeqCst) >= round * nranks, "a rank left round {round} early");
            }
        });
    }
}

#[test]
fn several_communicators_work_at_once_from_several_threads() {
    let jobs: Vec<(usize, Vec<Prepared>)> = (0..4)
        .map(|job| {
            let nranks = [2, 3, 4, 2][job];
            let cases = sample(nranks, 40 + job as u64).into_iter().step_by(3);
            (nranks, cases.map(Prepared::new).collect())
        })
        .collect();
    // Joined one by one: ThreadSanitizer does not see how a scope waits for its threads.
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .iter()
            .map(|(nranks, cases)| {
                scope.spawn(move || {
                    on_threads(*nranks, &small_slots(*nranks, SLOT), |comm| {
                        cases.iter().for_each(|case| case.run(comm));
                    })
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| drop(thread.join().expect("a job panicked")));
    });
}

#[test]
fn one_rank_alone_maps_no_buffers_and_gets_its_own_data() {
    // In a process of its own: here other tests' threads map memory as they come.
    on_processes(1, &config(), "", |comm, _| {
        let mapped_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
            size.trim().trim_end_matches(" kB").trim().parse::<usize>().unwrap()
        };
        let work = |comm: &Communicator| {
            sample(1, 51).into_iter().for_each(|case| Prepared::new(case).run(comm));
        };
        let config = Config { buff_size: Some(256 << 20), ..config() };
        let alone = |_| {
            let id = UniqueId::generate().unwrap();
            Communicator::init_rank(1, &id, 0, &config).unwrap()
        };
        // What a process maps once is there before.
        work(comm);
        let before = mapped_kib();
        let comms: Vec<Communicator> = (0..8).map(alone).collect();
        work(&comms[0]);
        let grown = mapped_kib().saturating_sub(before);
        assert!(grown < 4 << 10, "eight lone ranks with 256 MiB of buffers map {grown} KiB");
        String::new()
    });
}

#[test]
fn calls_from_two_threads_of_a_rank_take_turns() {
    let comms = Communicator::init_all(1, &config()).unwrap();
    let cases: Vec<Prepared> = sample(1, 61).into_iter().map(Prepared::new).collect();
    std::thread::scope(|scope| {
        let run = |_| scope.spawn(|| cases.iter().for_each(|case| case.run(&comms[0])));
        let threads: Vec<_> = (0..3).map(run).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a call panicked"));
    });
    let _ = threads::run_all(&comms, |comm| cases[0].run(comm));
}

#[test]
fn a_block_to_oneself_has_one_length() {
    on_threads(2, &config(), |comm| {
        let (send, mut recv) = ([1.0f32; 20], [0.0f32; 20]);
        let lists = |counts: [usize; 2]| (counts.to_vec(), vec![0, 10]);
        let (mut to, mut from) = ([3, 3], [3, 3]);
        (to[comm.rank()], from[comm.rank()]) = (9, 4);
        let ((send_counts, send_displacements), (recv_counts, recv_displacements)) =
            (lists(to), lists(from));
        let vector =
            VectorCounts { send_counts, send_displacements, recv_counts, recv_displacements };
        let call = Call {
            send: send.as_ptr().cast(),
            recv: recv.as_mut_ptr().cast(),
            vector: Some(&vector),
            ..Call::new(Collective::AllToAll, DataType::Float32)
        };
        // SAFETY: every block lies inside its buffer.
        let error = unsafe { comm.run(&call) }.unwrap_err().to_string();
        let own = comm.rank();
        let wanted = format!("rank {own} sends itself 9 elements and receives 4 of them");
        assert!(error.contains(&wanted), "{error}");
        assert_eq!(recv, [0.0; 20]);
    });
}
