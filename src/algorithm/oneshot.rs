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
//! the serial loop over ranks, and all ranks compute the same bits.
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
    let mine = Span::one(rank);
    let whole = Span::one(0);
    Some(match collective {
        AllReduce | Barrier => {
            let mut plan = Plan::new(rank, nranks, 1);
            plan.step(whole, &peers(others(rank, nranks)), &[End::Input]);
            plan.finish(whole, &[End::Output], &everyone(rank, nranks));
            plan
        }
        Reduce => {
            let mut plan = Plan::new(rank, nranks, 1);
            if rank == root {
                plan.finish(whole, &[End::Output], &everyone(rank, nranks));
            } else {
                plan.send(whole, root, End::Input);
            }
            plan
        }
        ReduceScatter => {
            let mut plan = Plan::new(rank, nranks, nranks);
            for peer in others(rank, nranks) {
                plan.send(Span::one(peer), peer, End::Input);
            }
            plan.finish(mine, &[End::Output], &everyone(rank, nranks));
            plan
        }
        AllGather => {
            let mut plan = Plan::new(rank, nranks, nranks);
            let mut targets = vec![End::Output];
            targets.extend(peers(others(rank, nranks)));
            plan.step(mine, &targets, &[End::Input]);
            for peer in others(rank, nranks) {
                plan.recv(Span::one(peer), End::Output, peer);
            }
            plan
        }
        Broadcast => {
            let mut plan = Plan::new(rank, nranks, 1);
            if rank == root {
                let mut targets = vec![End::Output];
                targets.extend(peers(others(rank, nranks)));
                plan.step(whole, &targets, &[End::Input]);
            } else {
                plan.recv(whole, End::Output, root);
            }
            plan
        }
        Gather => {
            let mut plan = Plan::new(rank, nranks, nranks);
            if rank == root {
                plan.copy(mine, End::Output, End::Input);
                for peer in others(rank, nranks) {
                    plan.recv(Span::one(peer), End::Output, peer);
                }
            } else {
                plan.send(mine, root, End::Input);
            }
            plan
        }
        Scatter => {
            let mut plan = Plan::new(rank, nranks, nranks);
            if rank == root {
                for peer in others(rank, nranks) {
                    plan.send(Span::one(peer), peer, End::Input);
                }
                plan.copy(mine, End::Output, End::Input);
            } else {
                plan.recv(mine, End::Output, root);
            }
            plan
        }
        AllToAll => all_to_all(rank, nranks),
    })
}

/// Every block is on its way before the first one arrives, so the exchange is right in place too.
fn all_to_all(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks * nranks);
    for peer in others(rank, nranks) {
        plan.send(block(rank, peer, nranks), peer, End::Input);
    }
    plan.copy(block(rank, rank, nranks), End::Output, End::Input);
    for peer in others(rank, nranks) {
        plan.recv(block(peer, rank, nranks), End::Output, peer);
    }
    plan
}
