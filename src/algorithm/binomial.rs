//! The binomial tree: the ranks that have the data (or still need it) double in every round.
//!
//! ```text
//!   n = 8, numbered from the root        rank v's parent is v without its lowest set bit;
//!        0                               its subtree is the ranks v..v + lowest bit
//!    ┌───┼─────┐
//!    4   2     1
//!   ┌┴┐  │
//!   6 5  3
//!   │
//!   7
//! ```
//! Steps: ceil(log2 n) rounds. Bytes: Broadcast and Reduce send S over every edge; Gather and
//! Scatter move a subtree's blocks as one span, (n-1)/n S at the root. For small vectors: a big one
//! is better cut into pieces.
//!
//! Reduce goes up the [balanced tree](super::balanced), of hosts where there are several, whose
//! ranks reduce for their first one. The root speaks for every node above its leaf, else the first
//! member of a node does.
//!
//! Invariant: a subtree is a run of neighbouring ranks (numbered from the root), so its blocks are
//! one span, or two where the run passes rank n-1.
//!
//! Reference: the binomial trees of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of
//! Collective Communication Operations in MPICH", 2005.

use super::balanced::{Members, Node, way_up};
use super::halving::arc;
use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    members: &Members,
    nranks: usize,
    root: usize,
) -> Option<Plan> {
    let rank = members.rank;
    let node = BinomialNode { number: (rank + nranks - root) % nranks, nranks, root };
    match collective {
        Broadcast => Some(broadcast(rank, &node)),
        Reduce => Some(reduce(members, nranks, root)),
        Gather => Some(gather(rank, &node)),
        Scatter => Some(scatter(rank, &node)),
        _ => None,
    }
}

/// A rank's place in the tree, numbered from the root.
struct BinomialNode {
    number: usize,
    nranks: usize,
    root: usize,
}

impl BinomialNode {
    fn rank_of(&self, number: usize) -> usize {
        (number + self.root) % self.nranks
    }

    fn is_root(&self) -> bool {
        self.number == 0
    }

    fn parent(&self) -> usize {
        self.rank_of(self.number & (self.number - 1))
    }

    /// Ranks in the subtree of `number`, itself included.
    fn size(&self, number: usize) -> usize {
        let lowest = if number == 0 { self.nranks } else { 1 << number.trailing_zeros() };
        lowest.min(self.nranks - number)
    }

    /// The numbers of the children, smallest subtree first: in rank order.
    fn children(&self) -> impl DoubleEndedIterator<Item = usize> {
        let size = self.size(self.number);
        let rounds = size.next_power_of_two().ilog2();
        (0..rounds).map(|round| self.number + (1 << round))
    }

    /// Where the blocks of the subtree of `number` lie.
    fn blocks(&self, number: usize) -> Vec<Span> {
        arc(self.rank_of(number), self.size(number), self.nranks)
    }
}

fn broadcast(rank: usize, node: &BinomialNode) -> Plan {
    let mut plan = Plan::new(rank, node.nranks, 1);
    // The largest subtree first: it has the furthest to go.
    let mut targets = vec![End::Output];
    targets.extend(node.children().rev().map(|child| End::Peer(node.rank_of(child))));
    let source = if node.is_root() { End::Input } else { End::Peer(node.parent()) };
    plan.step(Span::one(0), &targets, &[source]);
    plan
}

/// Up the balanced tree to the root's member, and on to the root.
fn reduce(members: &Members, nranks: usize, root: usize) -> Plan {
    let mut plan = Plan::new(members.rank, nranks, 1);
    let (whole, own, top) = (Span::one(0), members.own(), members.of(root));
    let speaker = |(first, size): (usize, usize)| {
        if (first..first + size).contains(&top) { top } else { first }
    };
    // Another rank of a host goes nowhere.
    let way = if members.is_lane(1) { way_up(own, members.count()) } else { Vec::new() };
    // Up to which node this member speaks.
    let speaks = |node: &&Node| speaker((node.first, node.size())) == own;
    let spoken = way.iter().take_while(speaks).count();
    let upwards = way.get(spoken).map(|node| members.peer(speaker((node.first, node.size()))));
    let first = upwards.filter(|_| spoken == 0).unwrap_or(members.part());
    members.make_part(&mut plan, &[whole], || vec![first]);
    if members.are_nested() {
        plan.next_stage();
    }
    let keeper = if members.rank == root { End::Output } else { End::Peer(root) };
    let mut mine = members.part();
    for (at, node) in way[..spoken].iter().enumerate() {
        let [_, other] = node.halves(own);
        let sources = node.in_order(own, mine, members.peer(speaker(other)));
        let last = at + 1 == spoken;
        let target = match upwards {
            _ if !last => End::Scratch,
            Some(up) => up,
            None => keeper,
        };
        plan.step(whole, &[target], &sources).finish = last && upwards.is_none();
        mine = End::Scratch;
    }
    if members.rank == root && !members.is_lane(1) {
        plan.recv(whole, End::Output, members.rank_of(top, 0));
    }
    plan
}

fn gather(rank: usize, node: &BinomialNode) -> Plan {
    let mut plan = Plan::new(rank, node.nranks, node.nranks);
    let mine = Span::one(rank);
    if node.size(node.number) == 1 {
        plan.send(mine, node.parent(), End::Input);
        return plan;
    }
    let kept = if node.is_root() { End::Output } else { End::Scratch };
    plan.copy(mine, kept, End::Input);
    for child in node.children() {
        for span in node.blocks(child) {
            plan.recv(span, kept, node.rank_of(child));
        }
    }
    if !node.is_root() {
        for span in node.blocks(node.number) {
            plan.send(span, node.parent(), End::Scratch);
        }
    }
    plan
}

fn scatter(rank: usize, node: &BinomialNode) -> Plan {
    let mut plan = Plan::new(rank, node.nranks, node.nranks);
    let mine = Span::one(rank);
    if node.size(node.number) == 1 {
        plan.recv(mine, End::Output, node.parent());
        return plan;
    }
    let held = if node.is_root() { End::Input } else { End::Scratch };
    if !node.is_root() {
        for span in node.blocks(node.number) {
            plan.recv(span, End::Scratch, node.parent());
        }
    }
    for child in node.children().rev() {
        for span in node.blocks(child) {
            plan.send(span, node.rank_of(child), held);
        }
    }
    plan.copy(mine, End::Output, held);
    plan
}
