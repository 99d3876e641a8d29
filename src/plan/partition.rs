//! Where chunks lie: the one type that turns a chunk number into an offset and a length.

/// A run of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    /// Elements before it.
    pub offset: usize,
    /// Elements in it.
    pub count: usize,
}

/// A count of elements split into parts: covering, disjoint, ordered and balanced.
///
/// Cuts are at multiples of a grain, which is one element where nobody asks for more. The first
/// parts are one grain longer than the rest, as many as grains are left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    count: usize,
    parts: usize,
    grain: usize,
}

impl Partition {
    pub fn new(count: usize, parts: usize) -> Partition {
        Partition::in_grains(count, parts, 1)
    }

    /// Cut at multiples of `grain` elements only.
    pub fn in_grains(count: usize, parts: usize, grain: usize) -> Partition {
        assert!(parts > 0 && grain > 0, "a partition has at least one part");
        Partition { count, parts, grain }
    }

    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Where part `index` lies.
    pub fn extent(&self, index: usize) -> Extent {
        assert!(index < self.parts, "part {index} of {}", self.parts);
        let grains = self.count.div_ceil(self.grain);
        let (short, longer) = (grains / self.parts, grains % self.parts);
        let cut = |index: usize| {
            (index * short + index.min(longer)).saturating_mul(self.grain).min(self.count)
        };
        let offset = cut(index);
        Extent { offset, count: cut(index + 1) - offset }
    }

    /// Elements in the longest part.
    pub fn longest(&self) -> usize {
        let grains = self.count.div_ceil(self.grain).div_ceil(self.parts);
        grains.saturating_mul(self.grain).min(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn five_over_four_is_two_one_one_one() {
        let counts = |count, parts| {
            let partition = Partition::new(count, parts);
            (0..parts).map(|part| partition.extent(part).count).collect::<Vec<_>>()
        };
        assert_eq!(counts(5, 4), [2, 1, 1, 1]);
        assert_eq!(counts(3, 4), [1, 1, 1, 0]);
        assert_eq!(counts(0, 2), [0, 0]);
    }

    proptest! {
        #[test]
        fn parts_cover_in_order_without_overlap_and_are_balanced(
            count in prop_oneof![0..1000usize, Just(usize::MAX / 2)],
            parts in 1..300usize,
            grain in prop_oneof![Just(1), 1..200usize],
        ) {
            let partition = Partition::in_grains(count, parts, grain);
            let mut next = 0;
            for part in 0..parts {
                let Extent { offset, count: len } = partition.extent(part);
                prop_assert_eq!(offset, next);
                prop_assert!(offset % grain == 0 || offset == count);
                prop_assert!(len <= partition.longest());
                let is_short = offset + len < count && len + grain < partition.longest();
                prop_assert!(!is_short, "part {} of {:?}", part, partition);
                next = offset + len;
            }
            prop_assert_eq!(next, count);
        }
    }
}
