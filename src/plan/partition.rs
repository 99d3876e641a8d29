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
/// The first `count % parts` parts are one element longer than the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    count: usize,
    parts: usize,
}

impl Partition {
    pub fn new(count: usize, parts: usize) -> Partition {
        assert!(parts > 0, "a partition has at least one part");
        Partition { count, parts }
    }

    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Where part `index` lies.
    pub fn extent(&self, index: usize) -> Extent {
        assert!(index < self.parts, "part {index} of {}", self.parts);
        let (short, longer) = (self.count / self.parts, self.count % self.parts);
        Extent {
            offset: index * short + index.min(longer),
            count: short + usize::from(index < longer),
        }
    }

    /// Elements in the longest part.
    pub fn longest(&self) -> usize {
        self.count.div_ceil(self.parts)
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
        ) {
            let partition = Partition::new(count, parts);
            let mut next = 0;
            for part in 0..parts {
                let Extent { offset, count } = partition.extent(part);
                prop_assert_eq!(offset, next);
                prop_assert!(count == partition.longest() || count + 1 == partition.longest());
                next = offset + count;
            }
            prop_assert_eq!(next, count);
        }
    }
}
