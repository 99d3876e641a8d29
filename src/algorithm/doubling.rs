//! Recursive doubling: the group of ranks that agree doubles in every round.
//!
//! ```text
//!   AllReduce, n = 6: two ranks more than 4, so ranks 0-3 work in pairs and 1 and 3 rest
//!
//!      fold    exchange (1)   exchange (2)    unfold
//!     0 ◄─ 1     0 ◄─► 2        0 ◄─► 4       0 ─► 1
//!     2 ◄─ 3     4 ◄─► 5        2 ◄─► 5       2 ─► 3
//! ```
//! AllReduce: log2 n rounds of the whole vector (floor(log2 n) + 2 where n is no power of two), S
//! bytes sent by a rank in each: the latency of a tree without coming back down. AllGather:
//! ceil(log2 n) rounds for any n, (n-1)/n S bytes in all, by [`super::halving::all_gather`].
//!
//! Invariant: after round i, every working rank of an aligned group of 2^i pairs holds the group's
//! sum. Both partners reduce (lower group, higher group), in that order, so all ranks form the same
//! expression over ranks 0..n and the same bits.
//!
//! Reference: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
//! Operations in MPICH", 2005 (recursive doubling, and its fold for other rank counts).

use super::halving;
use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    rank: usize,
    nranks: usize,
    _root: usize,
) -> Option<Plan> {
    match collective {
        AllReduce | Barrier => Some(all_reduce(rank, nranks)),
        AllGather => {
            let mut plan = Plan::new(rank, nranks, nranks);
            plan.copy(Span::one(rank), End::Output, End::Input);
            halving::all_gather(&mut plan);
            Some(plan)
        }
        _ => None,
    }
}

fn all_reduce(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, 1);
    let whole = Span::one(0);
    let rounds = nranks.ilog2();
    let pairs = nranks - (1 << rounds);
    if rank < 2 * pairs && rank % 2 == 1 {
        plan.send(whole, rank - 1, End::Input);
        plan.recv(whole, End::Output, rank - 1);
        return plan;
    }
    // Working ranks are numbered 0..2^rounds; number w < pairs stands for ranks 2w and 2w+1.
    let folded = rank < 2 * pairs;
    let number = if folded { rank / 2 } else { rank - pairs };
    let partner = |round: u32| {
        let other = number ^ (1 << round);
        if other < pairs { 2 * other } else { other + pairs }
    };
    if folded {
        let sources = [End::Input, End::Peer(rank + 1)];
        plan.step(whole, &[End::Output, End::Peer(partner(0))], &sources);
    } else {
        plan.send(whole, partner(0), End::Input);
    }
    for round in 0..rounds {
        let mine = if round == 0 && !folded { End::Input } else { End::Output };
        let theirs = End::Peer(partner(round));
        let sources = if number & (1 << round) == 0 { [mine, theirs] } else { [theirs, mine] };
        let last = round + 1 == rounds;
        let mut targets = vec![End::Output];
        if !last {
            targets.push(End::Peer(partner(round + 1)));
        } else if folded {
            targets.push(End::Peer(rank + 1));
        }
        plan.step(whole, &targets, &sources).finish = last;
    }
    plan
}
