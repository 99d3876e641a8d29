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
