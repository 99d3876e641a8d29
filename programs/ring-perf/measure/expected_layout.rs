//! Where the elements of one measured call lie, and what each of them must become.
//!
//! A rank's input is a pattern of the element's index alone, so that a part of a result is named by
//! the rank it came from (or "reduced") and the index it had in the inputs.

use crate::cli::operation::Operation;
use ringcomm::communicator::VectorCounts;
use ringcomm::plan::partition::Extent;
use ringcomm::types::{DataType, ReduceOp};

/// One row of the table: a call, without its placement.
#[derive(Clone, Debug)]
pub struct Cell {
    pub operation: Operation,
    /// The size asked for; the layout rounds it to whole elements per rank.
    pub bytes: usize,
    pub data_type: DataType,
    pub op: ReduceOp,
    pub root: usize,
    /// The buckets of a trace: all-reduces of one iteration, each on its part of the buffer.
    pub buckets: Vec<Extent>,
}

/// Where a part of the result comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// A copy from this rank's input.
    Rank(usize),
    /// The reduction of every rank's input.
    Reduced,
}

/// `count` elements of the receive buffer from `offset` on, which must be `origin`'s from `start`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    pub offset: usize,
    pub count: usize,
    pub origin: Origin,
    pub start: usize,
}

/// Which buffers a row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    OutOfPlace,
    InPlace,
}

/// The buffers of one call on one rank, in elements.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What the call is given as its count.
    pub count: usize,
    /// The larger buffer of any rank: the size column.
    pub size_elements: usize,
    pub send_elements: usize,
    pub recv_elements: usize,
    pub vector: Option<VectorCounts>,
    pub parts: Vec<Part>,
    /// In place: where the send and the receive buffer begin in the common one.
    pub send_at: usize,
    pub recv_at: usize,
}

impl Layout {
    /// Elements of the buffer that holds both when in place.
    pub fn shared_elements(&self) -> usize {
        (self.send_at + self.send_elements).max(self.recv_at + self.recv_elements)
    }

    /// The count column: the call's, or of a v form, whose ranks have different ones, all of it.
    pub fn counted(&self) -> usize {
        if self.vector.is_some() { self.size_elements } else { self.count }
    }
}

/// Whom a rank plays ping-pong with: pairs of neighbours, and the last of an odd number itself.
pub fn partner(rank: usize, n: usize) -> usize {
    if (rank ^ 1) < n { rank ^ 1 } else { rank }
}

/// `total` split into `n` parts that differ as much as r+1: 1/6, 2/6, 3/6 for three.
fn uneven(total: usize, n: usize) -> Vec<usize> {
    let weights = n * (n + 1) / 2;
    let mut counts: Vec<usize> = (0..n).map(|rank| total * (rank + 1) / weights).collect();
    let given: usize = counts.iter().sum();
    counts[n - 1] += total - given;
    counts
}

/// Each block after the one before, `gap` elements apart.
fn follow(counts: &[usize], gap: usize) -> Vec<usize> {
    let mut next = 0;
    let place = |count: &usize| {
        let here = next;
        next += count + gap;
        here
    };
    counts.iter().map(place).collect()
}

/// Elements up to the end of the last block.
fn extent(counts: &[usize], displacements: &[usize]) -> usize {
    counts.iter().zip(displacements).map(|(count, at)| count + at).max().unwrap_or(0)
}

impl Cell {
    /// What `rank` of `n` does.
    pub fn layout(&self, rank: usize, n: usize) -> Layout {
        let total = self.bytes / self.data_type.size();
        match self.operation {
            Operation::AllReduce | Operation::Broadcast | Operation::Reduce => {
                self.whole(total, rank)
            }
            Operation::SendRecv | Operation::PingPong => {
                let from = match self.operation {
                    Operation::PingPong => partner(rank, n),
                    _ => (rank + n - 1) % n,
                };
                let part = Part { offset: 0, count: total, origin: Origin::Rank(from), start: 0 };
                plain(total, total, total, vec![part])
            }
            Operation::Barrier => plain(0, 0, 0, Vec::new()),
            _ if self.operation.is_vector() => self.vector_layout(rank, n),
            // At least one element per rank: a smaller call is none.
            _ => self.blocks((total / n).max(1), rank, n),
        }
    }

    /// All ranks have the whole vector.
    fn whole(&self, count: usize, rank: usize) -> Layout {
        let part = |origin| vec![Part { offset: 0, count, origin, start: 0 }];
        let parts = match self.operation {
            Operation::Broadcast => part(Origin::Rank(self.root)),
            Operation::Reduce if rank != self.root => Vec::new(),
            _ => part(Origin::Reduced),
        };
        plain(count, count, count, parts)
    }

    /// One block of `count` elements per rank, or per pair of ranks.
    fn blocks(&self, count: usize, rank: usize, n: usize) -> Layout {
        let all = count * n;
        let at_root = rank == self.root;
        let block = |from: usize, start| Part {
            offset: from * count,
            count,
            origin: Origin::Rank(from),
            start,
        };
        let mine = |origin| vec![Part { offset: 0, count, origin, start: rank * count }];
        let mut layout = match self.operation {
            Operation::ReduceScatter => plain(count, all, count, mine(Origin::Reduced)),
            Operation::AllGather => {
                plain(count, count, all, (0..n).map(|from| block(from, 0)).collect())
            }
            Operation::AllToAll => {
                plain(count, all, all, (0..n).map(|from| block(from, rank * count)).collect())
            }
            Operation::Gather if at_root => {
                plain(count, count, all, (0..n).map(|from| block(from, 0)).collect())
            }
            Operation::Gather => plain(count, count, 0, Vec::new()),
            Operation::Scatter if at_root => {
                plain(count, all, count, mine(Origin::Rank(self.root)))
            }
            Operation::Scatter => plain(count, 0, count, mine(Origin::Rank(self.root))),
            other => unreachable!("{} has no blocks", other.name()),
        };
        layout.size_elements = all;
        match self.operation {
            Operation::AllGather => layout.send_at = rank * count,
            Operation::Gather if at_root => layout.send_at = rank * count,
            Operation::ReduceScatter => layout.recv_at = rank * count,
            Operation::Scatter if at_root => layout.recv_at = rank * count,
            _ => {}
        }
        layout
    }

    /// The blocks of a v form, in elements: at least one per rank, a smaller call is none.
    pub fn uneven_blocks(&self, n: usize) -> Vec<usize> {
        uneven((self.bytes / self.data_type.size()).max(n), n)
    }

    /// Uneven blocks with a gap of one element between them, which must stay as it was.
    fn vector_layout(&self, rank: usize, n: usize) -> Layout {
        let counts = self.uneven_blocks(n);
        let total = counts.iter().sum();
        let at = follow(&counts, 1);
        let whole = extent(&counts, &at);
        let own = counts[rank];
        let at_root = rank == self.root;
        let gathered = || -> Vec<Part> {
            let part = |from: usize| Part {
                offset: at[from],
                count: counts[from],
                origin: Origin::Rank(from),
                start: 0,
            };
            (0..n).map(part).collect()
        };
        let mut vector = VectorCounts::default();
        let mut layout = match self.operation {
            Operation::AllGatherV | Operation::GatherV => {
                (vector.recv_counts, vector.recv_displacements) = (counts.clone(), at.clone());
                if self.operation == Operation::AllGatherV || at_root {
                    let mut layout = plain(own, own, whole, gathered());
                    layout.send_at = at[rank];
                    layout
                } else {
                    plain(own, own, 0, Vec::new())
                }
            }
            Operation::ScatterV => {
                (vector.send_counts, vector.send_displacements) = (counts.clone(), at.clone());
                let origin = Origin::Rank(self.root);
                let part = Part { offset: 0, count: own, origin, start: at[rank] };
                let mut layout = plain(own, if at_root { whole } else { 0 }, own, vec![part]);
                layout.recv_at = if at_root { at[rank] } else { 0 };
                layout
            }
            Operation::ReduceScatterV => {
                let start = follow(&counts, 0)[rank];
                vector.recv_counts = counts.clone();
                let part = Part { offset: 0, count: own, origin: Origin::Reduced, start };
                let mut layout = plain(own, total, own, vec![part]);
                layout.recv_at = start;
                layout
            }
            Operation::AllToAllV => return all_to_all_v(&counts, total, rank, n),
            other => unreachable!("{} is not a v form", other.name()),
        };
        layout.size_elements = total;
        layout.vector = Some(vector);
        layout
    }
}

/// From `s` to `d` go `counts[(s + d) % n]` elements: every pair of ranks differs.
fn all_to_all_v(counts: &[usize], total: usize, rank: usize, n: usize) -> Layout {
    let between = |s: usize| -> Vec<usize> { (0..n).map(|d| counts[(s + d) % n]).collect() };
    let own = between(rank);
    let at = follow(&own, 1);
    let part = |from: usize| Part {
        offset: at[from],
        count: own[from],
        origin: Origin::Rank(from),
        start: follow(&between(from), 1)[rank],
    };
    let elements = extent(&own, &at);
    let mut layout = plain(0, elements, elements, (0..n).map(part).collect());
    layout.size_elements = total;
    layout.vector = Some(VectorCounts {
        send_counts: own.clone(),
        send_displacements: at.clone(),
        recv_counts: own,
        recv_displacements: at,
    });
    layout
}

fn plain(count: usize, send: usize, recv: usize, parts: Vec<Part>) -> Layout {
    Layout {
        count,
        size_elements: send.max(recv),
        send_elements: send,
        recv_elements: recv,
        vector: None,
        parts,
        send_at: 0,
        recv_at: 0,
    }
}

/// The least memory traffic of the whole job in bytes: every input byte is read once, every output
/// byte that is not already in place is written once. No copy between the ranks is counted, so an
/// algorithm that stages data in between stays below 100 %; one whose data stays in the caches may
/// pass it.
pub fn least_traffic(operation: Operation, bytes: usize, n: usize, placement: Placement) -> f64 {
    use Operation::*;
    // A rank alone has its result where its input is.
    if n == 1 && placement == Placement::InPlace {
        return 0.0;
    }
    let (size, n) = (bytes as f64, n as f64);
    // What the root, or each rank for its own block, need not move when in place.
    let resident = |share: f64| if placement == Placement::InPlace { share } else { 0.0 };
    match operation {
        AllReduce | AllToAllV | SendRecv => 2.0 * n * size,
        // One of the two ways: a rank of each pair sends, and the other receives.
        PingPong => n * size,
        AllToAll => 2.0 * n * size - resident(2.0 * size),
        ReduceScatter | ReduceScatterV | Reduce => (n + 1.0) * size,
        AllGather | AllGatherV | Broadcast => size + n * size - resident(size),
        Gather | GatherV | Scatter | ScatterV => 2.0 * size - resident(2.0 * size / n),
        Barrier => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(operation: Operation, bytes: usize, root: usize) -> Cell {
        let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
        Cell { operation, bytes, data_type, op, root, buckets: Vec::new() }
    }

    #[test]
    fn parts_lie_inside_and_do_not_overlap() {
        for operation in Operation::ALL {
            for n in 1..6 {
                for rank in 0..n {
                    let layout = cell(operation, 1000, n - 1).layout(rank, n);
                    let mut end = 0;
                    let mut parts = layout.parts.clone();
                    parts.sort_by_key(|part| part.offset);
                    for part in parts {
                        assert!(part.offset >= end, "{operation:?} {n} {rank}");
                        end = part.offset + part.count;
                    }
                    assert!(end <= layout.recv_elements, "{operation:?} {n} {rank}");
                }
            }
        }
    }

    #[test]
    fn what_one_rank_sends_the_other_expects() {
        let n = 4;
        let layouts: Vec<Layout> =
            (0..n).map(|rank| cell(Operation::AllToAllV, 4096, 0).layout(rank, n)).collect();
        for (rank, layout) in layouts.iter().enumerate() {
            for (from, part) in layout.parts.iter().enumerate() {
                let theirs = layouts[from].vector.as_ref().unwrap();
                assert_eq!(part.count, theirs.send_counts[rank]);
                assert_eq!(part.start, theirs.send_displacements[rank]);
            }
        }
        assert_eq!(uneven(12, 3), vec![2, 4, 6]);
    }

    #[test]
    fn the_traffic_of_an_all_reduce_is_each_input_and_output_once() {
        let traffic = |operation, placement| least_traffic(operation, 64, 2, placement);
        assert_eq!(traffic(Operation::AllReduce, Placement::OutOfPlace), 256.0);
        assert_eq!(traffic(Operation::Broadcast, Placement::OutOfPlace), 192.0);
        assert_eq!(traffic(Operation::Broadcast, Placement::InPlace), 128.0);
        assert_eq!(traffic(Operation::Gather, Placement::InPlace), 64.0);
        for operation in Operation::ALL {
            assert_eq!(least_traffic(operation, 64, 1, Placement::InPlace), 0.0);
        }
    }
}
