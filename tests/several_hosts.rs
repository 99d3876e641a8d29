//! Several hosts on one machine: communicators that take their ranks for spread, with real data.
//!
//! What crosses between hosts crosses memory in most tests here, as plans do not know the
//! difference.

mod support;

use ringcomm::algorithm::{self, Algorithm};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::plan::topology::Topology;
use ringcomm::types::{DataType, ReduceOp};
use support::samples::{COPYING, REDUCING, SLOT, operations, v_cases};
use support::{
    Case, Data, Prepared, Random, calm, on_hosts, on_processes, on_threads, small_slots,
};

const TOPOLOGIES: [&[usize]; 8] = [
    &[0, 0, 1],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[0, 1, 1, 2, 0],
    &[0, 0, 0, 1, 2, 2],
    &[0, 0, 1, 1, 2, 2, 3, 3],
    &[0, 1, 2, 3, 4],
    &[0, 1, 2, 2, 3, 4, 5, 6, 6],
];

/// A configuration with these hosts, whose choices do not depend on how busy the machine is.
fn spread(hosts: &[usize], config: Config) -> Config {
    Config { hosts: Some(hosts.to_vec()), tuning_file: calm(hosts.len()).tuning_file, ..config }
}

/// Four slots of 8 KiB: deep enough for plans to run in stages.
fn deep(nranks: usize) -> Config {
    Config { buff_size: Some((nranks - 1) * (128 + 4 * (8192 + 64))), ..support::config() }
}

/// Every collective, type and operation with data that shows the order of a reduction, which is
/// that of `order`: of the hosts, or of the ranks where it is empty. A third of the calls on each
/// topology, all of them on any three that follow each other.
fn cases(hosts: &[usize], order: &[usize]) -> Vec<Case> {
    let nranks = hosts.len();
    let mut cases = Vec::new();
    for collective in REDUCING.into_iter().chain(COPYING) {
        for data_type in DataType::ALL {
            for op in operations().filter(|op| op.supports(data_type)) {
                for count in [0, 1, nranks + 1, 3 * SLOT / data_type.size() + 5] {
                    let (seed, root) = (cases.len() as u64, cases.len() % nranks);
                    let in_place = cases.len() / 3 % 2 == 0;
                    let (data, hosts) = (Data::Special, order.to_vec());
                    let case = Case::new(collective, nranks, count, data_type);
                    cases.push(Case { op, in_place, root, seed, data, hosts, ..case });
                }
                if !collective.reduces() {
                    break;
                }
            }
        }
    }
    let turn = TOPOLOGIES.iter().position(|known| *known == hosts).unwrap_or(0);
    cases.into_iter().skip(turn % 3).step_by(3).collect()
}

fn run(hosts: &[usize], config: &Config, cases: Vec<Case>) {
    let prepared: Vec<Prepared> = cases.into_iter().map(Prepared::new).collect();
    on_threads(hosts.len(), config, |comm| prepared.iter().for_each(|case| case.run(comm)));
}

#[test]
fn reductions_are_in_host_order() {
    for hosts in TOPOLOGIES {
        run(hosts, &spread(hosts, small_slots(hosts.len(), SLOT)), cases(hosts, hosts));
    }
}

#[test]
fn a_deterministic_communicator_keeps_the_serial_order() {
    for hosts in TOPOLOGIES {
        let config = Config { deterministic: true, ..small_slots(hosts.len(), SLOT) };
        run(hosts, &spread(hosts, config), cases(hosts, &[]));
    }
}

#[test]
fn all_algorithms_in_host_order_can_be_forced_and_give_the_same_bits() {
    let mut forced = Vec::new();
    for hosts in TOPOLOGIES {
        let topology = Topology::new(hosts);
        let alone = topology.nhosts() == topology.nranks();
        for algorithm in Algorithm::ALL {
            let name = algorithm.name();
            let exists = |case: &Case| {
                let collective = case.collective;
                algorithm::host_order(algorithm, collective, alone)
                    && algorithm::plan_on(&topology, algorithm, collective, 0, 0).is_some()
            };
            let cases: Vec<Prepared> =
                cases(hosts, hosts).into_iter().filter(exists).map(Prepared::new).collect();
            if cases.is_empty() {
                continue;
            }
            forced.push(algorithm);
            let config = Config { algorithm: Some(name.into()), ..deep(hosts.len()) };
            on_threads(hosts.len(), &spread(hosts, config), |comm| {
                for case in &cases {
                    case.run(comm);
                    let explained = case.explain(comm);
                    let channels = algorithm::channels(&topology, algorithm, case.case.collective);
                    let found = (explained.algorithm, explained.channels);
                    assert_eq!(found, (name, channels), "{:?}", case.case);
                }
                assert!(comm.dump().contains(&format!("algorithm={name}")), "{}", comm.dump());
            });
        }
    }
    // The hierarchical ones or the shots, and three that are for all.
    assert_eq!(forced.len(), 5 * TOPOLOGIES.len(), "{forced:?}");
}

#[test]
fn a_flat_algorithm_that_is_asked_for_is_taken() {
    let hosts = [0, 0, 1, 1];
    let config = Config { algorithm: Some("twoshot".into()), ..small_slots(4, SLOT) };
    let case = Case { data: Data::Special, ..Case::new(ALL_REDUCE, 4, 5000, DataType::Float32) };
    let case = Prepared::new(case);
    on_threads(4, &spread(&hosts, config), |comm| {
        case.run(comm);
        assert_eq!(case.explain(comm).algorithm, "twoshot");
    });
}

const ALL_REDUCE: Collective = Collective::AllReduce;

/// Vectors of many slices, so that stages overlap and scratch is used again.
#[test]
fn long_vectors_stream_in_stages() {
    for hosts in TOPOLOGIES {
        let nranks = hosts.len();
        let mut all = Vec::new();
        for collective in REDUCING.into_iter().chain(COPYING) {
            for in_place in [false, true] {
                for op in [ReduceOp::Sum, ReduceOp::PreMulSum] {
                    let count = match collective {
                        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => {
                            60_013
                        }
                        _ => 6_007,
                    };
                    let (seed, root) = (all.len() as u64, all.len() % nranks);
                    let (data, order) = (Data::Special, hosts.to_vec());
                    let case = Case::new(collective, nranks, count, DataType::Float32);
                    all.push(Case { op, in_place, root, seed, data, hosts: order, ..case });
                }
            }
        }
        run(hosts, &spread(hosts, deep(nranks)), all);
    }
}

#[test]
fn v_forms_are_right_on_several_hosts() {
    let mut random = Random(11);
    for hosts in TOPOLOGIES {
        let nranks = hosts.len();
        let in_host_order = |case: Case| {
            let (data, hosts) = (Data::Special, hosts.to_vec());
            Case { data, hosts, ..case }
        };
        let cases = v_cases(nranks, 1, &mut random).into_iter().map(in_host_order).collect();
        run(hosts, &spread(hosts, small_slots(nranks, SLOT)), cases);
    }
}

/// Which algorithm a float sum and an integer sum of `bytes` bytes use on `hosts`.
fn chosen(hosts: &[usize], bytes: usize) -> [&'static str; 2] {
    let both = |comm: &Communicator| {
        [DataType::Float32, DataType::Int32].map(|data_type| {
            let call = Call {
                // Any address does: nothing is moved.
                send: std::ptr::without_provenance(1 << 20),
                recv: std::ptr::without_provenance_mut(1 << 40),
                count: bytes / 4,
                ..Call::new(ALL_REDUCE, data_type)
            };
            comm.explain(&call).expect("a call that can be explained").algorithm
        })
    };
    on_threads(hosts.len(), &spread(hosts, support::config()), both)[0]
}

#[test]
fn the_choice_is_by_hosts_where_that_is_worth_it() {
    let two_by_four = [0, 0, 0, 0, 1, 1, 1, 1];
    let three_by_four = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
    assert_eq!(chosen(&two_by_four, 64 << 20), ["hierarchical"; 2]);
    assert_eq!(chosen(&three_by_four, 64 << 20), ["hierarchical"; 2]);
    // One round over the wire, and as few messages as there can be.
    assert_eq!(chosen(&three_by_four, 8)[0], "leaders");
}

#[test]
fn processes_agree_with_the_host_order_too() {
    const HOSTS: [usize; 4] = [0, 1, 0, 1];
    let config = spread(&HOSTS, small_slots(4, SLOT));
    on_processes(4, &config, "", |comm, _| {
        for case in cases(&HOSTS, &HOSTS).into_iter().step_by(3) {
            Prepared::of(case, comm.rank()).run(comm);
        }
        "right".into()
    });
}

#[test]
fn sockets_carry_the_same_bits() {
    for hosts in TOPOLOGIES {
        let config = spread(hosts, small_slots(hosts.len(), SLOT));
        let config = Config { hosts: None, spins: Some(4), nsocks: 2, ..config };
        let cases = cases(hosts, hosts).into_iter().step_by(5);
        let prepared: Vec<Prepared> = cases.map(Prepared::new).collect();
        let topology = Topology::new(hosts);
        on_hosts(hosts, &config, |comm| {
            for case in &prepared {
                case.run(comm);
                let explained = case.explain(comm);
                let algorithm = Algorithm::from_name(explained.algorithm).unwrap();
                let channels = algorithm::channels(&topology, algorithm, case.case.collective);
                assert_eq!(explained.channels, 2 * channels);
            }
        });
    }
}

#[test]
fn constants_of_the_wire_are_measured() {
    let config = Config { spins: Some(4), ..support::config() };
    let costs = on_hosts(&[0, 0, 1], &config, Communicator::costs);
    assert!(costs.iter().all(|theirs| *theirs == costs[0]));
    let unmeasured = ringcomm::algorithm::select::Costs::default();
    assert!(costs[0].wire_alpha_us != unmeasured.wire_alpha_us);
    assert!(costs[0].wire_us_per_byte != unmeasured.wire_us_per_byte);
    assert!(costs[0].wire_message_us > 0.0);
}
