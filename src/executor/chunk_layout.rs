//! Where the chunks of one call lie: the bridge from chunk numbers to element offsets.
//!
//! A plan knows neither sizes nor buffers. A [`Layout`] is one call's answer to three questions
//! about a chunk: how many elements, where in a rank's input, where in a rank's output. What a rank
//! cannot know about its peers (their private displacements in a `v` form) is `None`.

use crate::plan::Collective;
use crate::plan::partition::Partition;

/// The per-rank counts and displacements of a `v` collective, in elements.
///
/// AllGather and Gather use `recv_*`, ReduceScatter uses `recv_counts` (rank r's block follows the
/// blocks of the ranks before it in the send buffer), Scatter uses `send_*`, AllToAll uses all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VectorCounts {
    pub send_counts: Vec<usize>,
    pub send_displacements: Vec<usize>,
    pub recv_counts: Vec<usize>,
    pub recv_displacements: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct Layout {
    collective: Collective,
    rank: usize,
    nranks: usize,
    /// The cut of a whole-vector collective into chunks.
    partition: Partition,
    /// Elements in a block of the block collectives.
    count: usize,
    /// Elements from one block to the next, and before what is moved of each: of the whole vector,
    /// where there are no blocks.
    stride: usize,
    first: usize,
    vector: Option<VectorCounts>,
    /// ReduceScatterv: elements before each rank's block.
    before: Vec<usize>,
}

impl Layout {
    pub fn new(
        collective: Collective,
        rank: usize,
        nranks: usize,
        nchunks: usize,
        count: usize,
        vector: Option<&VectorCounts>,
    ) -> Layout {
        let mut before = Vec::new();
        if let (Collective::ReduceScatter, Some(vector)) = (collective, vector) {
            let mut sum = 0;
            for count in &vector.recv_counts {
                before.push(sum);
                sum += count;
            }
        }
        // A barrier moves nothing, whatever count it is called with.
        let count = if collective == Collective::Barrier { 0 } else { count };
        let partition = Partition::new(count, nchunks);
        let (vector, stride) = (vector.cloned(), count);
        Layout { collective, rank, nranks, partition, count, stride, first: 0, vector, before }
    }

    /// The same, with a vector's chunks cut at multiples of `grain` elements.
    pub fn in_grains(self, grain: usize) -> Layout {
        let Layout { partition, count, .. } = self;
        Layout { partition: Partition::in_grains(count, partition.parts(), grain), ..self }
    }

    /// The same for one part of a larger call: `first` elements into a vector, or into blocks that
    /// are `stride` elements apart.
    pub fn within(self, first: usize, stride: usize) -> Layout {
        debug_assert!(self.vector.is_none());
        Layout { stride, first, ..self }
    }

    /// Elements in `chunk`. Only asked for chunks that this rank sends or receives.
    pub fn count(&self, chunk: usize) -> usize {
        use Collective::*;
        let Some(v) = &self.vector else {
            return match self.collective {
                AllReduce | Broadcast | Reduce | Barrier => self.partition.extent(chunk).count,
                _ => self.count,
            };
        };
        match self.collective {
            AllReduce | Broadcast | Reduce | Barrier => self.partition.extent(chunk).count,
            AllGather | ReduceScatter => v.recv_counts[chunk],
            Gather if v.recv_counts.is_empty() => self.count,
            Gather => v.recv_counts[chunk],
            Scatter if v.send_counts.is_empty() => self.count,
            Scatter => v.send_counts[chunk],
            AllToAll if chunk / self.nranks == self.rank => v.send_counts[chunk % self.nranks],
            AllToAll => v.recv_counts[chunk / self.nranks],
        }
    }

    /// Elements in the longest block that this rank sends or receives, of a `v` form in which it
    /// knows no others.
    pub fn longest_own(&self) -> usize {
        let lists = self.vector.iter().flat_map(|v| [&v.send_counts, &v.recv_counts]);
        lists.flatten().copied().max().unwrap_or(self.count)
    }

    /// Whether every rank knows where chunks lie in the inputs of all ranks.
    pub fn input_is_public(&self) -> bool {
        self.vector.is_none()
            || !matches!(self.collective, Collective::Scatter | Collective::AllToAll)
    }

    /// Whether every rank knows where chunks lie in the outputs of all ranks.
    pub fn output_is_public(&self) -> bool {
        use Collective::*;
        self.vector.is_none() || !matches!(self.collective, AllGather | Gather | AllToAll)
    }

    /// The chunk of the output that an in-place call lays over `chunk` of the input.
    pub fn in_place_partner(&self, chunk: usize) -> usize {
        match self.collective {
            Collective::AllToAll => chunk % self.nranks * self.nranks + chunk / self.nranks,
            _ => chunk,
        }
    }

    /// Elements before `chunk` in the input of `rank`, which holds it.
    pub fn input(&self, rank: usize, chunk: usize) -> Option<usize> {
        use Collective::*;
        match (self.collective, &self.vector) {
            (AllReduce | Broadcast | Reduce | Barrier, _) => {
                Some(self.first + self.partition.extent(chunk).offset)
            }
            (AllGather | Gather, _) => Some(self.first),
            (ReduceScatter, Some(_)) => Some(self.before[chunk]),
            (ReduceScatter | Scatter, None) => Some(self.first + chunk * self.stride),
            (AllToAll, None) => Some(self.first + chunk % self.nranks * self.stride),
            (Scatter, Some(v)) if rank == self.rank => v.send_displacements.get(chunk).copied(),
            (AllToAll, Some(v)) if rank == self.rank => {
                Some(v.send_displacements[chunk % self.nranks])
            }
            (Scatter | AllToAll, Some(_)) => None,
        }
    }

    /// Elements before `chunk` in the output of `rank`, which wants it.
    pub fn output(&self, rank: usize, chunk: usize) -> Option<usize> {
        use Collective::*;
        match (self.collective, &self.vector) {
            (AllReduce | Broadcast | Reduce | Barrier, _) => {
                Some(self.first + self.partition.extent(chunk).offset)
            }
            (ReduceScatter | Scatter, _) => Some(self.first),
            (AllGather | Gather, None) => Some(self.first + chunk * self.stride),
            (AllToAll, None) => Some(self.first + chunk / self.nranks * self.stride),
            (AllGather | Gather, Some(v)) if rank == self.rank => {
                v.recv_displacements.get(chunk).copied()
            }
            (AllToAll, Some(v)) if rank == self.rank => {
                Some(v.recv_displacements[chunk / self.nranks])
            }
            (AllGather | Gather | AllToAll, Some(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_vector_is_cut_evenly_and_covers() {
        let layout = Layout::new(Collective::AllReduce, 0, 4, 4, 10, None);
        let extents: Vec<_> =
            (0..4).map(|c| (layout.input(0, c).unwrap(), layout.count(c))).collect();
        assert_eq!(extents, [(0, 3), (3, 3), (6, 2), (8, 2)]);
    }

    #[test]
    fn all_to_all_numbers_blocks_by_source_and_target() {
        let layout = Layout::new(Collective::AllToAll, 1, 3, 9, 5, None);
        // The block from rank 1 to rank 2 is chunk 5: third in 1's input, second in 2's output.
        assert_eq!((layout.input(1, 5), layout.output(2, 5)), (Some(10), Some(5)));
    }

    #[test]
    fn a_part_of_a_call_lies_within_its_blocks() {
        let layout = Layout::new(Collective::AllToAll, 1, 3, 9, 2, None).within(4, 10);
        assert_eq!((layout.input(1, 5), layout.output(2, 5)), (Some(24), Some(14)));
        let layout = Layout::new(Collective::ReduceScatter, 1, 3, 3, 2, None).within(4, 10);
        assert_eq!((layout.input(1, 2), layout.output(2, 2)), (Some(24), Some(4)));
        let layout = Layout::new(Collective::AllReduce, 0, 2, 2, 6, None).within(4, 10);
        assert_eq!((layout.input(0, 1), layout.count(1)), (Some(7), 3));
    }

    #[test]
    fn a_peers_displacements_are_private() {
        let vector = VectorCounts {
            recv_counts: vec![2, 3],
            recv_displacements: vec![7, 1],
            ..VectorCounts::default()
        };
        let layout = Layout::new(Collective::AllGather, 0, 2, 2, 2, Some(&vector));
        assert_eq!((layout.output(0, 1), layout.output(1, 1)), (Some(1), None));
        assert_eq!(layout.count(1), 3);
    }
}
