//! Every collective, on every type, operation, count and rank count, against the plain oracle.

mod support;

use ringcomm::algorithm::{self, Algorithm};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use support::case::Blocks;
use support::{
    Case, Data, Prepared, Random, calm, config, on_joined_threads, on_processes, on_threads,
    small_slots, threads,
};

const RANKS: [usize; 6] = [1, 2, 3, 4, 7, 8];

/// Bytes of a slot in most tests here: short, so that short vectors take several slices.
const SLOT: usize = 1024;

const REDUCING: [Collective; 3] =
    [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];

const COPYING: [Collective; 5] = [
    Collective::AllGather,
    Collective::Broadcast,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];

const WITH_V_FORM: [Collective; 5] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];

fn operations() -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().chain([ReduceOp::PreMulSum])
}

/// Around the rank count, a prime, and more than two slots of a whole vector or one of a block.
fn counts(collective: Collective, nranks: usize, data_type: DataType) -> Vec<usize> {
    let slots = match collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => 2,
        _ => 1,
    };
    let long = slots * SLOT / data_type.size() + 7;
    let mut counts = vec![0, 1, nranks - 1, nranks, nranks + 1, 61, long];
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn run_on_threads(nranks: usize, config: &Config, cases: Vec<Case>) -> usize {
    let prepared: Vec<Prepared> = cases.into_iter().map(Prepared::new).collect();
    on_threads(nranks, config, |comm| prepared.iter().for_each(|case| case.run(comm)));
    prepared.len()
}

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

/// Block lengths of a `v` form: none, some or many elements.
fn blocks(collective: Collective, nranks: usize, random: &mut Random) -> Blocks {
    let longest = random.pick(&[1, 5, 40, 700]);
    let mut lengths = || {
        let length = |_| if random.chance(3) { 0 } else { random.below(longest + 1) };
        (0..nranks).map(length).collect()
    };
    match collective {
        Collective::AllToAll => Blocks::Between((0..nranks).map(|_| lengths()).collect()),
        _ => Blocks::Of(lengths()),
    }
}

fn v_cases(nranks: usize, rounds: usize, random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in WITH_V_FORM {
        for data_type in DataType::ALL {
            for _ in 0..rounds {
                for in_place in [false, true] {
                    // Blocks of different lengths cannot change places.
                    let in_place = in_place && collective != Collective::AllToAll;
                    let blocks = Some(blocks(collective, nranks, random));
                    let ops: Vec<_> = operations().filter(|op| op.supports(data_type)).collect();
                    let (op, root, seed) =
                        (random.pick(&ops), random.below(nranks), random.next() >> 8);
                    let case = Case::new(collective, nranks, 0, data_type);
                    cases.push(Case { blocks, in_place, op, root, seed, ..case });
                }
            }
        }
    }
    cases
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

/// Data that shows the order of a reduction where the order is promised, and hides it elsewhere.
fn data_for(algorithm: Algorithm, collective: Collective) -> Data {
    match algorithm::serial_order(algorithm, collective) {
        true => Data::Special,
        false => Data::Exact,
    }
}

const FORCED_TYPES: [DataType; 7] = [
    DataType::Int32,
    DataType::Bool,
    DataType::Float8e4m3,
    DataType::Float16,
    DataType::Bfloat16,
    DataType::Float32,
    DataType::Float64,
];

/// Run `cases` by every algorithm that exists for them; how many pairs that was.
fn force_every_algorithm(nranks: usize, config: &Config, cases: Vec<Case>) -> usize {
    // Every case twice: as it is, and with data that shows the order where the order is promised.
    let special = |case: &Case| Prepared::new(Case { data: Data::Special, ..case.clone() });
    let cases: Vec<[Prepared; 2]> =
        cases.into_iter().map(|case| [special(&case), Prepared::new(case)]).collect();
    let mut pairs = 0;
    for algorithm in Algorithm::ALL {
        let chosen: Vec<&Prepared> = cases
            .iter()
            .map(|[special, exact]| {
                let collective = exact.case.collective;
                if algorithm::serial_order(algorithm, collective) { special } else { exact }
            })
            .filter(|prepared| {
                let collective = prepared.case.collective;
                algorithm::plan(algorithm, collective, 0, nranks, 0).is_some()
            })
            .collect();
        let name = algorithm.name();
        let config = Config { algorithm: Some(name.into()), ..config.clone() };
        on_threads(nranks, &config, |comm| {
            for prepared in &chosen {
                prepared.run(comm);
                assert_eq!(prepared.explain(comm).algorithm, name, "{:?}", prepared.case);
            }
        });
        pairs += chosen.len();
    }
    pairs
}

#[test]
fn every_algorithm_that_exists_can_be_forced_and_is_right() {
    let mut pairs = 0;
    for nranks in RANKS {
        let mut cases = Vec::new();
        for collective in Collective::ALL {
            for data_type in FORCED_TYPES {
                for op in operations().filter(|op| op.supports(data_type)) {
                    for count in [0, nranks + 1, 3 * SLOT / data_type.size() + 5] {
                        let (seed, root) = (cases.len() as u64, cases.len() % nranks);
                        let in_place = cases.len() / 3 % 2 == 0;
                        let case = Case::new(collective, nranks, count, data_type);
                        cases.push(Case { op, in_place, root, seed, ..case });
                    }
                    if !collective.reduces() {
                        break;
                    }
                }
            }
        }
        pairs += force_every_algorithm(nranks, &small_slots(nranks, SLOT), cases);
    }
    println!("{pairs} pairs of a call and an algorithm");
}

#[test]
fn every_algorithm_streams_long_vectors_through_deep_connections() {
    let mut pairs = 0;
    for nranks in RANKS {
        // Four slots of 8 KiB: deep enough for plans to run in stages.
        let buffer_bytes = (nranks - 1).max(1) * 4 * (8192 + 64);
        let config = Config { buffer_bytes, ..config() };
        let mut cases = Vec::new();
        for collective in Collective::ALL {
            for data_type in [DataType::Int16, DataType::Float32] {
                for count in [3, 9000, 50_003] {
                    let blocks = match collective {
                        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
                        _ => nranks,
                    };
                    for in_place in [false, true] {
                        let (seed, root) = (cases.len() as u64, cases.len() % nranks);
                        let op = if seed % 4 < 2 { ReduceOp::Sum } else { ReduceOp::PreMulSum };
                        let count = (count / blocks).max(1);
                        let case = Case::new(collective, nranks, count, data_type);
                        cases.push(Case { op, in_place, root, seed, ..case });
                    }
                }
            }
        }
        pairs += force_every_algorithm(nranks, &config, cases);
    }
    println!("{pairs} pairs of a call and an algorithm");
}

#[test]
fn every_algorithm_takes_v_forms() {
    let mut random = Random(5);
    for nranks in [2, 3, 5, 8] {
        for algorithm in Algorithm::ALL {
            let exists = |case: &Case| {
                algorithm::plan(algorithm, case.collective, 0, nranks, case.root).is_some()
            };
            let cases: Vec<Case> =
                v_cases(nranks, 1, &mut random).into_iter().filter(exists).collect();
            let name = Some(algorithm.name().to_string());
            run_on_threads(nranks, &Config { algorithm: name, ..small_slots(nranks, SLOT) }, cases);
        }
    }
}

#[test]
fn long_vectors_between_threads_go_straight_from_buffer_to_buffer() {
    for nranks in RANKS {
        let mut cases = Vec::new();
        for collective in REDUCING.into_iter().chain(COPYING) {
            for data_type in DataType::ALL {
                let blocks = match collective {
                    Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
                    _ => nranks,
                };
                let count = 60_000 / data_type.size() / blocks + 3;
                for in_place in [false, true] {
                    let ops: Vec<_> = operations().filter(|op| op.supports(data_type)).collect();
                    let (seed, root) = (cases.len() as u64, cases.len() % nranks);
                    let op = ops[cases.len() / 2 % ops.len()];
                    let case = Case::new(collective, nranks, count, data_type);
                    cases.push(Case { op, in_place, root, seed, ..case });
                }
            }
        }
        let prepared: Vec<Prepared> = cases.into_iter().map(Prepared::new).collect();
        let direct = on_threads(nranks, &calm(nranks), |comm| {
            let is_direct = |case: &&Prepared| {
                case.run(comm);
                case.explain(comm).transport == "thread direct"
            };
            prepared.iter().filter(is_direct).count()
        });
        println!("{nranks} ranks: {} of {} calls direct", direct[0], prepared.len());
        assert!(nranks == 1 || direct[0] > 100, "few calls of {nranks} ranks were direct");
    }
}

#[test]
fn deterministic_results_equal_the_serial_loop_bit_for_bit() {
    for nranks in RANKS {
        let mut cases = Vec::new();
        for collective in REDUCING {
            for data_type in DataType::ALL {
                for op in operations().filter(|op| op.supports(data_type)) {
                    for count in [1, nranks + 1, SLOT / data_type.size() * 3 + 1] {
                        let (seed, root) = (cases.len() as u64, cases.len() % nranks);
                        let in_place = cases.len() % 3 == 0;
                        let data = Data::Special;
                        let case = Case::new(collective, nranks, count, data_type);
                        cases.push(Case { op, in_place, root, seed, data, ..case });
                    }
                }
            }
        }
        let config = Config { deterministic: true, ..small_slots(nranks, SLOT) };
        run_on_threads(nranks, &config, cases);
    }
}

#[test]
fn deterministic_wins_over_a_forced_algorithm_or_refuses_it() {
    for algorithm in Algorithm::ALL {
        let name = Some(algorithm.name().to_string());
        let config = Config { deterministic: true, algorithm: name, ..config() };
        let case = Case::new(Collective::AllReduce, 4, 1000, DataType::Float32);
        let case = Prepared::new(Case { data: Data::Special, ..case });
        on_threads(4, &config, |comm| {
            if let Err(text) = case.try_run(comm) {
                assert!(text.contains("deterministic"), "{algorithm}: {text}");
            }
        });
    }
}

/// A thin sample of everything, which child processes make for themselves.
fn sample(nranks: usize, seed: u64) -> Vec<Case> {
    let mut random = Random(seed);
    let mut cases = v_cases(nranks, 1, &mut random);
    for collective in REDUCING.into_iter().chain(COPYING) {
        for data_type in DataType::ALL {
            let ops: Vec<_> = operations().filter(|op| op.supports(data_type)).collect();
            let mut all = counts(collective, nranks, data_type);
            all.push(40_000 / data_type.size() / nranks + 3);
            for count in all {
                let (op, root) = (random.pick(&ops), random.below(nranks));
                let (in_place, seed) = (random.chance(2), random.next() >> 8);
                let case = Case::new(collective, nranks, count, data_type);
                cases.push(Case { op, in_place, root, seed, ..case });
            }
        }
    }
    cases
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

#[test]
fn processes_run_every_algorithm_that_exists() {
    for algorithm in Algorithm::ALL {
        for nranks in [2, 5] {
            let name = algorithm.name();
            let slots = small_slots(nranks, SLOT);
            let config = Config { algorithm: Some(name.into()), ..slots };
            on_processes(nranks, &config, name, |comm, name| {
                let algorithm = Algorithm::from_name(name).unwrap();
                let nranks = comm.nranks();
                for collective in Collective::ALL {
                    if algorithm::plan(algorithm, collective, 0, nranks, 0).is_none() {
                        continue;
                    }
                    let mut seed = 0;
                    for data_type in [DataType::Float16, DataType::Int64, DataType::Float32] {
                        for count in [1, 1000] {
                            seed += 1;
                            let (root, in_place) = (seed as usize % nranks, seed % 2 == 0);
                            let data = data_for(algorithm, collective);
                            let case = Case::new(collective, nranks, count, data_type);
                            let case = Case { root, in_place, seed, data, ..case };
                            Prepared::of(case, comm.rank()).run(comm);
                        }
                    }
                }
                String::new()
            });
        }
    }
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
    std::thread::scope(|scope| {
        for (nranks, cases) in &jobs {
            scope.spawn(move || {
                on_threads(*nranks, &small_slots(*nranks, SLOT), |comm| {
                    cases.iter().for_each(|case| case.run(comm));
                })
            });
        }
    });
}

#[test]
fn one_rank_alone_holds_no_buffers_and_gets_its_own_data() {
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let rss = maps.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").trim().parse::<usize>().unwrap()
    };
    let before = mapped();
    let config = Config { buffer_bytes: 256 << 20, ..config() };
    let comms: Vec<_> = (0..8).flat_map(|_| Communicator::init_all(1, &config).unwrap()).collect();
    for case in sample(1, 51) {
        Prepared::new(case).run(&comms[0]);
    }
    let grown = mapped().saturating_sub(before);
    assert!(grown < 512 << 10, "eight lone ranks with 256 MiB of buffers each use {grown} KiB");
    drop(comms);
}

#[test]
fn results_of_one_call_are_the_same_on_all_ranks_and_from_run_to_run() {
    let floats = [DataType::Float16, DataType::Bfloat16, DataType::Float32, DataType::Float64];
    for nranks in [2, 3, 4, 8] {
        let mut all: Vec<Vec<Vec<u8>>> = Vec::new();
        for _ in 0..2 {
            all.extend(on_threads(nranks, &config(), |comm| {
                let mut results = Vec::new();
                for data_type in floats {
                    for count in [1, 100, 5000, 30_000] {
                        results.push(plain_sum(comm, data_type, count));
                    }
                }
                results
            }));
        }
        assert!(all.iter().all(|results| *results == all[0]), "{nranks} ranks");
    }
}

/// An all-reduce of data whose rounding shows the order, without an oracle.
fn plain_sum(comm: &Communicator, data_type: DataType, count: usize) -> Vec<u8> {
    let size = data_type.size();
    let input: Vec<u8> = (0..count)
        .flat_map(|index| {
            let data = Data::Special;
            let bits =
                support::data::element(data, data_type, ReduceOp::Sum, 9, comm.rank(), index);
            bits.to_le_bytes().into_iter().take(size)
        })
        .collect();
    let mut output = vec![0u8; count * size];
    let call = Call {
        send: input.as_ptr(),
        recv: output.as_mut_ptr(),
        count,
        ..Call::new(Collective::AllReduce, data_type)
    };
    // SAFETY: both buffers hold `count` elements.
    unsafe { comm.run(&call) }.unwrap();
    output
}

#[test]
fn calls_from_two_threads_of_a_rank_take_turns() {
    let comms = Communicator::init_all(1, &config()).unwrap();
    let cases: Vec<Prepared> = sample(1, 61).into_iter().map(Prepared::new).collect();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| cases.iter().for_each(|case| case.run(&comms[0])));
        }
    });
    let _ = threads::run_all(&comms, |comm| cases[0].run(comm));
}
