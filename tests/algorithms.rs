//! Every algorithm by name, and what is promised about the order of reductions.

mod support;

use ringcomm::algorithm::select::Costs;
use ringcomm::algorithm::{self, Algorithm};
use ringcomm::bootstrap::UniqueId;
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use support::samples::{RANKS, REDUCING, SLOT, operations, run_on_threads, v_cases};
use support::{Case, Data, Prepared, Random, config, on_processes, on_threads, small_slots};

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
    // Slots of 8 KiB: with four, plans run in stages; with sixteen and ranks that share a core, the
    // stages are four slices apart.
    for (slots, nranks) in [4, 16].into_iter().flat_map(|slots| RANKS.map(|ranks| (slots, ranks))) {
        let buff_size = Some((nranks - 1).max(1) * (128 + slots * (8192 + 64)));
        let profile = profile(slots);
        let config = Config { buff_size, tuning_file: Some(profile.clone()), ..config() };
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
        std::fs::remove_file(profile).unwrap();
    }
    println!("{pairs} pairs of a call and an algorithm");
}

/// A tuning file of a machine where all ranks have one core.
fn profile(number: usize) -> String {
    let path = std::env::temp_dir().join(format!("one-core-{}-{number}", std::process::id()));
    std::fs::write(&path, Costs { cores: 1, ..Costs::default() }.to_text()).unwrap();
    path.to_str().unwrap().to_string()
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
fn an_unknown_name_is_refused_before_the_ranks_meet() {
    let lookup = |name: &str| (name == "RINGCOMM_ALGO").then(|| "rnig".to_string());
    let config = Config::from_variables(lookup).unwrap();
    let id = UniqueId::generate().unwrap();
    let refusals = [
        Communicator::init_all(1, &config).err(),
        Communicator::init_all(2, &config).err(),
        Communicator::init_rank(1, &id, 0, &config).err(),
        Communicator::init_rank(2, &id, 1, &config).err(),
    ];
    on_threads(2, &support::config(), |comm| {
        let refused = comm.split(comm.rank() as i32, 0, Some(&config)).err();
        assert!(matches!(refused, Some(Error::InvalidArgument(_))), "{refused:?}");
    });
    let names = Algorithm::ALL.map(Algorithm::name).join(", ");
    for refusal in refusals {
        assert!(matches!(refusal, Some(Error::InvalidArgument(_))), "{refusal:?}");
        let text = refusal.unwrap().to_string();
        assert!(text.contains("RINGCOMM_ALGO"), "{text}");
        assert!(text.contains("\"rnig\"; did you mean \"ring\"?"), "{text}");
        assert!(text.ends_with(&names), "{text}");
    }
}
