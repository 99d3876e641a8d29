//! The balanced tree over hosts, in which sums between hosts are formed, and who its members are.
//!
//! ```text
//!   n = 5    every node halves its members, the larger half first, and adds (left, right):
//!                 0-4
//!             ┌────┴───┐            ((0 + 1) + 2) + (3 + 4)
//!            0-2      3-4
//!           ┌─┴─┐    ┌─┴─┐
//!          0-1  2    3   4
//!         ┌─┴┐
//!         0  1
//! ```
//! The tree depends on the number of members alone, so one-shot, two-shot, doubling, halving and
//! trees can all follow it, and give the same bits. It is ceil(log2 n) deep, and so is the error of
//! a sum: N. J. Higham, "The Accuracy of Floating Point Summation", 1993 (pairwise summation).
//!
//! The members are the hosts. On one host they are its ranks, where nothing has to be in this order
//! and integers may be.

use super::peers;
use crate::plan::topology::Topology;
use crate::plan::{End, Plan, Span};
use std::ops::Range;

/// How many of `count` members are in the left half.
pub const fn left_half(count: usize) -> usize {
    count.div_ceil(2)
}

/// A node: members `first..first + left` and the `right` ones after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub first: usize,
    pub left: usize,
    pub right: usize,
}

impl Node {
    pub fn is_left(&self, member: usize) -> bool {
        member < self.first + self.left
    }

    pub fn size(&self) -> usize {
        self.left + self.right
    }

    /// A member's own half and the other: where each begins, and its size.
    pub fn halves(&self, member: usize) -> [(usize, usize); 2] {
        let halves = [(self.first, self.left), (self.first + self.left, self.right)];
        if self.is_left(member) { halves } else { [halves[1], halves[0]] }
    }

    /// The two parts of a sum in order, of which `mine` is a member's own half's.
    pub fn in_order(&self, member: usize, mine: End, theirs: End) -> [End; 2] {
        if self.is_left(member) { [mine, theirs] } else { [theirs, mine] }
    }
}

/// A member's nodes, from its leaf to the top.
pub(super) fn way_up(member: usize, count: usize) -> Vec<Node> {
    let (mut first, mut size, mut nodes) = (0, count, Vec::new());
    while size > 1 {
        let node = Node { first, left: left_half(size), right: size - left_half(size) };
        nodes.push(node);
        [(first, size), _] = node.halves(member);
    }
    nodes.reverse();
    nodes
}

/// Who a rank works with between hosts, and who on its own.
pub(super) struct Members<'a> {
    /// The hosts, where there are several.
    hosts: Option<&'a Topology>,
    pub rank: usize,
    nranks: usize,
}

impl<'a> Members<'a> {
    /// The ranks of one host.
    pub fn ranks(rank: usize, nranks: usize) -> Members<'a> {
        Members { hosts: None, rank, nranks }
    }

    pub fn on(rank: usize, topology: &'a Topology) -> Members<'a> {
        let hosts = (topology.nhosts() > 1).then_some(topology);
        Members { hosts, rank, nranks: topology.nranks() }
    }

    pub fn count(&self) -> usize {
        self.hosts.map_or(self.nranks, Topology::nhosts)
    }

    /// The number of the own one.
    pub fn own(&self) -> usize {
        self.of(self.rank)
    }

    /// The member that a rank belongs to.
    pub fn of(&self, rank: usize) -> usize {
        self.hosts.map_or(rank, |hosts| hosts.host(rank))
    }

    /// This rank's lane, if it is less than there are lanes.
    pub fn index(&self) -> usize {
        self.hosts.map_or(0, |hosts| hosts.place(self.rank))
    }

    /// As many lanes as every member has ranks for.
    pub fn lanes(&self) -> usize {
        self.hosts.map_or(1, Topology::min_per_host)
    }

    /// The rank of a lane of a member.
    pub fn rank_of(&self, member: usize, lane: usize) -> usize {
        self.hosts.map_or(member, |hosts| hosts.ranks(member)[lane])
    }

    /// The connection with the rank of this lane of another member.
    pub fn peer(&self, member: usize) -> End {
        End::Peer(self.rank_of(member, self.index()))
    }

    fn locals(&self) -> Vec<usize> {
        self.hosts.map_or(vec![self.rank], |hosts| hosts.ranks(self.own()).to_vec())
    }

    /// The other ranks of this host by place, starting after this one.
    pub fn companions(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (locals, index) = (self.locals(), self.index());
        let count = locals.len();
        (1..count).map(move |step| (index + step) % count).map(move |place| (place, locals[place]))
    }

    /// Connections with the companions.
    pub fn local_peers(&self) -> Vec<End> {
        peers(self.companions().map(|(_, rank)| rank))
    }

    /// The inputs of this host's ranks, in order.
    pub fn inputs(&self) -> Vec<End> {
        let end = |rank| if rank == self.rank { End::Input } else { End::Peer(rank) };
        self.locals().into_iter().map(end).collect()
    }

    /// Where the own part lies once [`Members::make_part`] has made it.
    pub fn part(&self) -> End {
        if self.locals().len() == 1 { End::Input } else { End::Scratch }
    }

    /// Whether this rank has one of so many lanes.
    pub fn is_lane(&self, lanes: usize) -> bool {
        self.index() < lanes
    }

    /// Whether some host has several ranks.
    pub fn are_nested(&self) -> bool {
        self.hosts.is_some_and(Topology::is_hierarchical)
    }

    /// Reduce the chunks of every lane on its rank of this host, in rank order, to the targets that
    /// a lane's rank has for it.
    pub fn make_part(&self, plan: &mut Plan, lanes: &[Span], targets: impl Fn() -> Vec<End>) {
        for (place, rank) in self.companions().filter(|(place, _)| *place < lanes.len()) {
            plan.send(lanes[place], rank, End::Input);
        }
        if !self.is_lane(lanes.len()) {
            return;
        }
        // The part of a rank that is alone lies in its input already.
        let targets: Vec<End> = targets().into_iter().filter(|end| *end != End::Input).collect();
        if !targets.is_empty() {
            plan.step(lanes[self.index()], &targets, &self.inputs());
        }
    }

    /// Take the complete chunks of the other lanes.
    pub fn take_from_lanes(&self, plan: &mut Plan, lanes: &[Span]) {
        for (place, rank) in self.companions().filter(|(place, _)| *place < lanes.len()) {
            plan.recv(lanes[place], End::Output, rank);
        }
    }
}

/// A vector of `chunks` that is shared out at a node as it is reduced: which of them each place of
/// a node of so many members has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub chunks: Span,
}

impl Shares {
    pub fn at(&self, place: usize, size: usize) -> Range<usize> {
        let bound = |place: usize| self.chunks.first + place * self.chunks.len / size;
        bound(place)..bound(place + 1)
    }

    /// The places of a node of `size` members, every other one from `from` on, whose shares have
    /// some of `chunks`, and which.
    pub fn among(
        &self,
        size: usize,
        (from, step): (usize, usize),
        chunks: &Range<usize>,
    ) -> Vec<(usize, Span)> {
        let common = |place: usize| {
            let share = self.at(place, size);
            let (start, end) = (share.start.max(chunks.start), share.end.min(chunks.end));
            (start < end).then(|| (place, Span::new(start, end - start)))
        };
        if chunks.is_empty() {
            return Vec::new();
        }
        // Whose share a chunk is in: its end is the first that is past the chunk.
        let place = |chunk: usize| ((chunk - self.chunks.first + 1) * size - 1) / self.chunks.len;
        let (low, high) = (place(chunks.start), place(chunks.end - 1));
        let first = from + low.saturating_sub(from).next_multiple_of(step);
        (first..=high).step_by(step).filter_map(common).collect()
    }
}

/// The member at a place of a node over `count` members: halves take turns, so that a share lies
/// within the share that its member had before.
pub(super) fn member_at(mut place: usize, count: usize) -> usize {
    let (mut first, mut size) = (0, count);
    while size > 1 {
        let left = left_half(size);
        (first, size) = match place.is_multiple_of(2) {
            true => (first, left),
            false => (first + left, size - left),
        };
        place /= 2;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(member: usize, count: usize) -> usize {
        let below = |place: usize, node: &Node| 2 * place + usize::from(!node.is_left(member));
        way_up(member, count).iter().fold(0, below)
    }

    #[test]
    fn places_and_members_are_each_others_inverse() {
        for count in 1..=130 {
            let mut seen = vec![false; count];
            for member in 0..count {
                let place = place_of(member, count);
                assert_eq!(member_at(place, count), member, "{member} of {count}");
                assert!(!std::mem::replace(&mut seen[place], true), "{place} of {count}");
            }
        }
    }

    #[test]
    fn a_share_lies_within_the_one_below_and_shares_cover_everything() {
        for (count, chunks) in [(5, 5), (7, 7), (64, 64), (100, 30), (33, 48)] {
            let shares = Shares { chunks: Span::new(3, chunks) };
            for member in 0..count {
                let (mut place, mut before) = (0, shares.at(0, 1));
                for node in way_up(member, count) {
                    place = 2 * place + usize::from(!node.is_left(member));
                    let share = shares.at(place, node.size());
                    let lies_in = before.start <= share.start && share.end <= before.end;
                    assert!(lies_in || share.is_empty(), "{member} of {count} at {node:?}");
                    before = share;
                }
                assert_eq!(place, place_of(member, count));
            }
            let all: usize = (0..count).map(|place| shares.at(place, count).len()).sum();
            assert_eq!(all, chunks);
        }
    }

    #[test]
    fn every_overlap_is_found() {
        for (size, chunks) in [(1, 1), (5, 7), (7, 5), (64, 64), (100, 30)] {
            let shares = Shares { chunks: Span::new(2, chunks) };
            for (start, end) in (2..2 + chunks).flat_map(|s| (s..=2 + chunks).map(move |e| (s, e)))
            {
                for (from, step) in [(0, 1), (0, 2), (1, 2)] {
                    let found = shares.among(size, (from, step), &(start..end));
                    let wanted: Vec<usize> = (from..size)
                        .step_by(step)
                        .filter(|&place| {
                            let share = shares.at(place, size);
                            share.start.max(start) < share.end.min(end)
                        })
                        .collect();
                    assert_eq!(found.iter().map(|(place, _)| *place).collect::<Vec<_>>(), wanted);
                }
            }
        }
    }
}
