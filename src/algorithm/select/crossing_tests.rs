//! What the model says of lines that cross from core to core.

use super::tests::{costs, question};
use super::*;
use crate::plan::topology::Topology;

#[test]
fn lines_that_cross_make_slots_dear_and_one_shot_too() {
    let near = costs(2);
    let far = Costs { cross_us_per_byte: 2.0 * near.copy_us_per_byte, ..near.clone() };
    let staged = Question { associative: false, ..question(Collective::AllReduce, 2, 1 << 20) };
    let time = |direct, costs: &Costs| {
        let question = Question { direct, ..staged };
        predict(Algorithm::OneShot, direct, &question, costs).unwrap()
    };
    // A byte through a slot crosses twice, one that is read where it lies once.
    let more = |direct| time(direct, &far) - time(direct, &near);
    let byte = far.cross_us_per_byte * f64::from(1 << 20);
    assert!((more(false) - 2.0 * byte).abs() < 1e-6 * byte, "{}", more(false) / byte);
    assert!((more(true) - byte).abs() < 1e-6 * byte, "{}", more(true) / byte);
}

/// Slices of a broadcast follow each other at the root's pace: its lines come back to it while the
/// leaf gets others.
#[test]
fn a_root_and_its_leaf_each_wait_for_their_own_lines() {
    let near = costs(2);
    let far = Costs { cross_us_per_byte: 2.0 * near.copy_us_per_byte, ..near.clone() };
    let (slices, slot) = (64, question(Collective::Broadcast, 2, 1).slot_bytes);
    for collective in [Collective::Broadcast, Collective::Scatter, Collective::Gather] {
        let long = question(collective, 2, slices * slot);
        for algorithm in [Algorithm::OneShot, Algorithm::Chain, Algorithm::Binomial] {
            let time = |costs: &Costs| predict(algorithm, false, &long, costs);
            let Some((with, without)) = time(&far).zip(time(&near)) else { continue };
            let lines = (with - without) / (far.cross_us_per_byte * long.bytes as f64);
            let moved = if collective == Collective::Broadcast { 1.0 } else { 0.5 };
            assert!((lines - moved).abs() < 0.05 * moved, "{collective:?} {algorithm:?}: {lines}");
        }
    }
}

#[test]
fn messages_are_lent_from_where_that_wins_back_the_wait() {
    let near = costs(2);
    let [reached, by_cma, alone] = zero_copy_from(&near);
    let won = near.alpha_us + 2.0 * near.message_us;
    assert!((reached as f64 * near.copy_us_per_byte - won).abs() < near.copy_us_per_byte);
    // Nobody may; a kernel that is as slow as a slot; one that is as fast as the processor.
    assert_eq!([by_cma, alone], [usize::MAX; 2]);
    let slot = 2.0 * near.copy_us_per_byte;
    let with = |cma_us_per_byte| zero_copy_from(&Costs { cma_us_per_byte, ..near.clone() })[1];
    assert_eq!(with(slot), usize::MAX);
    assert_eq!(with(near.copy_us_per_byte), reached);
    // Where nothing comes the other way, copies in and out overlap.
    let half = Costs { cma_us_per_byte: near.copy_us_per_byte / 2.0, ..near.clone() };
    assert_eq!(zero_copy_from(&half)[2], 2 * reached);
    let begun = Costs { cma_us: won, cma_us_per_byte: near.copy_us_per_byte, ..near };
    assert!(zero_copy_from(&begun)[1].abs_diff(2 * reached) <= 1);
}

/// Where a second operand costs next to nothing, as on cores that wait for the lines of others.
#[test]
fn ranks_far_apart_write_to_each_other_rather_than_read_all() {
    let far = Costs {
        alpha_us: 0.22,
        copy_us_per_byte: 2.0e-5,
        reduce_us_per_byte: 0.9e-5,
        cross_us_per_byte: 3.5e-5,
        ..costs(2)
    };
    for bytes in [64 << 10, 1 << 20, 64 << 20] {
        let question = Question { direct: true, ..question(Collective::AllReduce, 2, bytes) };
        let choice = choose(&question, &far);
        assert_eq!((choice.algorithm, choice.direct), (Algorithm::TwoShot, true), "{bytes}");
    }
}

/// What the kernel does for the wire, the cores that ranks share do for all of them.
#[test]
fn ranks_that_share_a_core_wait_for_what_the_kernel_does_for_all() {
    let topology = Topology::new(&[0, 1, 2, 3]);
    let hosts = Hosts::of(&topology);
    let sum = Question { hosts, ..question(Collective::AllReduce, 4, 1 << 20) };
    let dear = |costs: &Costs| Costs { wire_us_per_byte: 1.0, ..costs.clone() };
    let wire = |cores: usize| {
        let costs = Costs { switch_us: 0.0, wire_us_per_byte: 0.0, ..costs(cores) };
        let time = |costs: &Costs| predict(Algorithm::TwoShot, false, &sum, costs).unwrap();
        time(&dear(&costs)) - time(&costs)
    };
    let [alone, together] = [4, 1].map(wire);
    assert!((together / alone - 4.0).abs() < 0.01, "{together} beside {alone}");
    // A root's bytes cross once, whoever sends them, and a chain's.
    for algorithm in [Algorithm::OneShot, Algorithm::Chain, Algorithm::Binomial] {
        let cast = Question { hosts, ..question(Collective::Broadcast, 4, 1 << 10) };
        let free = Costs { switch_us: 0.0, wire_us_per_byte: 0.0, ..costs(1) };
        let time = |costs: &Costs| predict(algorithm, false, &cast, costs).unwrap();
        let bytes = time(&dear(&free)) - time(&free);
        assert!((bytes / 3072.0 - 1.0).abs() < 0.01, "{algorithm:?}: {bytes}");
    }
}

/// Of two hosts of four ranks on one core, what crosses and nothing else.
#[test]
fn ranks_of_a_host_cross_as_often_as_their_plan_says() {
    let hosts = Hosts::of(&Topology::new(&[0, 0, 0, 0, 1, 1, 1, 1]));
    let bytes = 64 << 10;
    let crossing = |algorithm, collective, dear: &dyn Fn(Costs) -> Costs| {
        let call = Question { hosts, ..question(collective, 8, bytes) };
        let free = Costs { switch_us: 0.0, wire_us_per_byte: 0.0, ..costs(1) };
        let time = |costs: &Costs| predict(algorithm, false, &call, costs).unwrap();
        time(&dear(free.clone())) - time(&free)
    };
    use Algorithm::*;
    use Collective::*;
    for (algorithm, collective, wanted) in [
        // Seven blocks over two links of the ring; every block to four ranks; both halves once.
        (Ring, AllGather, 14.0 / 8.0),
        (OneShot, AllGather, 32.0 / 8.0),
        (Hierarchical, AllReduce, 2.0),
        (Leaders, Broadcast, 1.0),
    ] {
        let dear = |free| Costs { wire_us_per_byte: 1.0, ..free };
        let share = crossing(algorithm, collective, &dear) / bytes as f64;
        let what = format!("{algorithm:?} {collective:?}: {share} of {wanted}");
        assert!((share / wanted - 1.0).abs() < 0.02, "{what}");
    }
    // A post and a take: from the root's host to the other; of each of four channels, both ways.
    for (algorithm, collective, wanted) in
        [(Leaders, Broadcast, 2.0), (Leaders, Reduce, 2.0), (Hierarchical, AllReduce, 16.0)]
    {
        let more = 1e6;
        let dear = |free: Costs| Costs { wire_message_us: free.wire_message_us + more, ..free };
        let messages = crossing(algorithm, collective, &dear) / more;
        assert!((messages - wanted).abs() < 0.1, "{algorithm:?} {collective:?}: {messages}");
    }
}

#[test]
fn a_message_that_goes_whole_is_one_slice() {
    let hosts = Hosts::of(&Topology::new(&[0, 1]));
    let bytes = 2 * 5 * question(Collective::AllReduce, 2, 1).slot_bytes;
    let cut = Question { hosts, ..question(Collective::AllReduce, 2, bytes) };
    let whole = Question { whole_bytes: bytes / 2, ..cut };
    let time =
        |algorithm, question: &Question| predict(algorithm, false, question, &costs(2)).unwrap();
    // Four times two messages to send and two to take.
    let spared = time(Algorithm::TwoShot, &cut) - time(Algorithm::TwoShot, &whole);
    let messages = 4.0 * 4.0 * costs(2).wire_message_us;
    assert!((spared - messages).abs() < 1e-6 * messages, "{spared} for {messages}");
    for (algorithm, longest) in [(Algorithm::OneShot, bytes / 2), (Algorithm::Ring, bytes)] {
        let question = Question { whole_bytes: longest, ..cut };
        assert_eq!(time(algorithm, &question), time(algorithm, &cut), "{algorithm:?}");
    }
    // Who passes on what comes does so slice by slice.
    let cast = |whole_bytes| Question { collective: Collective::Broadcast, whole_bytes, ..cut };
    assert_eq!(time(Algorithm::TwoShot, &cast(bytes)), time(Algorithm::TwoShot, &cast(0)));
}
