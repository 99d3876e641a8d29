//! The closed forms against the simulated clock, and the rules of the choice.

use super::*;
use crate::algorithm::{plan, plan_on};
use crate::plan::PIPELINE_DEPTH;
use crate::plan::simulate::{HostWire, Machine, simulate, simulate_hosts};
use crate::plan::topology::Topology;

const SLOT_BYTES: usize = 64 << 10;

pub(super) fn costs(cores: usize) -> Costs {
    Costs { cores, ..Costs::default() }
}

pub(super) fn question(collective: Collective, nranks: usize, bytes: usize) -> Question {
    Question {
        collective,
        nranks,
        hosts: Hosts::one(nranks),
        bytes,
        element: 1,
        associative: true,
        deterministic: false,
        direct: false,
        in_place: false,
        slot_bytes: SLOT_BYTES,
        whole_bytes: 0,
        forced: None,
    }
}

fn every_question() -> impl Iterator<Item = (Collective, usize, usize)> {
    Collective::ALL.into_iter().flat_map(|collective| {
        [1, 2, 3, 4, 6, 8, 13, 16, 32].into_iter().flat_map(move |nranks| {
            [0, 8, 8 << 10, 1 << 20, 64 << 20].map(move |bytes| (collective, nranks, bytes))
        })
    })
}

#[test]
fn closed_forms_agree_with_the_simulated_clock() {
    let costs = costs(1024);
    let machine = Machine {
        alpha_us: costs.alpha_us,
        message_us: costs.message_us,
        send_us_per_byte: costs.copy_us_per_byte,
        copy_us_per_byte: costs.copy_us_per_byte,
        reduce_us_per_byte: costs.reduce_us_per_byte,
        depth: 2,
        slot_bytes: SLOT_BYTES,
    };
    let mut wrong = Vec::new();
    for (collective, nranks, bytes) in every_question() {
        // Barriers move nothing whatever the question says.
        let bytes = if collective == Collective::Barrier { 0 } else { bytes };
        for algorithm in Algorithm::ALL {
            let predicted = predict(algorithm, false, &question(collective, nranks, bytes), &costs);
            assert_eq!(predicted.is_some(), plan(algorithm, collective, 0, nranks, 0).is_some());
            let Some(predicted) = predicted else { continue };
            let make = |rank| plan(algorithm, collective, rank, nranks, 0).expect("it exists");
            let simulated = simulate(collective, nranks, bytes, &machine, make).unwrap().time_us;
            let ratio = if simulated == predicted { 1.0 } else { predicted / simulated };
            if !(0.6..=1.7).contains(&ratio) {
                wrong.push(format!(
                    "{collective:?} {algorithm} {nranks} ranks {bytes} B: {predicted:.2} us, \
                     simulated {simulated:.2}, ratio {ratio:.2}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} {wrong:#?}", wrong.len());
}

/// Algorithms whose plans are made of hosts, some of them for some collectives.
const BY_HOSTS: [Algorithm; 5] = [
    Algorithm::Hierarchical,
    Algorithm::Leaders,
    Algorithm::Doubling,
    Algorithm::Halving,
    Algorithm::Binomial,
];

/// Hosts of equal and of unequal size, with ranks that follow each other.
pub(super) fn some_hosts() -> Vec<Topology> {
    let sizes: [&[usize]; 6] = [&[2, 2], &[2, 1], &[4, 4, 4], &[8, 8], &[3, 5, 4], &[4; 8]];
    let spread = |sizes: &[usize]| {
        let marks = sizes.iter().enumerate().flat_map(|(host, size)| vec![host; *size]);
        Topology::new(&marks.collect::<Vec<_>>())
    };
    sizes.into_iter().map(spread).collect()
}

pub(super) fn question_on(topology: &Topology, collective: Collective, bytes: usize) -> Question {
    let hosts = Hosts::of(topology);
    Question { hosts, ..question(collective, topology.nranks(), bytes) }
}

#[test]
fn hierarchical_forms_agree_with_the_simulated_clock() {
    let costs = Costs { wire_us_per_byte: 1.0 / 1_000.0, ..costs(1024) };
    let machine = Machine {
        alpha_us: costs.alpha_us,
        message_us: costs.message_us,
        send_us_per_byte: costs.copy_us_per_byte,
        copy_us_per_byte: costs.copy_us_per_byte,
        reduce_us_per_byte: costs.reduce_us_per_byte,
        depth: PIPELINE_DEPTH,
        slot_bytes: SLOT_BYTES,
    };
    let wire = HostWire {
        alpha_us: costs.wire_alpha_us,
        message_us: costs.wire_message_us,
        us_per_byte: costs.wire_us_per_byte,
    };
    let mut wrong = Vec::new();
    for topology in some_hosts() {
        for collective in Collective::ALL {
            for bytes in [8, 8 << 10, 1 << 20, 64 << 20] {
                let bytes = if collective == Collective::Barrier { 0 } else { bytes };
                for algorithm in BY_HOSTS {
                    if !hierarchical_cost::goes_by_hosts(
                        algorithm,
                        collective,
                        Hosts::of(&topology),
                        topology.nranks(),
                    ) {
                        continue;
                    }
                    let question = question_on(&topology, collective, bytes);
                    let predicted = predict(algorithm, false, &question, &costs);
                    let made = plan_on(&topology, algorithm, collective, 0, 0);
                    assert_eq!(predicted.is_some(), made.is_some());
                    let Some(predicted) = predicted else { continue };
                    // On the clock a host's way in is as wide as all others' ways out.
                    let to_one = matches!(algorithm, Algorithm::Leaders | Algorithm::Binomial);
                    if to_one && collective == Collective::Reduce {
                        continue;
                    }
                    let make = |rank| plan_on(&topology, algorithm, collective, rank, 0).unwrap();
                    let simulated =
                        simulate_hosts(collective, &topology, bytes, &machine, &wire, make);
                    let simulated = simulated.unwrap().time_us;
                    let ratio = predicted / simulated;
                    if !(0.5..=2.0).contains(&ratio) {
                        wrong.push(format!(
                            "{collective:?} {algorithm} {topology:?} {bytes} B: {predicted:.2} us, \
                             simulated {simulated:.2}, ratio {ratio:.2}"
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} {wrong:#?}", wrong.len());
}

/// What the kernel does for the wire and what a rank adds are work of one core. What leaves from
/// where it lies, and what comes to its place, nobody copies.
#[test]
fn sums_between_hosts_take_their_time_beside_the_wire() {
    let topology = Topology::new(&[0, 1]);
    let loopback = Costs {
        wire_alpha_us: 3.0,
        wire_message_us: 0.8,
        wire_us_per_byte: 1.0 / 12_000.0,
        copy_us_per_byte: 1.0 / 120_000.0,
        reduce_us_per_byte: 1.0 / 100_000.0,
        ..costs(2)
    };
    let floats = |bytes| Question {
        associative: false,
        ..question_on(&topology, Collective::AllReduce, bytes)
    };
    for (bytes, wanted) in [(8, Algorithm::OneShot), (4 << 20, Algorithm::TwoShot)] {
        assert_eq!(choose(&floats(bytes), &loopback).algorithm, wanted);
    }
    let time = |algorithm, costs: &Costs| {
        predict(algorithm, false, &floats(4 << 20), costs).unwrap() / f64::from(4 << 20)
    };
    let slower = |costs: Costs, algorithm| time(algorithm, &costs) - time(algorithm, &loopback);
    let [sum, copy] = [loopback.reduce_us_per_byte, loopback.copy_us_per_byte];
    for (algorithm, reduced, copied) in
        [(Algorithm::OneShot, 1.0, 1.0), (Algorithm::TwoShot, 0.5, 0.5)]
    {
        let dear = Costs { reduce_us_per_byte: 2.0 * sum, ..loopback.clone() };
        assert!((slower(dear, algorithm) / sum - reduced).abs() < 1e-6);
        let dear = Costs { copy_us_per_byte: 2.0 * copy, ..loopback.clone() };
        assert!((slower(dear, algorithm) / copy - copied).abs() < 1e-6);
    }
}

#[test]
fn the_wire_makes_flat_algorithms_dear() {
    let topology = Topology::new(&(0..16).map(|rank| rank / 8).collect::<Vec<_>>());
    let integers = question_on(&topology, Collective::AllReduce, 64 << 20);
    let best = choose(&integers, &costs(64));
    assert_eq!(best.algorithm, Algorithm::Hierarchical);
    // Every rank sends half of two vectors to the other host: eight times the bytes of one.
    let two_shot = predict(Algorithm::TwoShot, false, &integers, &costs(64)).unwrap();
    assert!(two_shot > 4.0 * best.predicted_us, "{two_shot} against {best:?}");
}

#[test]
fn measured_constants_never_change_the_bits_of_a_float_sum() {
    for (collective, nranks, bytes) in every_question() {
        for factor in [0.01, 1.0, 100.0] {
            let costs = Costs { alpha_us: factor, ..costs(2) };
            for direct in [false, true] {
                let floats =
                    Question { associative: false, direct, ..question(collective, nranks, bytes) };
                assert!(serial_order(choose(&floats, &costs).algorithm, collective));
            }
        }
    }
}

#[test]
fn the_same_question_has_the_same_answer_and_it_is_the_least() {
    for (collective, nranks, bytes) in every_question() {
        let question = Question { direct: true, ..question(collective, nranks, bytes) };
        let costs = costs(4);
        let choice = choose(&question, &costs);
        assert_eq!(choice, choose(&question, &costs.clone()));
        for algorithm in Algorithm::ALL {
            for direct in [false, true] {
                let Some(time) = predict(algorithm, direct, &question, &costs) else { continue };
                assert!(plan(algorithm, collective, nranks - 1, nranks, 0).is_some());
                assert!(choice.predicted_us <= time, "{choice:?} against {algorithm} {time}");
            }
        }
    }
}

#[test]
fn an_override_wins_where_it_exists_and_keeps_the_serial_order() {
    let ring = Question {
        forced: Some(Algorithm::Ring),
        associative: false,
        ..question(Collective::AllReduce, 4, 8)
    };
    assert_eq!(choose(&ring, &costs(4)).algorithm, Algorithm::Ring);
    let deterministic = Question { deterministic: true, ..ring };
    assert_eq!(choose(&deterministic, &costs(4)).algorithm, Algorithm::OneShot);
    let elsewhere = Question { collective: Collective::Scatter, ..ring };
    assert_ne!(choose(&elsewhere, &costs(4)).algorithm, Algorithm::Ring);
}

#[test]
fn small_vectors_want_one_round_and_large_ones_fewest_bytes() {
    let float = |nranks, bytes| Question {
        associative: false,
        ..question(Collective::AllReduce, nranks, bytes)
    };
    for nranks in [3, 4, 8] {
        assert_eq!(choose(&float(nranks, 8), &costs(8)).algorithm, Algorithm::OneShot);
        assert_eq!(choose(&float(nranks, 64 << 20), &costs(8)).algorithm, Algorithm::TwoShot);
    }
    let many = question(Collective::AllReduce, 64, 8);
    assert_eq!(choose(&many, &costs(64)).algorithm, Algorithm::Doubling);
}

#[test]
fn in_place_nobody_overwrites_what_others_read_directly() {
    let direct = |collective, in_place| {
        let question = Question { direct: true, in_place, ..question(collective, 2, 64 << 20) };
        choose(&question, &costs(2000))
    };
    for in_place in [false, true] {
        let choice = direct(Collective::AllReduce, in_place);
        assert_eq!((choice.algorithm, choice.direct), (Algorithm::TwoShot, true));
    }
    // In a broadcast in place the root has nothing to do but to help.
    assert_eq!(direct(Collective::Broadcast, true).algorithm, Algorithm::TwoShot);
    assert!(direct(Collective::AllToAll, false).direct);
    assert!(!direct(Collective::AllToAll, true).direct);
}

#[test]
fn a_profile_is_read_back_and_its_errors_name_the_line() {
    let costs = Costs { alpha_us: 0.1 + 0.2, cores: 7, ..costs(1) };
    let whole = Profile { costs: costs.clone(), knows_wire: true };
    assert_eq!(Profile::from_text(&costs.to_text()), Ok(whole));
    let of_a_host = Profile { costs: costs.clone(), knows_wire: false };
    assert!(!of_a_host.to_text().contains("wire"));
    assert_eq!(Profile::from_text(&of_a_host.to_text()), Ok(of_a_host));
    let half = costs.to_text().replace("wire_alpha_us", "# wire_alpha_us");
    assert!(Profile::from_text(&half).unwrap_err().to_string().contains("without wire_alpha_us"));
    let error = |text: &str| Profile::from_text(text).unwrap_err().to_string();
    assert!(error("alpha_us = 1\nbeta = 2").contains("line 2: unknown key \"beta\""));
    assert!(error("\nalpha_us 1").contains("line 2: \"alpha_us 1\" is not \"key = value\""));
    assert!(error("alpha_us = -1").contains("line 1: alpha_us = \"-1\" is not a number from 0"));
    assert!(error("cores = 0").contains("line 1: cores = \"0\" is not a number from 1"));
    assert!(error("alpha_us = 1\nalpha_us = 1").contains("line 2: alpha_us is set twice"));
    let older = costs.to_text().replace("cross_us_per_byte", "# cross_us_per_byte");
    assert_eq!(Profile::from_text(&older).unwrap().costs, costs);
    // The kernel's copies are in it where there are some.
    let copies = Costs { cma_us: 0.5, cma_us_per_byte: 1e-4, ..costs.clone() };
    assert!(!costs.to_text().contains("cma"));
    assert_eq!(Profile::from_text(&copies.to_text()).unwrap().costs, copies);
    let half = copies.to_text().replace("cma_us =", "# cma_us =");
    assert!(error(&half).contains("without cma_us"));
    assert!(
        error("alpha_us = 1 # one").contains("line 1: the tuning file ends without message_us")
    );
}

/// What one rank stands for, although spans that run on over the last chunk are two messages.
#[test]
fn alike_but_for_a_message_is_nearly_alike() {
    let costs = costs(1024);
    let machine = Machine {
        alpha_us: costs.wire_alpha_us,
        message_us: costs.wire_message_us,
        send_us_per_byte: costs.wire_us_per_byte,
        copy_us_per_byte: costs.copy_us_per_byte,
        reduce_us_per_byte: costs.reduce_us_per_byte,
        depth: PIPELINE_DEPTH,
        slot_bytes: SLOT_BYTES,
    };
    let time = |nranks: usize, algorithm, collective, bytes| {
        let make = |rank| plan(algorithm, collective, rank, nranks, 0).unwrap();
        simulate(collective, nranks, bytes, &machine, make).unwrap()
    };
    /// The most that are run in full.
    const MOST_EXACT: usize = 1024;
    for (algorithm, collective) in [(Algorithm::Doubling, Collective::AllGather)] {
        for per_rank in [8, 800] {
            let exact = time(MOST_EXACT, algorithm, collective, per_rank * MOST_EXACT);
            let more = time(MOST_EXACT + 1, algorithm, collective, per_rank * (MOST_EXACT + 1));
            assert!(!exact.symmetric && more.symmetric);
            // One rank more is one round more of eleven, or two of twenty-two.
            let ratio = more.time_us / exact.time_us;
            assert!((0.9..1.2).contains(&ratio), "{algorithm} {collective:?} {per_rank}: {ratio}");
        }
    }
}

/// The ranks of one host stand for all where they follow each other; in another order all are run.
#[test]
fn one_host_stands_for_all() {
    let machine = Machine {
        alpha_us: 1.0,
        message_us: 0.1,
        send_us_per_byte: 1e-4,
        copy_us_per_byte: 1e-4,
        reduce_us_per_byte: 2e-4,
        depth: PIPELINE_DEPTH,
        slot_bytes: SLOT_BYTES,
    };
    let wire = HostWire { alpha_us: 5.0, message_us: 0.3, us_per_byte: 1e-3 };
    let (hosts, local) = (5, 4);
    let in_order = Topology::new(&(0..hosts * local).map(|rank| rank / local).collect::<Vec<_>>());
    let mixed = Topology::new(&(0..hosts * local).map(|rank| rank % hosts).collect::<Vec<_>>());
    let mut alike = 0;
    for collective in Collective::ALL.into_iter().filter(|collective| !collective.has_root()) {
        for bytes in [800, 8 << 20] {
            let bytes = if collective == Collective::Barrier { 0 } else { bytes };
            let time = |topology: &Topology| {
                let plan =
                    |rank| plan_on(topology, Algorithm::Hierarchical, collective, rank, 0).unwrap();
                simulate_hosts(collective, topology, bytes, &machine, &wire, plan).unwrap()
            };
            if plan_on(&in_order, Algorithm::Hierarchical, collective, 0, 0).is_none() {
                continue;
            }
            let (one, all) = (time(&in_order), time(&mixed));
            assert!(one.symmetric && !all.symmetric);
            assert_eq!((one.messages, one.bytes), (all.messages, all.bytes), "{collective:?}");
            let ratio = one.time_us / all.time_us;
            assert!((ratio - 1.0).abs() < 1e-9, "{collective:?} {bytes}: {ratio}");
            alike += 1;
        }
    }
    assert_eq!(alike, 6);
}

#[test]
fn windows_are_for_long_sums_of_ranks_that_share_cores() {
    let (costs, window) = (costs(2), 512 << 10);
    let asked = Question { element: 4, ..question(Collective::AllReduce, 4, 16 << 20) };
    let found = shm_two_shot(&asked, window, &costs).unwrap();
    assert_eq!((found.algorithm, found.direct), (Algorithm::TwoShot, false));
    let staged = Question { associative: false, ..asked };
    assert!(found.predicted_us < choose(&staged, &costs).predicted_us);
    // Shorter windows are more barriers.
    assert!(found.predicted_us < shm_two_shot(&asked, window / 8, &costs).unwrap().predicted_us);
    let others = [
        Question { collective: Collective::Broadcast, ..asked },
        Question { forced: Some(Algorithm::Ring), ..asked },
        Question { hosts: Hosts { count: 2, least: 2, most: 2, exits: 1 }, ..asked },
        Question { bytes: 0, ..asked },
        Question { nranks: 1, ..asked },
    ];
    for other in others {
        assert_eq!(shm_two_shot(&other, window, &costs), None, "{other:?}");
    }
    // Two-shot is in serial order, and was asked for or is as good as what was.
    let serial = Question { deterministic: true, associative: false, ..asked };
    for forced in [None, Some(Algorithm::TwoShot), Some(Algorithm::Ring)] {
        assert_eq!(shm_two_shot(&Question { forced, ..serial }, window, &costs), Some(found));
    }
}

#[test]
fn the_kernel_copies_what_takes_longer_through_slots() {
    let free = Costs { cma_us: 1.0, cma_us_per_byte: 1e-6, ..costs(4) };
    let asked = |collective, bytes| Question { ..question(collective, 4, bytes) };
    let copying = [
        (Collective::AllGather, 3),
        (Collective::AllToAll, 3),
        (Collective::Gather, 3),
        (Collective::Broadcast, 1),
        (Collective::Scatter, 1),
    ];
    for collective in Collective::ALL {
        let found = by_cma(&asked(collective, 16 << 20), &free);
        let Some((_, calls)) = copying.iter().find(|(copies, _)| *copies == collective) else {
            assert_eq!(found, None, "{collective:?}");
            continue;
        };
        let found = found.unwrap();
        assert_eq!((found.algorithm, found.direct), (Algorithm::OneShot, false));
        assert!(found.predicted_us < choose(&asked(collective, 16 << 20), &free).predicted_us);
        // Each peer's block is a call of the system.
        let dear = Costs { cma_us: 101.0, ..free.clone() };
        let dear = by_cma(&asked(collective, 16 << 20), &dear).unwrap();
        let more = dear.predicted_us - found.predicted_us;
        assert!((more - 100.0 * f64::from(*calls)).abs() < 1e-6, "{collective:?}: {more}");
        let small = by_cma(&asked(collective, 64), &free).unwrap();
        assert!(small.predicted_us > choose(&asked(collective, 64), &free).predicted_us);
        let nothing = [
            (Question { bytes: 0, ..asked(collective, 8) }, free.clone()),
            (asked(collective, 16 << 20), costs(4)),
            (Question { forced: Some(Algorithm::Pairwise), ..asked(collective, 8) }, free.clone()),
            (
                Question {
                    hosts: Hosts { count: 2, least: 2, most: 2, exits: 1 },
                    ..asked(collective, 8)
                },
                free.clone(),
            ),
        ];
        for (question, costs) in nothing {
            let takes_pairwise = plan(Algorithm::Pairwise, collective, 0, 4, 0).is_some();
            let found = by_cma(&question, &costs);
            assert_eq!(found.is_some(), question.forced.is_some() && !takes_pairwise);
        }
    }
}
