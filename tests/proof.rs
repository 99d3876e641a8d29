//! The exhaustive proof: every collective, algorithm, root and rank count up to 64, out of place
//! and in place, on connections of the shipped depth; and the mutants that it must reject.

#[path = "support/mutants.rs"]
mod mutants;

use mutants::mutants;
use ringcomm::algorithm::{self, Algorithm};
use ringcomm::plan::verify::{self, Fault, MAX_RANKS, Placement, Report, Violation, Wait};
use ringcomm::plan::{CROWDED_STRIDE, Collective, End, PIPELINE_DEPTH, Plan, Span};

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

/// A staged plan's order of messages does not depend on the root beyond its neighbourhood, so above
/// 16 ranks three roots stand for all.
fn some_roots(collective: Collective, nranks: usize) -> Vec<usize> {
    match roots(collective, nranks).len() {
        17.. => vec![0, nranks / 2, nranks - 1],
        few => (0..few).collect(),
    }
}

#[test]
fn every_plan_in_stages_keeps_its_order_and_cannot_deadlock() {
    let mut staged = 0;
    for collective in Collective::ALL {
        for nranks in 2..=MAX_RANKS {
            for root in some_roots(collective, nranks) {
                for algorithm in Algorithm::ALL {
                    let Some(plans) = plans(algorithm, collective, nranks, root) else { continue };
                    let name = format!("{collective:?} {algorithm}, {nranks} ranks, root {root}");
                    staged += usize::from(plans.iter().any(|plan| plan.stages() > 1));
                    for stride in 1..=CROWDED_STRIDE {
                        let plans: Vec<Plan> =
                            plans.iter().map(|plan| plan.clone().spread(stride)).collect();
                        verify::verify_pipelined(&plans, stride * PIPELINE_DEPTH)
                            .unwrap_or_else(|why| panic!("{name}, stride {stride}: {why}"));
                    }
                }
            }
        }
    }
    assert!(staged > 100, "one-shot and two-shot plans have stages");
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
