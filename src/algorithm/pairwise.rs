//! Pairwise exchange: in every round the ranks pair off, or shift by one more place.
//!
//! ```text
//!   AllToAll, n = 4: the partner of rank r in round i is i - r (mod n), as in a chess tournament
//!             rank 0   rank 1   rank 2   rank 3
//!   round 0   (self)     3      (self)     1
//!   round 1      1       0         3       2
//!   round 2      2     (self)      0     (self)
//!   round 3      3       2         1       0
//!
//!   ReduceScatter, AllGather: in round i rank r sends to r+i and hears from r-i
//! ```
//! Steps: n rounds for AllToAll, of which one is spent with oneself; n-1 for the others. Bytes sent
//! by a rank for a vector of S: (n-1)/n S, the least possible. One partner at a time: no rank is
//! ever flooded by all the others, as it is by the one-shot exchange.
//!
//! Invariant: i - (i - r) = r, so partners agree on each other, every pair meets in exactly one
//! round, and there each sends the block that the received one will overwrite when in place. In the
//! reduction, after round i chunk r holds the contributions of ranks r-i..=r, on rank r alone.
//!
//! Reference: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
//! Operations in MPICH", 2005 (long-message all-to-all and reduce-scatter).

use super::block;
use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    rank: usize,
    nranks: usize,
    _root: usize,
) -> Option<Plan> {
    match collective {
        AllToAll => Some(all_to_all(rank, nranks)),
        ReduceScatter => Some(reduce_scatter(rank, nranks)),
        AllGather => Some(all_gather(rank, nranks)),
        _ => None,
    }
}

fn all_to_all(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks * nranks);
    for round in 0..nranks {
        let partner = (round + nranks - rank) % nranks;
        if partner == rank {
            plan.copy(block(rank, rank, nranks), End::Output, End::Input);
        } else {
            plan.send(block(rank, partner, nranks), partner, End::Input);
            plan.recv(block(partner, rank, nranks), End::Output, partner);
        }
    }
    plan
}

fn reduce_scatter(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    for round in 1..nranks {
        let (to, from) = ((rank + round) % nranks, (rank + nranks - round) % nranks);
        plan.send(Span::one(to), to, End::Input);
        let so_far = if round == 1 { End::Input } else { End::Output };
        let step = plan.step(Span::one(rank), &[End::Output], &[End::Peer(from), so_far]);
        step.finish = round == nranks - 1;
    }
    plan
}

fn all_gather(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, nranks);
    plan.copy(Span::one(rank), End::Output, End::Input);
    for round in 1..nranks {
        let (to, from) = ((rank + round) % nranks, (rank + nranks - round) % nranks);
        plan.send(Span::one(rank), to, End::Input);
        plan.recv(Span::one(from), End::Output, from);
    }
    plan
}
