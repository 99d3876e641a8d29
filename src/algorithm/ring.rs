//! The ring: chunks travel around a circle of ranks, gathering one contribution at every stop.
//!
//! ```text
//!        ┌────► 0 ────► 1 ────► 2 ────► 3 ────┐     every rank hears its left
//!        └────────────────────────────────────┘     neighbour, talks to its right
//!
//!   scatter-reduce, n = 4: which chunk each rank passes on, with how many contributions
//!             rank 0   rank 1   rank 2   rank 3
//!   step 0     3:1      0:1      1:1      2:1       own input
//!   step 1     2:2      3:2      0:2      1:2       received + own
//!   step 2     1:3      2:3      3:3      0:3
//!   step 3     0:4      1:4      2:4      3:4       complete: kept, and the first hop of the
//!                                                   all-gather, which goes round once more
//! ```
//! Steps: 2(n-1) for AllReduce, n-1 for ReduceScatter and AllGather. Bytes sent by a rank for a
//! vector of S: 2 (n-1)/n S and (n-1)/n S, the least possible; only neighbours talk, so every link
//! carries the same load.
//!
//! Invariant: after step i, the chunk that left rank r is r-1-i (mod n) and holds i+1
//! contributions, those of ranks r-i..=r. It is complete at step n-1, on the rank of its own
//! number, and copied from there.
//!
//! Receiving and passing on are one step, so a rank posts its next message before its last one is
//! taken: connections need at least two slots. With one, the circle of full slots never moves.
//!
//! Reference: P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
//! Workstations", 2009.

use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    rank: usize,
    nranks: usize,
    _root: usize,
) -> Option<Plan> {
    let mut plan = Plan::new(rank, nranks, nranks);
    let ring = Ring { rank, nranks };
    match collective {
        AllReduce => {
            ring.scatter_reduce(&mut plan);
            let (left, right) = (ring.left(), ring.right());
            plan.recv_reduce_copy_send(ring.chunk(0), End::Output, left, right);
            ring.all_gather(&mut plan);
        }
        ReduceScatter => {
            ring.scatter_reduce(&mut plan);
            plan.recv_reduce_copy(ring.chunk(0), End::Output, ring.left());
        }
        AllGather => {
            let targets = [End::Output, End::Peer(ring.right())];
            plan.step(ring.chunk(0), &targets, &[End::Input]);
            ring.all_gather(&mut plan);
        }
        _ => return None,
    }
    Some(plan)
}

/// A rank's place on the circle.
struct Ring {
    rank: usize,
    nranks: usize,
}

impl Ring {
    fn left(&self) -> usize {
        (self.rank + self.nranks - 1) % self.nranks
    }

    fn right(&self) -> usize {
        (self.rank + 1) % self.nranks
    }

    /// The chunk `back` places behind this rank's own, for `back` up to n.
    fn chunk(&self, back: usize) -> Span {
        Span::one((self.rank + self.nranks - back) % self.nranks)
    }

    /// All but the last step: what arrives there is complete, and the caller says where it goes.
    fn scatter_reduce(&self, plan: &mut Plan) {
        plan.send(self.chunk(1), self.right(), End::Input);
        for back in 2..self.nranks {
            plan.recv_reduce_send(self.chunk(back), self.left(), self.right());
        }
    }

    /// Everything after the first hop of a rank's own complete chunk.
    fn all_gather(&self, plan: &mut Plan) {
        for back in 1..self.nranks - 1 {
            plan.recv_copy_send(self.chunk(back), End::Output, self.left(), self.right());
        }
        plan.recv(self.chunk(self.nranks - 1), End::Output, self.left());
    }
}
