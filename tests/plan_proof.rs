//! The exhaustive proof: every collective, algorithm, root and rank count up to 64, out of place
//! and in place, on connections of the shipped depth; and the mutants that it must reject.

#[path = "support/mutants.rs"]
mod mutants;

use mutants::{Mutant, mutants};
use ringcomm::algorithm::{self, Algorithm};
use ringcomm::plan::verify::{self, Fault, MAX_RANKS, Placement, Report, Violation, Wait};
use ringcomm::plan::{
    CROWDED_STRIDE, Collective, End, PIPELINE_DEPTH, Plan, Span, Step, WIRE_STRIDE,
};

/// Slots of a connection as shipped, the least that the ring works with.
const DEPTH: usize = 2;

fn plans(
    algorithm: Algorithm,
    collective: Collective,
    nranks: usize,
    root: usize,
) -> Option<Vec<Plan>> {
    (0..nranks).map(|rank| algorithm::plan(algorithm, collective, rank, nranks, root)).collect()
}

/// Every root where there is one, else 0 alone.
fn roots(collective: Collective, nranks: usize) -> std::ops::Range<usize> {
    0..if collective.has_root() { nranks } else { 1 }
}

/// Proves one algorithm at one rank count; how many proofs that were.
fn prove(collective: Collective, algorithm: Algorithm, nranks: usize) -> usize {
    let mut proofs = 0;
    for root in roots(collective, nranks) {
        let Some(plans) = plans(algorithm, collective, nranks, root) else { continue };
        for placement in Placement::ALL {
            let report = verify::verify(collective, &plans, root, DEPTH, placement);
            let name = format!("{collective:?} {algorithm}, {nranks} ranks, root {root}");
            let report = report.unwrap_or_else(|why| panic!("{name}, {placement:?}: {why}"));
            if collective.reduces() && algorithm::serial_order(algorithm, collective) {
                assert!(report.serial, "{name}: not the serial loop");
            }
            proofs += 1;
        }
    }
    proofs
}

fn prove_all(collective: Collective) {
    for nranks in 1..=MAX_RANKS {
        let prove = |algorithm| prove(collective, algorithm, nranks);
        let proofs: usize = Algorithm::ALL.into_iter().map(prove).sum();
        assert!(proofs > 0, "{collective:?} has no algorithm for {nranks} ranks");
    }
}

#[test]
fn every_plan_that_reduces_is_right_and_cannot_deadlock() {
    Collective::ALL.into_iter().filter(|c| c.reduces()).for_each(prove_all);
}

#[test]
fn every_plan_that_copies_is_right_and_cannot_deadlock() {
    Collective::ALL.into_iter().filter(|c| !c.reduces()).for_each(prove_all);
}

/// What runs is the order in stages, at every distance of them. In halves, so that two cores share
/// the work, most of which is that of many ranks with many roots.
#[test]
fn every_plan_in_stages_keeps_its_order_and_cannot_deadlock_for_even_ranks() {
    prove_stages_of((2..=MAX_RANKS).step_by(2));
}

#[test]
fn every_plan_in_stages_keeps_its_order_and_cannot_deadlock_for_odd_ranks() {
    prove_stages_of((3..=MAX_RANKS).step_by(2));
}

fn prove_stages_of(counts: impl Iterator<Item = usize> + Clone) {
    let mut with_roots = 0;
    for collective in Collective::ALL {
        for nranks in counts.clone() {
            let is_one = |root: &usize| [0, nranks / 2, nranks - 1].contains(root);
            for root in roots(collective, nranks) {
                for algorithm in Algorithm::ALL {
                    let Some(plans) = plans(algorithm, collective, nranks, root) else { continue };
                    let has_stages = plans.iter().any(|plan| plan.stages() > 1);
                    // Without stages every root is proved above, in the order in which it runs.
                    if has_stages || nranks <= 16 || is_one(&root) {
                        let name = format!("{collective:?} {algorithm}, {nranks}, root {root}");
                        prove_in_stages(&name, &plans);
                    }
                    with_roots += usize::from(has_stages && collective.has_root());
                }
            }
        }
    }
    // A two-shot broadcast and a reduction at least.
    let roots: usize = counts.sum();
    assert!(with_roots >= 2 * roots, "only {with_roots} plans with a root have stages");
}

fn prove_in_stages(name: &str, plans: &[Plan]) {
    let has_stages = plans.iter().any(|plan| plan.stages() > 1);
    for stride in 1..=if has_stages { CROWDED_STRIDE.max(WIRE_STRIDE) } else { 1 } {
        let spread: Vec<Plan> = plans.iter().map(|plan| plan.clone().spread(stride)).collect();
        verify::verify_pipelined(&spread, stride * PIPELINE_DEPTH)
            .unwrap_or_else(|why| panic!("{name}, stride {stride}: {why}"));
    }
}

/// The messages of one rank with another in the order of its steps, as slices and spans: those that
/// it sends, or those that it takes.
fn order(plan: &Plan, peer: usize, ends: fn(&Step) -> &[End]) -> Vec<(usize, Span)> {
    // More than there are stages, so that every step meets every other.
    const SLICES: usize = 8;
    let mut places = Vec::new();
    for slice in 0..SLICES {
        for (at, step) in plan.steps.iter().enumerate() {
            let count = ends(step).iter().filter(|end| **end == End::Peer(peer)).count();
            places.extend(vec![(slice + step.stage, at, slice, step.span); count]);
        }
    }
    places.sort_by_key(|(tick, at, ..)| (*tick, *at));
    places.into_iter().map(|(_, _, slice, span)| (slice, span)).collect()
}

/// Whether all ranks take what comes in the order in which it was sent.
fn ends_agree(plans: &[Plan]) -> bool {
    let pairs = plans.iter().flat_map(|from| plans.iter().map(move |to| (from, to)));
    pairs.into_iter().all(|(from, to)| {
        order(from, to.rank, |step| &step.targets) == order(to, from.rank, |step| &step.sources)
    })
}

/// Mutants of the order in which plans with stages run: each changes the stages of one rank.
fn stage_mutants(plans: &[Plan]) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (rank, plan) in plans.iter().enumerate() {
        let stages = plan.stages();
        let mut change = |what: String, edit: &dyn Fn(&mut Plan)| {
            let mut changed = plans.to_vec();
            edit(&mut changed[rank]);
            mutants.push((format!("{what} at rank {rank}"), changed));
        };
        for at in 0..plan.steps.len() {
            change(format!("step {at} a stage later"), &|plan| plan.steps[at].stage += 1);
            if plan.steps[at].stage > 0 {
                change(format!("step {at} a stage earlier"), &|plan| plan.steps[at].stage -= 1);
            }
        }
        for stage in 1..stages {
            change(format!("stage {stage} begins with the one before"), &|plan| {
                let later = plan.steps.iter_mut().filter(|step| step.stage >= stage);
                later.for_each(|step| step.stage -= 1);
            });
        }
    }
    mutants
}

/// A stage more or less on one rank shows where a connection carries messages of two stages, and
/// there it must be seen. Where a connection has one message a slice, it means the same.
#[test]
fn every_mutant_of_the_stages_that_changes_an_order_is_rejected() {
    let (mut rejected, mut same) = (0, 0);
    for collective in Collective::ALL {
        for algorithm in Algorithm::ALL {
            for nranks in [2, 3, 4, 5, 8] {
                let root = if collective.has_root() { nranks / 2 } else { 0 };
                let Some(plans) = plans(algorithm, collective, nranks, root) else { continue };
                if plans.iter().all(|plan| plan.stages() == 1) {
                    continue;
                }
                assert!(ends_agree(&plans), "{collective:?} {algorithm}");
                for (what, mutant) in stage_mutants(&plans) {
                    let verdict = verify::verify_pipelined(&mutant, PIPELINE_DEPTH);
                    match ends_agree(&mutant) {
                        true => same += 1,
                        false => {
                            let name = format!("{collective:?} {algorithm} {nranks} ranks");
                            assert!(verdict.is_err(), "{name}, root {root}: {what}");
                            rejected += 1;
                        }
                    }
                }
            }
        }
    }
    println!("{rejected} mutants change an order, {same} do not");
    assert!(rejected > 100, "only {rejected} mutants change an order");
}

#[test]
fn a_message_that_nobody_takes_in_stages_is_seen() {
    let mut plans = plans(Algorithm::OneShot, Collective::AllReduce, 3, 0).expect("one-shot does");
    for step in &mut plans[1].steps {
        step.sources.retain(|source| *source != End::Peer(0));
    }
    let violation = verify::verify_pipelined(&plans, PIPELINE_DEPTH).unwrap_err();
    let waits_for = Wait::Slot { to: 1 };
    assert_eq!((violation.rank, violation.fault), (0, Fault::Deadlock { waits_for }));
}

#[test]
fn the_ring_deadlocks_on_connections_of_one_slot() {
    for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
        for nranks in 3..=MAX_RANKS {
            let plans = plans(Algorithm::Ring, collective, nranks, 0).expect("the ring does it");
            let violation =
                verify::verify(collective, &plans, 0, 1, Placement::OutOfPlace).unwrap_err();
            let deadlock = matches!(
                violation.fault,
                Fault::Deadlock { waits_for: Wait::Slot { to } }
                    if to == (violation.rank + 1) % nranks
            );
            assert!(deadlock, "{collective:?} {nranks}: {violation}");
        }
    }
}

#[test]
fn an_exchange_by_shifts_is_right_out_of_place_only() {
    // The textbook's pairwise exchange, where in round i rank r sends to r+i and hears from r-i:
    // in place, what arrives lies on a block that is sent only n-2i rounds later.
    let nranks = 5;
    let block = |from: usize, to: usize| Span::one(from * nranks + to);
    let shifts = |rank| {
        let mut plan = Plan::new(rank, nranks, nranks * nranks);
        plan.copy(block(rank, rank), End::Output, End::Input);
        for round in 1..nranks {
            let (to, from) = ((rank + round) % nranks, (rank + nranks - round) % nranks);
            plan.send(block(rank, to), to, End::Input);
            plan.recv(block(from, rank), End::Output, from);
        }
        plan
    };
    let plans: Vec<Plan> = (0..nranks).map(shifts).collect();
    let judge = |placement| verify::verify(Collective::AllToAll, &plans, 0, DEPTH, placement);
    assert!(judge(Placement::OutOfPlace).is_ok());
    let violation = judge(Placement::InPlace).unwrap_err();
    assert!(matches!(violation.fault, Fault::InputGone { .. }), "{violation}");
}

/// The verdict on a mutant over both placements: the first violation, if any.
fn judge(collective: Collective, plans: &[Plan], root: usize) -> Result<Report, Violation> {
    let mut report = verify::verify(collective, plans, root, DEPTH, Placement::OutOfPlace)?;
    let in_place = verify::verify(collective, plans, root, DEPTH, Placement::InPlace)?;
    report.serial &= in_place.serial;
    Ok(report)
}

#[test]
fn every_mutant_is_rejected() {
    let mut rejected = 0;
    let mut survivors = Vec::new();
    for collective in Collective::ALL {
        for algorithm in Algorithm::ALL {
            for nranks in [1, 2, 3, 4, 5, 8] {
                let root = if collective.has_root() { nranks / 2 } else { 0 };
                let Some(plans) = plans(algorithm, collective, nranks, root) else { continue };
                let serial = collective.reduces() && algorithm::serial_order(algorithm, collective);
                for (what, mutant) in mutants(&plans, serial) {
                    match judge(collective, &mutant, root) {
                        Err(_) => rejected += 1,
                        Ok(report) if serial && !report.serial => rejected += 1,
                        Ok(_) => survivors.push(format!(
                            "{collective:?} {algorithm} {nranks} ranks root {root}: {what}"
                        )),
                    }
                }
            }
        }
    }
    assert!(survivors.is_empty(), "{} of {rejected}: {survivors:#?}", survivors.len());
    // The mutations really were made: the smallest plans alone have dozens.
    assert!(rejected > 1000, "only {rejected} mutants");
}
