//! Two-shot: each rank finishes its own n-th of the vector, then everybody collects the parts.
//!
//! ```text
//!   first shot                     second shot
//!   chunk p ──► rank p             rank p ──► all: its finished chunk
//!   rank p: reduce all n parts     (Reduce: to the root alone; Broadcast: the first shot is
//!   of chunk p, in rank order      the root dealing its chunks out)
//! ```
//! Steps: two rounds of up to n-1 messages a rank. Bytes sent by a rank for a vector of S:
//! 2 (n-1)/n S for AllReduce, the least possible, at n-1 times the messages of a tree. The best
//! choice for large vectors where all ranks reach each other equally well, as on one machine.
//!
//! Invariant: chunk p is completed on rank p alone, in one step whose sources are all ranks in
//! order, and copied from there: equal to the serial loop, or between hosts to the balanced tree,
//! the same bits everywhere.
//!
//! Reference: the scatter-reduce and all-gather decomposition of R. Rabenseifner, "Optimization of
//! Collective Reduction Operations", 2004, with direct exchanges in both halves.

use super::{everyone, others, peers};
use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    rank: usize,
    nranks: usize,
    root: usize,
) -> Option<Plan> {
    match collective {
        AllReduce => Some(all_reduce(rank, nranks)),
        Reduce => Some(reduce(rank, nranks, root)),
        Broadcast => Some(broadcast(rank, nranks, root)),
        _ => None,
    }
}

fn all_reduce(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    for peer in others(rank, nranks) {
        plan.send(Span::one(peer), peer, End::Input);
    }
    plan.next_stage();
    let mut targets = vec![End::Output];
    targets.extend(peers(others(rank, nranks)));
    plan.finish(Span::one(rank), &targets, &everyone(rank, nranks));
    plan.next_stage();
    for peer in others(rank, nranks) {
        plan.recv(Span::one(peer), End::Output, peer);
    }
    plan
}

fn reduce(rank: usize, nranks: usize, root: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    for peer in others(rank, nranks) {
        plan.send(Span::one(peer), peer, End::Input);
    }
    plan.next_stage();
    let target = if rank == root { End::Output } else { End::Peer(root) };
    plan.finish(Span::one(rank), &[target], &everyone(rank, nranks));
    plan.next_stage();
    if rank == root {
        for peer in others(rank, nranks) {
            plan.recv(Span::one(peer), End::Output, peer);
        }
    }
    plan
}

fn broadcast(rank: usize, nranks: usize, root: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    let mine = Span::one(rank);
    let mut targets = vec![End::Output];
    targets.extend(peers(others(rank, nranks).filter(|&peer| peer != root)));
    if rank == root {
        for peer in others(rank, nranks) {
            plan.step(Span::one(peer), &[End::Output, End::Peer(peer)], &[End::Input]);
        }
        plan.next_stage();
        plan.step(mine, &targets, &[End::Input]);
    } else {
        plan.next_stage();
        plan.step(mine, &targets, &[End::Peer(root)]);
        plan.next_stage();
        for peer in others(rank, nranks) {
            plan.recv(Span::one(peer), End::Output, peer);
        }
    }
    plan
}
