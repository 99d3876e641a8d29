//! Recursive halving: what a member still has to reduce halves in every round.
//!
//! ```text
//!   scatter-reduce, n = 5: a member's share of the vector abcde after each round
//!
//!     round 1    0: ab     1: cde                3: ab    4: cde     (0 + 1)         (3 + 4)
//!     round 2    0: a      1: de     2: bc                           (0 + 1) + 2
//!     round 3    0: a      1: e      2: c        3: b     4: d       of all
//! ```
//! A round is a node of the [balanced tree](super::balanced): each half gives the other its part of
//! the shares that are completed there. AllReduce then goes back down the same way. Steps:
//! ceil(log2 n) rounds for ReduceScatter and a hop, twice that for AllReduce, for any n; a message
//! in a round, or two where halves differ. Bytes sent by a rank for a vector of S: about (n-1)/n S
//! and 2 (n-1)/n S, the least possible. Between hosts the members are hosts, in as many lanes as
//! they have ranks. A vector has [`chunks`] in a lane: some more than members where these are few,
//! so that shares of uneven halves are alike, and at most [`MOST_SHARES`]: of more members, most
//! hold nothing in the last rounds.
//!
//! Invariant: at every node the shares of its two halves each cover the vector, and a member's
//! share lies within the one that it had; so each chunk is formed (left, right) at every node, on
//! one member, and copied from there.
//!
//! Reference: R. Rabenseifner, "Optimization of Collective Reduction Operations", 2004, for powers
//! of two. The all-gather on a circle is that of J. L. Träff, "Optimal, Non-pipelined
//! Reduce-scatter and Allreduce Algorithms", 2024.

use super::balanced::{Members, Node, Shares, member_at, way_up};
use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

/// Chunks of a lane at most: more would be parts of a slot too short to be worth it, and the last
/// rounds move a thousandth of the vector each.
const MOST_SHARES: usize = 1024;

/// Chunks of a lane at least, or nearly: shares are rounded to them.
const LEAST_SHARES: usize = 16;

/// Chunks of a vector that so many members reduce, in a lane.
pub fn chunks(members: usize) -> usize {
    chunks_within(members, MOST_SHARES)
}

fn chunks_within(members: usize, most: usize) -> usize {
    let shares = members.min(most);
    match members.is_power_of_two() {
        true => shares,
        false => shares * LEAST_SHARES.div_ceil(shares),
    }
}

pub(super) fn plan(collective: Collective, members: &Members, nranks: usize) -> Option<Plan> {
    match collective {
        AllReduce => Some(all_reduce(members, nranks, chunks(members.count()))),
        ReduceScatter => Some(reduce_scatter(members, nranks)),
        _ => None,
    }
}

/// What a member gives to the other half of a node, and what it gets from it: with whom, and which
/// chunks.
struct Round {
    node: Node,
    gives: Vec<(usize, Span)>,
    gets: Vec<(usize, Span)>,
}

/// A member's rounds from its leaf to the top.
fn rounds(member: usize, count: usize, shares: Shares) -> Vec<Round> {
    let mut place = 0;
    let round = |node: Node| {
        let [(_, size), (other, others)] = node.halves(member);
        let had = shares.at(place, size);
        let side = usize::from(!node.is_left(member));
        place = 2 * place + side;
        let has = shares.at(place, node.size());
        let at = |half: usize, place: usize| other + member_at(place, half);
        // The other half's places take turns with this one's.
        let theirs = shares.among(node.size(), (1 - side, 2), &had);
        let gives = theirs.into_iter().map(|(place, span)| (at(others, place / 2), span)).collect();
        let whole = shares.among(others, (0, 1), &has);
        let gets = whole.into_iter().map(|(place, span)| (at(others, place), span)).collect();
        Round { node, gives, gets }
    };
    way_up(member, count).into_iter().map(round).collect()
}

/// From every member's part in `mine` to its share of the sum, complete in `complete`; sums of some
/// gather in `partial`.
fn scatter_reduce(
    plan: &mut Plan,
    members: &Members,
    rounds: &[Round],
    [mut mine, partial, complete]: [End; 3],
) {
    let own = members.own();
    for (at, Round { node, gives, gets }) in rounds.iter().enumerate() {
        let last = at + 1 == rounds.len();
        for (member, span) in gives {
            plan.step(*span, &[members.peer(*member)], &[mine]);
        }
        for (member, span) in gets {
            let target = if last { complete } else { partial };
            let sources = node.in_order(own, mine, members.peer(*member));
            plan.step(*span, &[target], &sources).finish = last;
        }
        mine = partial;
    }
}

fn all_reduce(members: &Members, nranks: usize, chunks: usize) -> Plan {
    let lanes = members.lanes();
    let mut plan = Plan::new(members.rank, nranks, lanes * chunks);
    let spans: Vec<Span> = (0..lanes).map(|lane| Span::new(lane * chunks, chunks)).collect();
    members.make_part(&mut plan, &spans, || vec![members.part()]);
    if members.are_nested() {
        plan.next_stage();
    }
    if members.is_lane(lanes) {
        let span = spans[members.index()];
        let rounds = rounds(members.own(), members.count(), Shares { chunks: span });
        let ends = [members.part(), End::Output, End::Output];
        scatter_reduce(&mut plan, members, &rounds, ends);
        for Round { gives, gets, .. } in rounds.iter().rev() {
            for (member, span) in gets {
                plan.step(*span, &[members.peer(*member)], &[End::Output]);
            }
            for (member, span) in gives {
                plan.step(*span, &[End::Output], &[members.peer(*member)]);
            }
        }
        let others = members.local_peers();
        if !others.is_empty() {
            plan.step(span, &others, &[End::Output]);
        }
    }
    members.take_from_lanes(&mut plan, &spans);
    plan
}

/// The blocks of a lane follow each other, so a block is completed anywhere, and goes to its rank
/// from there.
fn reduce_scatter(members: &Members, nranks: usize) -> Plan {
    let (lanes, rank) = (members.lanes(), members.rank);
    let mut plan = Plan::new(rank, nranks, nranks);
    let first = |lane: usize| lane * nranks / lanes;
    let lane_of = |lane: usize| Span::new(first(lane), first(lane + 1) - first(lane));
    let spans: Vec<Span> = (0..lanes).map(lane_of).collect();
    members.make_part(&mut plan, &spans, || vec![members.part()]);
    if members.are_nested() {
        plan.next_stage();
    }
    let count = members.count();
    if members.is_lane(lanes) {
        let shares = Shares { chunks: spans[members.index()] };
        let rounds = rounds(members.own(), count, shares);
        let ends = [members.part(), End::Scratch, End::Scratch];
        scatter_reduce(&mut plan, members, &rounds, ends);
        let complete = rounds.last().map_or(&[][..], |round| &round.gets);
        for block in complete.iter().flat_map(|(_, span)| span.chunks()) {
            let target = if block == rank { End::Output } else { End::Peer(block) };
            plan.copy(Span::one(block), target, End::Scratch);
        }
    }
    let lane = (0..lanes).find(|lane| spans[*lane].chunks().contains(&rank));
    let lane = lane.expect("lanes share all blocks");
    let shares = Shares { chunks: spans[lane] };
    let (place, _) = shares.among(count, (0, 1), &(rank..rank + 1))[0];
    let from = members.rank_of(member_at(place, count), lane);
    if from != rank {
        plan.recv(Span::one(rank), End::Output, from);
    }
    plan
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::topology::Topology;
    use crate::plan::verify::{Placement, formed_by_hosts, verify};

    /// As of more members than a vector has chunks for.
    #[test]
    fn members_without_a_share_take_part_all_the_same() {
        for (nranks, most) in (2..=40).flat_map(|nranks| [(nranks, 1), (nranks, 3), (nranks, 8)]) {
            let plan = |rank| {
                let members = Members::ranks(rank, nranks);
                all_reduce(&members, nranks, chunks_within(nranks, most).min(most))
            };
            let plans: Vec<Plan> = (0..nranks).map(plan).collect();
            let alone = Topology::new(&(0..nranks).collect::<Vec<_>>());
            for placement in Placement::ALL {
                let report = verify(AllReduce, &plans, 0, 2, placement)
                    .unwrap_or_else(|why| panic!("{nranks} ranks, {most} chunks: {why}"));
                for (chunk, formed) in report.formed.iter().enumerate() {
                    assert_eq!(*formed, formed_by_hosts(&alone, chunk), "{nranks}, {most}");
                }
            }
        }
    }
}
