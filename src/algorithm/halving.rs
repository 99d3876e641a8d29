//! Recursive halving on a circle: what a rank still has to reduce halves in every round.
//!
//! ```text
//!   scatter-reduce, n = 5, seen from rank r: it answers for chunks r, r+1, ... (mod n)
//!
//!     holds 5   r  r+1  r+2 │ r+3  r+4     sends the upper 2 to rank r+3, gets r, r+1 from r-3
//!     holds 3   r  r+1 │ r+2               sends 1 to rank r+2, gets r from r-2
//!     holds 2   r │ r+1                    sends 1 to rank r+1, gets r from r-1
//!     holds 1   r                          complete
//! ```
//! The all-gather is the same picture read upwards, arrows turned round. Steps: ceil(log2 n) rounds
//! for ReduceScatter, twice that for AllReduce, for any n. Bytes sent by a rank for a vector of S:
//! (n-1)/n S and 2 (n-1)/n S, the least possible. A span that runs over chunk n-1 is two messages.
//!
//! Invariant: ranks that hold the same number of chunks have between them every contribution to
//! each chunk exactly once; a round moves contributions to chunk c only to ranks that still answer
//! for c. Chunk c is completed on rank c alone and copied from there.
//!
//! Reference: J. L. Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", 2024
//! (the circulant scheme); R. Rabenseifner, 2004, for powers of two.

use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    rank: usize,
    nranks: usize,
    _root: usize,
) -> Option<Plan> {
    let mut plan = Plan::new(rank, nranks, nranks);
    match collective {
        AllReduce => {
            scatter_reduce(&mut plan, End::Output);
            all_gather(&mut plan);
        }
        ReduceScatter => scatter_reduce(&mut plan, End::Scratch),
        _ => return None,
    }
    Some(plan)
}

/// How many chunks a rank holds before each round, downwards: n, n/2, ..., 2 (rounded up).
fn holdings(nranks: usize) -> Vec<usize> {
    let halve = |&held: &usize| (held > 2).then(|| held.div_ceil(2));
    std::iter::successors(Some(nranks), halve).collect()
}

/// Chunks `first..first + len` of the circle as at most two spans.
pub(super) fn arc(first: usize, len: usize, nranks: usize) -> Vec<Span> {
    let first = first % nranks;
    let straight = len.min(nranks - first);
    let spans = [Span::new(first, straight), Span::new(0, len - straight)];
    spans.into_iter().filter(|span| span.len > 0).collect()
}

/// Leaves the complete chunk of this rank in Output; partial sums gather in `partial`.
fn scatter_reduce(plan: &mut Plan, partial: End) {
    let (rank, nranks) = (plan.rank, plan.nranks);
    let mut mine = End::Input;
    for held in holdings(nranks) {
        let kept = held.div_ceil(2);
        let given = held - kept;
        let (to, from) = ((rank + kept) % nranks, (rank + nranks - kept) % nranks);
        for span in arc(rank + kept, given, nranks) {
            plan.send(span, to, mine);
        }
        for span in arc(rank, given, nranks) {
            if kept == 1 {
                plan.finish(span, &[End::Output], &[End::Peer(from), mine]);
            } else {
                plan.step(span, &[partial], &[End::Peer(from), mine]);
            }
        }
        if mine == End::Input && kept > given && kept > 1 {
            // The odd chunk in the middle gets nothing in this round; it joins the partial sums.
            plan.copy(Span::one((rank + given) % nranks), partial, End::Input);
        }
        mine = partial;
    }
}

/// From the complete chunk of each rank in its own Output to all chunks in every Output.
pub(super) fn all_gather(plan: &mut Plan) {
    let (rank, nranks) = (plan.rank, plan.nranks);
    for held in holdings(nranks).into_iter().rev() {
        let kept = held.div_ceil(2);
        let given = held - kept;
        let (to, from) = ((rank + nranks - kept) % nranks, (rank + kept) % nranks);
        for span in arc(rank, given, nranks) {
            plan.send(span, to, End::Output);
        }
        for span in arc(rank + kept, given, nranks) {
            plan.recv(span, End::Output, from);
        }
    }
}
