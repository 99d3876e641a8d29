//! One-shot: every rank sends what the others need straight to them, and each finishes alone.
//!
//! ```text
//!   rank 0 ──►1 ──►2 ──►3      one round: everybody sends to everybody (or to and from the
//!   rank 1 ──►0 ──►2 ──►3      root), then every rank reduces all inputs in ONE step, in rank
//!   ...                        order 0, 1, 2, ...
//! ```
//! Steps: one round of up to n-1 messages a rank. Bytes sent by a rank for a vector of S: (n-1)S
//! for AllReduce, (n-1)/n S where blocks are exchanged. The least latency there is; too many bytes
//! for large vectors.
//!
//! Invariant: a reduction is one step whose sources are all ranks in order, so the result equals
//! the serial loop over ranks, or between hosts the balanced tree over them, and all ranks compute
//! the same bits.
//!
//! Reference: the flat (linear) algorithms in R. Thakur, R. Rabenseifner, W. Gropp, "Optimization
//! of Collective Communication Operations in MPICH", 2005.

use super::{block, everyone, others, peers};
use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    rank: usize,
    nranks: usize,
    root: usize,
) -> Option<Plan> {
    Some(match collective {
        AllReduce | Barrier => all_reduce(rank, nranks),
        ReduceScatter => reduce_scatter(rank, nranks),
        AllGather => all_gather(rank, nranks),
        AllToAll => all_to_all(rank, nranks),
        Broadcast | Reduce => vector(collective, rank, nranks, root),
        Gather | Scatter => blocks(collective, rank, nranks, root),
    })
}

fn all_reduce(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, 1);
    plan.step(Span::one(0), &peers(others(rank, nranks)), &[End::Input]);
    plan.next_stage();
    plan.finish(Span::one(0), &[End::Output], &everyone(rank, nranks));
    plan
}

fn reduce_scatter(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    for peer in others(rank, nranks) {
        plan.send(Span::one(peer), peer, End::Input);
    }
    plan.next_stage();
    plan.finish(Span::one(rank), &[End::Output], &everyone(rank, nranks));
    plan
}

fn all_gather(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    plan.step(Span::one(rank), &kept_and_told(rank, nranks), &[End::Input]);
    plan.next_stage();
    for peer in others(rank, nranks) {
        plan.recv(Span::one(peer), End::Output, peer);
    }
    plan
}

/// The own output and everybody else.
fn kept_and_told(rank: usize, nranks: usize) -> Vec<End> {
    let mut targets = vec![End::Output];
    targets.extend(peers(others(rank, nranks)));
    targets
}

fn vector(collective: Collective, rank: usize, nranks: usize, root: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, 1);
    let whole = Span::one(0);
    match (collective, rank == root) {
        (Reduce, true) => plan.finish(whole, &[End::Output], &everyone(rank, nranks)),
        (Reduce, false) => plan.send(whole, root, End::Input),
        (_, true) => {
            plan.step(whole, &kept_and_told(rank, nranks), &[End::Input]);
        }
        (_, false) => plan.recv(whole, End::Output, root),
    }
    plan
}

fn blocks(collective: Collective, rank: usize, nranks: usize, root: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    let mine = Span::one(rank);
    match (collective, rank == root) {
        (Gather, false) => plan.send(mine, root, End::Input),
        (_, false) => plan.recv(mine, End::Output, root),
        (Gather, true) => {
            plan.copy(mine, End::Output, End::Input);
            for peer in others(rank, nranks) {
                plan.recv(Span::one(peer), End::Output, peer);
            }
        }
        (_, true) => {
            for peer in others(rank, nranks) {
                plan.send(Span::one(peer), peer, End::Input);
            }
            plan.copy(mine, End::Output, End::Input);
        }
    }
    plan
}

/// Every block is on its way before the first one arrives, so the exchange is right in place too.
fn all_to_all(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks * nranks);
    for peer in others(rank, nranks) {
        plan.send(block(rank, peer, nranks), peer, End::Input);
    }
    plan.copy(block(rank, rank, nranks), End::Output, End::Input);
    plan.next_stage();
    for peer in others(rank, nranks) {
        plan.recv(block(peer, rank, nranks), End::Output, peer);
    }
    plan
}
