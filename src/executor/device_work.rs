//! A collective as pieces of work on memory that one device, or several, can address.
//!
//! Where all ranks' buffers are within reach, a collective is no exchange of messages any more:
//! each element of each output is a reduction, or a copy, of elements that lie somewhere. The order
//! of sources is that of ranks, so the bits are those of the serial plans. Elements are shared out
//! among devices by one cut of every block, so that each is computed once.

use crate::device::cuda::{Address, MOST_ENDS};
use crate::error::Result;
use crate::plan::Collective;
use crate::plan::partition::Partition;

/// Where a rank's buffers are.
#[derive(Clone, Copy, Debug, Default)]
pub struct RankBuffers {
    pub input: Address,
    pub output: Address,
}

/// A collective on equal blocks of `count` elements of `size` bytes.
#[derive(Clone, Copy, Debug)]
pub struct PieceShape {
    pub collective: Collective,
    pub root: usize,
    pub count: usize,
    pub size: usize,
}

/// Elements between two cuts are a multiple of this many bytes, so that a cut keeps the alignment
/// that vectors of sixteen bytes and lines of the cache like.
const GRAIN: usize = 128;

/// The same in elements of so many bytes.
pub(super) fn grain(size: usize) -> usize {
    (GRAIN / size).max(1)
}

/// Whether the pieces of so many ranks fit launches: a reduction takes all inputs at once.
pub fn fits(collective: Collective, nranks: usize) -> bool {
    match collective {
        Collective::AllReduce => 2 * nranks <= MOST_ENDS,
        Collective::ReduceScatter | Collective::Reduce => nranks < MOST_ENDS,
        Collective::AllGather | Collective::Broadcast => nranks < MOST_ENDS,
        _ => true,
    }
}

/// Hand every piece of part `part` of `nparts` to `add`: its sources, its targets and elements.
///
/// A target that is its own only source is left out: nothing is to be done.
pub fn pieces(
    shape: &PieceShape,
    places: &[RankBuffers],
    (part, nparts): (usize, usize),
    mut add: impl FnMut(&[Address], &[Address], usize) -> Result<()>,
) -> Result<()> {
    let PieceShape { collective, root, count, size } = *shape;
    let nranks = places.len();
    let (first, len) = share(count, size, part, nparts);
    let at = |base: Address, block: usize| base + ((block * count + first) * size) as Address;
    let input = |rank: usize, block: usize| at(places[rank].input, block);
    let output = |rank: usize, block: usize| at(places[rank].output, block);
    let mut inputs_of = |block: usize, targets: &dyn Fn(&mut Ends)| {
        let (mut sources, mut ends) = (Ends::default(), Ends::default());
        (0..nranks).for_each(|rank| sources.push(input(rank, block)));
        targets(&mut ends);
        add(sources.all(), ends.all(), len)
    };
    match collective {
        Collective::Barrier => return Ok(()),
        Collective::AllReduce => {
            let everywhere =
                |ends: &mut Ends| (0..nranks).for_each(|rank| ends.push(output(rank, 0)));
            return inputs_of(0, &everywhere);
        }
        Collective::Reduce => return inputs_of(0, &|ends| ends.push(output(root, 0))),
        Collective::ReduceScatter => {
            let mut block = |block| inputs_of(block, &|ends| ends.push(output(block, 0)));
            return (0..nranks).try_for_each(&mut block);
        }
        _ => {}
    }
    let mut copy = |source: Address, places: &mut dyn Iterator<Item = Address>| {
        let mut targets = Ends::default();
        places.filter(|target| *target != source).for_each(|target| targets.push(target));
        add(&[source], targets.all(), len)
    };
    match collective {
        Collective::Broadcast => copy(input(root, 0), &mut (0..nranks).map(|rank| output(rank, 0))),
        Collective::AllGather => (0..nranks).try_for_each(|block| {
            copy(input(block, 0), &mut (0..nranks).map(|rank| output(rank, block)))
        }),
        Collective::Gather => (0..nranks)
            .try_for_each(|block| copy(input(block, 0), &mut [output(root, block)].into_iter())),
        Collective::Scatter => (0..nranks)
            .try_for_each(|block| copy(input(root, block), &mut [output(block, 0)].into_iter())),
        _ => (0..nranks * nranks).try_for_each(|pair| {
            let (from, to) = (pair / nranks, pair % nranks);
            copy(input(from, to), &mut [output(to, from)].into_iter())
        }),
    }
}

/// Addresses on the stack: there is one such list for each piece of a call.
struct Ends {
    addresses: [Address; MOST_ENDS],
    len: usize,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends { addresses: [0; MOST_ENDS], len: 0 }
    }
}

impl Ends {
    fn push(&mut self, address: Address) {
        self.addresses[self.len] = address;
        self.len += 1;
    }

    fn all(&self) -> &[Address] {
        &self.addresses[..self.len]
    }
}

/// The elements of a block that are this part's: the first, and how many.
fn share(count: usize, size: usize, part: usize, nparts: usize) -> (usize, usize) {
    let extent = Partition::in_grains(count, nparts, grain(size)).extent(part);
    (extent.offset, extent.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NRANKS: usize = 4;

    /// Run the pieces on plain vectors of numbers, rank r's input at 1000 r and output at 1000 r +
    /// 500, a byte an element; returns what each output then holds, as sums.
    fn run(collective: Collective, count: usize, nparts: usize) -> Vec<Vec<u64>> {
        let mut memory: Vec<u64> = vec![0; 1000 * NRANKS];
        for rank in 0..NRANKS {
            for index in 0..500 {
                memory[1000 * rank + index] = (1 << (8 * rank)) * (index as u64 % 13 + 1);
            }
        }
        let place = |rank: usize| RankBuffers {
            input: 1000 * rank as u64,
            output: 1000 * rank as u64 + 500,
        };
        let places: Vec<RankBuffers> = (0..NRANKS).map(place).collect();
        let shape = PieceShape { collective, root: 2, count, size: 1 };
        let mut written = vec![0; memory.len()];
        for part in 0..nparts {
            pieces(&shape, &places, (part, nparts), |sources, targets, len| {
                for index in 0..len {
                    let sum = sources.iter().map(|at| memory[*at as usize + index]).sum::<u64>();
                    for target in targets {
                        memory[*target as usize + index] = sum;
                        written[*target as usize + index] += 1;
                    }
                }
                Ok(())
            })
            .unwrap();
        }
        assert!(written.iter().all(|times| *times <= 1), "an element was written twice");
        (0..NRANKS)
            .map(|rank| {
                let output = 1000 * rank + 500..1000 * (rank + 1);
                let last = output.clone().rposition(|at| written[at] == 1).map_or(0, |at| at + 1);
                memory[output][..last].to_vec()
            })
            .collect()
    }

    fn input(rank: usize, index: usize) -> u64 {
        (1 << (8 * rank)) * (index as u64 % 13 + 1)
    }

    #[test]
    fn every_collective_is_its_definition_in_any_number_of_parts() {
        let count = 100;
        let all = |index: usize| (0..NRANKS).map(|rank| input(rank, index)).sum::<u64>();
        let whole = |of: &dyn Fn(usize) -> u64, len: usize| (0..len).map(of).collect::<Vec<u64>>();
        for nparts in [1, 2, 3, 7] {
            for rank in 0..NRANKS {
                let outputs = |collective| run(collective, count, nparts)[rank].clone();
                assert_eq!(outputs(Collective::AllReduce), whole(&all, count));
                let mine = whole(&|index| all(rank * count + index), count);
                assert_eq!(outputs(Collective::ReduceScatter), mine);
                let reduced = if rank == 2 { whole(&all, count) } else { Vec::new() };
                assert_eq!(outputs(Collective::Reduce), reduced);
                assert_eq!(outputs(Collective::Broadcast), whole(&|i| input(2, i), count));
                let gathered = whole(&|i| input(i / count, i % count), NRANKS * count);
                assert_eq!(outputs(Collective::AllGather), gathered);
                let at_root = if rank == 2 { gathered } else { Vec::new() };
                assert_eq!(outputs(Collective::Gather), at_root);
                let scattered = whole(&|i| input(2, rank * count + i), count);
                assert_eq!(outputs(Collective::Scatter), scattered);
                let exchanged = |i: usize| input(i / count, rank * count + i % count);
                assert_eq!(outputs(Collective::AllToAll), whole(&exchanged, NRANKS * count));
                assert!(outputs(Collective::Barrier).is_empty());
            }
        }
    }

    #[test]
    fn nothing_is_copied_onto_itself() {
        let places =
            [RankBuffers { input: 100, output: 100 }, RankBuffers { input: 210, output: 200 }];
        let mut copies = 0;
        for collective in [Collective::AllGather, Collective::Broadcast] {
            let shape = PieceShape { collective, root: 0, count: 10, size: 1 };
            pieces(&shape, &places, (0, 1), |sources, targets, _| {
                assert!(!targets.contains(&sources[0]));
                copies += targets.len();
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(copies, 3);
    }

    #[test]
    fn parts_cover_a_block_and_begin_at_whole_lines() {
        for (count, size, nparts) in [(1000, 4, 3), (7, 8, 4), (129, 1, 2), (0, 2, 2)] {
            let mut next = 0;
            for part in 0..nparts {
                let (first, len) = share(count, size, part, nparts);
                assert!(len == 0 || first == next && first * size % GRAIN == 0);
                next += len;
            }
            assert_eq!(next, count);
        }
    }
}
