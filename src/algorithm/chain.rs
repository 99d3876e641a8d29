//! The chain: a line of ranks through which slices stream one behind the other.
//!
//! ```text
//!   Broadcast   root ──► root+1 ──► root+2 ──► ... ──► root-1
//!   Reduce      root+1 ──► root+2 ──► ... ──► root        each adds its input in passing
//!   AllReduce   0 ──► 1 ──► ... ──► n-1, complete, then n-1 ──► ... ──► 1 ──► 0
//! ```
//! Steps: n-1 hops for one slice (2(n-1) for AllReduce), but Broadcast and Reduce keep all links
//! busy at once when there are many slices. Bytes sent by a rank: S, whatever the number of ranks,
//! which no tree achieves for a single vector.
//!
//! Invariant: what leaves the i-th rank of the line holds the contributions of the first i, in line
//! order; it is complete on the last rank and copied from there. No rank waits for one behind it
//! in the same direction, so a slice never waits for its successor.
//!
//! Reference: the pipelined linear array of P. Sanders, J. F. Sibeyn, "A Bandwidth Latency Tradeoff
//! for Broadcast and Reduction", 2003.

use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    rank: usize,
    nranks: usize,
    root: usize,
) -> Option<Plan> {
    let mut plan = Plan::new(rank, nranks, 1);
    let whole = Span::one(0);
    let (left, right) = ((rank + nranks - 1) % nranks, (rank + 1) % nranks);
    match collective {
        Broadcast if rank == root => {
            plan.step(whole, &[End::Output, End::Peer(right)], &[End::Input]);
        }
        Broadcast if right == root => plan.recv(whole, End::Output, left),
        Broadcast => plan.recv_copy_send(whole, End::Output, left, right),
        Reduce if rank == root => plan.recv_reduce_copy(whole, End::Output, left),
        Reduce if left == root => plan.send(whole, right, End::Input),
        Reduce => plan.recv_reduce_send(whole, left, right),
        AllReduce if rank == nranks - 1 => {
            plan.recv_reduce_copy_send(whole, End::Output, left, left);
        }
        AllReduce if rank == 0 => {
            plan.send(whole, right, End::Input);
            plan.recv(whole, End::Output, right);
        }
        AllReduce => {
            plan.recv_reduce_send(whole, left, right);
            plan.recv_copy_send(whole, End::Output, right, left);
        }
        _ => return None,
    }
    Some(plan)
}
