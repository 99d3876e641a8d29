//! Recursive doubling: the group of members that agree doubles in every round.
//!
//! ```text
//!   AllReduce, n = 6         round 1       round 2        round 3
//!                            0 ◄─► 1       0 ◄─► 2        0 ◄─► 3
//!   ((0 + 1) + 2)            3 ◄─► 4       2 ──► 1        1 ◄─► 4
//!     + ((3 + 4) + 5)                      3 ◄─► 5        2 ◄─► 5
//!                                          5 ──► 4
//! ```
//! AllReduce: ceil(log2 n) rounds of the whole vector, S bytes sent by a rank in each, or twice as
//! many where halves differ: the latency of a tree without coming back down. Between hosts the
//! members are hosts: in as many lanes as they have ranks, each for its part of the vector.
//! AllGather: ceil(log2 n) rounds for any n, (n-1)/n S bytes in all, by
//! [`super::halving::all_gather`].
//!
//! Invariant: after a node's round every member below it holds its sum, (left, right) of the
//! [balanced tree](super::balanced): the same expression and bits everywhere.
//!
//! Reference: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
//! Operations in MPICH", 2005 (recursive doubling, here without a fold for other rank counts).

use super::balanced::{Members, Node, way_up};
use super::halving;
use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(collective: Collective, members: &Members, nranks: usize) -> Option<Plan> {
    match collective {
        AllReduce => Some(all_reduce(members, nranks, members.lanes())),
        Barrier => Some(all_reduce(members, nranks, 1)),
        AllGather => {
            let mut plan = Plan::new(members.rank, nranks, nranks);
            plan.copy(Span::one(members.rank), End::Output, End::Input);
            halving::all_gather(&mut plan);
            Some(plan)
        }
        _ => None,
    }
}

/// Whom a member hears in a node's round.
fn sender(node: &Node, member: usize) -> usize {
    let [(own, _), (other, size)] = node.halves(member);
    other + (member - own).min(size - 1)
}

/// Who hears a member in a node's round.
fn receivers(node: &Node, member: usize) -> Vec<usize> {
    let [(own, size), (other, others)] = node.halves(member);
    let at = member - own;
    let last = if at + 1 == size { others } else { (at + 1).min(others) };
    (at.min(others)..last).map(|place| other + place).collect()
}

fn all_reduce(members: &Members, nranks: usize, lanes: usize) -> Plan {
    let mut plan = Plan::new(members.rank, nranks, lanes);
    let spans: Vec<Span> = (0..lanes).map(Span::one).collect();
    let own = members.own();
    let way = way_up(own, members.count());
    let told = |node: &Node| -> Vec<End> {
        receivers(node, own).into_iter().map(|member| members.peer(member)).collect()
    };
    members.make_part(&mut plan, &spans, || [vec![members.part()], told(&way[0])].concat());
    if members.are_nested() {
        plan.next_stage();
    }
    if members.is_lane(lanes) {
        let span = spans[members.index()];
        let mut mine = members.part();
        for (round, node) in way.iter().enumerate() {
            let sources = node.in_order(own, mine, members.peer(sender(node, own)));
            let next = way.get(round + 1);
            let mut targets = vec![End::Output];
            targets.extend(next.map_or_else(|| members.local_peers(), told));
            plan.step(span, &targets, &sources).finish = next.is_none();
            mine = End::Output;
        }
    }
    members.take_from_lanes(&mut plan, &spans);
    plan
}
