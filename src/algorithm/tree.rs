//! The double binary tree: each half of the vector has a tree of its own, and a rank that works in
//! one is a leaf of the other.
//!
//! ```text
//!   n = 6    first tree          second tree (the first, mirrored: rank x plays 5 - x)
//!                 3                     2
//!             ┌───┴───┐             ┌───┴───┐
//!             1       5             4       0
//!           ┌─┴─┐   ┌─┘           ┌─┴─┐   ┌─┘
//!           0   2   4             5   3   1
//! ```
//! Steps: about log2 n levels up and as many down. Bytes sent by a rank for a vector of S: at most
//! S/2 up and S down: twice what one tree would leave idle. Latency of a tree at nearly the
//! bandwidth of a ring, for many ranks. Slices stream in Broadcast and Reduce; in AllReduce each
//! goes up and comes down before the next, so there the ring is better for large vectors.
//!
//! Invariant: in-order numbering: a rank reduces (lower ranks' subtree, own, higher ranks'
//! subtree), a half is completed on its tree's root alone and copied from there. Inner ranks have
//! odd places; the second tree moves every odd place to an even one (mirrored for even n, shifted
//! for odd n), so no rank is inner twice. Broadcast and Reduce leave their root out of both trees
//! and join it to the two tops.
//!
//! On the way up a rank first sends as a leaf, then waits as an inner node; on the way down it
//! first passes on, then receives as a leaf: so neither tree waits for the other. Two ranks that
//! meet in both trees still agree on the order of their messages, as no rank is inner twice and
//! everything goes up before anything comes down.
//!
//! Reference: P. Sanders, J. Speck, J. L. Träff, "Two-tree Algorithms for Full Bandwidth Broadcast,
//! Reduction and Scan", 2009.

use super::peers;
use crate::plan::Collective::{self, *};
use crate::plan::{End, Plan, Span};

pub(super) fn plan(
    collective: Collective,
    rank: usize,
    nranks: usize,
    root: usize,
) -> Option<Plan> {
    match collective {
        AllReduce | Barrier => Some(all_reduce(rank, nranks)),
        Broadcast => Some(broadcast(rank, nranks, root)),
        Reduce => Some(reduce(rank, nranks, root)),
        _ => None,
    }
}

/// One rank's place in one tree, as ranks.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct TreePosition {
    parent: Option<usize>,
    /// The subtree of the places before this one, and of those after.
    lower: Option<usize>,
    higher: Option<usize>,
}

impl TreePosition {
    fn children(&self) -> Vec<usize> {
        self.lower.into_iter().chain(self.higher).collect()
    }

    /// The subtrees' sums around this rank's own input, in order of place.
    fn sources(&self) -> Vec<End> {
        let lower = self.lower.map(End::Peer).into_iter();
        lower.chain([End::Input]).chain(self.higher.map(End::Peer)).collect()
    }
}

/// The places of the in-order tree over 1..=size: the lowest set bit of a place is its height.
fn in_order(place: usize, size: usize) -> TreePosition {
    let height = 1 << place.trailing_zeros();
    let up = |place: usize| {
        let height = 1 << place.trailing_zeros();
        (place ^ height) | (height << 1)
    };
    // Places past the end are left out: their descendants hang from the next ancestor that exists.
    let top = 1 << size.ilog2();
    let parent = (place != top).then(|| {
        std::iter::successors(Some(up(place)), |&p| Some(up(p)))
            .find(|&p| p <= size)
            .expect("the top exists and is an ancestor of all")
    });
    let after = (height - 1).min(size - place);
    let higher = (after > 0).then(|| place + (1 << after.ilog2()));
    TreePosition { parent, lower: (height > 1).then(|| place - height / 2), higher }
}

/// The place of `member` of 0..size in tree 0 or 1, its relatives as members.
fn place(tree: usize, member: usize, size: usize) -> TreePosition {
    // Members count from 0, places from 1: inner places are even, members there odd.
    let moved = |member: usize| match (tree, size % 2) {
        (0, _) => member,
        (_, 0) => size - 1 - member,
        _ => (member + size - 1) % size,
    };
    let back = |member: usize| match (tree, size % 2) {
        (0, _) => member,
        (_, 0) => size - 1 - member,
        _ => (member + 1) % size,
    };
    let place = in_order(moved(member) + 1, size);
    let member = |place: usize| back(place - 1);
    TreePosition {
        parent: place.parent.map(member),
        lower: place.lower.map(member),
        higher: place.higher.map(member),
    }
}

/// The order in which a rank serves the trees on the way up: its leaf's part before its inner one.
fn upwards(places: &[TreePosition; 2]) -> [usize; 2] {
    if places[0].children().is_empty() { [0, 1] } else { [1, 0] }
}

/// The order on the way down: inner part first. A leaf of both keeps the order of the chunks.
fn downwards(places: &[TreePosition; 2]) -> [usize; 2] {
    if places[1].children().is_empty() { [0, 1] } else { [1, 0] }
}

fn all_reduce(rank: usize, nranks: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, 2);
    let places = [0, 1].map(|tree| place(tree, rank, nranks));
    for chunk in upwards(&places) {
        let sources = places[chunk].sources();
        match places[chunk].parent {
            Some(parent) => {
                plan.step(Span::one(chunk), &[End::Peer(parent)], &sources);
            }
            None => plan.finish(Span::one(chunk), &[End::Output], &sources),
        }
    }
    for chunk in downwards(&places) {
        let children = peers(places[chunk].children());
        match places[chunk].parent {
            Some(parent) => {
                let targets = [&[End::Output], &children[..]].concat();
                plan.step(Span::one(chunk), &targets, &[End::Peer(parent)]);
            }
            None => {
                plan.step(Span::one(chunk), &children, &[End::Output]);
            }
        }
    }
    plan
}

/// The two places of a rank that is not the root, in trees over all ranks but the root.
fn below_root(rank: usize, nranks: usize, root: usize) -> [TreePosition; 2] {
    let member = (rank + nranks - root) % nranks - 1;
    let rank_of = |member: usize| (member + 1 + root) % nranks;
    [0, 1].map(|tree| {
        let place = place(tree, member, nranks - 1);
        TreePosition {
            parent: Some(place.parent.map_or(root, rank_of)),
            lower: place.lower.map(rank_of),
            higher: place.higher.map(rank_of),
        }
    })
}

/// The tops of the two trees over all ranks but the root.
fn tops(nranks: usize, root: usize) -> [usize; 2] {
    let size = nranks - 1;
    [0, 1].map(|tree| {
        let top = (0..size).find(|&member| place(tree, member, size).parent.is_none());
        (top.expect("every tree has a top") + 1 + root) % nranks
    })
}

fn broadcast(rank: usize, nranks: usize, root: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, 2);
    if rank == root {
        for (chunk, top) in tops(nranks, root).into_iter().enumerate() {
            plan.step(Span::one(chunk), &[End::Output, End::Peer(top)], &[End::Input]);
        }
        return plan;
    }
    let places = below_root(rank, nranks, root);
    for chunk in downwards(&places) {
        let place = &places[chunk];
        let targets = [&[End::Output], &peers(place.children())[..]].concat();
        let parent = place.parent.expect("the root is above all");
        plan.step(Span::one(chunk), &targets, &[End::Peer(parent)]);
    }
    plan
}

fn reduce(rank: usize, nranks: usize, root: usize) -> Plan {
    let mut plan = Plan::new(rank, nranks, 2);
    if rank == root {
        for (chunk, top) in tops(nranks, root).into_iter().enumerate() {
            plan.recv_reduce_copy(Span::one(chunk), End::Output, top);
        }
        return plan;
    }
    let places = below_root(rank, nranks, root);
    for chunk in upwards(&places) {
        let place = &places[chunk];
        let parent = place.parent.expect("the root is above all");
        plan.step(Span::one(chunk), &[End::Peer(parent)], &place.sources());
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rank_is_inner_in_both_trees() {
        for size in 1..=130 {
            for member in 0..size {
                let inner = [0, 1].map(|tree| !place(tree, member, size).children().is_empty());
                assert_ne!(inner, [true, true], "member {member} of {size}");
            }
        }
    }

    #[test]
    fn parents_and_children_agree_and_one_top_is_above_all() {
        for (size, tree) in (1..=130).flat_map(|size| [(size, 0), (size, 1)]) {
            let places: Vec<TreePosition> =
                (0..size).map(|member| place(tree, member, size)).collect();
            assert_eq!(places.iter().filter(|place| place.parent.is_none()).count(), 1);
            for (member, own) in places.iter().enumerate() {
                for child in own.children() {
                    assert_eq!(places[child].parent, Some(member), "tree {tree} of {size}");
                }
            }
            let edges: usize = places.iter().map(|place| place.children().len()).sum();
            assert_eq!(edges, size - 1);
        }
    }
}
