//! The clock on plans whose time can be said in one line.

use super::*;
use crate::plan::{End, Span};

const MACHINE: Machine = Machine {
    alpha_us: 5.0,
    message_us: 0.5,
    send_us_per_byte: 0.001,
    copy_us_per_byte: 0.0001,
    reduce_us_per_byte: 0.0002,
    depth: 2,
    slot_bytes: 1 << 20,
};

fn line(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, 1);
    let whole = Span::one(0);
    match rank {
        0 => plan.send(whole, 1, End::Input),
        _ if rank + 1 < nranks => plan.recv_copy_send(whole, End::Output, rank - 1, rank + 1),
        _ => plan.recv(whole, End::Output, rank - 1),
    }
    plan
}

#[test]
fn a_line_costs_its_hops() {
    let outcome = simulate(Collective::Broadcast, 4, 1000, &MACHINE, |rank| line(rank, 4)).unwrap();
    // Three hops of post, 1000 bytes, alpha, take and copy.
    let hop = 0.5 + 1.0 + 5.0 + 0.5 + 0.1;
    assert!((outcome.time_us - 3.0 * hop).abs() < 1e-9, "{outcome:?}");
    assert_eq!((outcome.messages, outcome.bytes, outcome.slices), (3, 3000, 1));
    assert!(!outcome.symmetric);
}

#[test]
fn slices_stream_along_a_line() {
    let machine = Machine { slot_bytes: 1000, ..MACHINE };
    let time = |bytes| {
        simulate(Collective::Broadcast, 4, bytes, &machine, |rank| line(rank, 4)).unwrap().time_us
    };
    // A middle rank's own time for one slice, and the two slots that cover alpha there and back.
    let busy = 0.5 + 0.5 + 1.0 + 0.1;
    let pace = (time(200_000) - time(100_000)) / 100.0;
    assert!(pace >= busy && pace < 2.0 * (busy + 5.0) / 2.0 + busy, "pace {pace}");
    // The extrapolated pace is the real one (slices go in pairs, as there are two slots).
    let real = time(16_000) - time(14_000);
    let extrapolated = time(18_000) - time(16_000);
    assert!((real - extrapolated).abs() < 1e-6, "{real} {extrapolated}");
}

#[test]
fn plans_that_wait_for_each_other_are_an_error() {
    let stuck = |rank| {
        let mut plan = Plan::new(rank, 2, 1);
        plan.recv(Span::one(0), End::Output, 1 - rank);
        plan
    };
    let refused = simulate(Collective::Broadcast, 2, 8, &MACHINE, stuck).unwrap_err();
    assert_eq!(refused, SimulationError::Deadlock { rank: 0, depth: 2 });
    assert!(refused.to_string().contains("deadlock at rank 0"));
}

/// Every rank sends to all others, and the first one more than they do.
fn all_to_all_and_more(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    let others = (1..nranks).map(|step| (rank + step) % nranks);
    for peer in others.clone() {
        plan.send(Span::one(peer), peer, End::Input);
    }
    if rank == 0 {
        plan.copy(Span::one(rank), End::Output, End::Input);
    }
    for peer in others {
        plan.recv(Span::one(peer), End::Output, peer);
    }
    plan
}

#[test]
fn what_is_too_large_is_refused_before_all_of_it_is_made() {
    let (nranks, made) = (10_000, std::cell::Cell::new(0));
    let plan = |rank| {
        made.set(made.get() + 1);
        all_to_all_and_more(rank, nranks)
    };
    let refused = simulate(Collective::AllGather, nranks, 1 << 20, &MACHINE, plan).unwrap_err();
    assert!(
        matches!(refused, SimulationError::TooLarge { steps } if steps > MAX_STEPS),
        "{refused}"
    );
    assert!(made.get() < 20, "{} plans", made.get());
}
