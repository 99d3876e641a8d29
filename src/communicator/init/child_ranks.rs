//! How a communicator and one that is made of its ranks number them.
//!
//! While the new one is made, its ranks are known by their numbers there, in errors and on pages
//! that the others read. Its users know those of the communicator that it is made of: so what
//! comes out has these, and what goes in, on account of that communicator, has the new ones.

use crate::bootstrap::BootstrapError;
use crate::error::Error;

/// The ranks of the new communicator in order, by their numbers in the old one.
#[derive(Clone, Copy)]
pub(in crate::communicator) struct ChildRanks<'a>(pub &'a [usize]);

impl ChildRanks<'_> {
    /// An error that goes in. Who is no rank there has a number behind theirs.
    pub fn to_child(self, error: Error) -> Error {
        let place = |rank| self.0.iter().position(|other| *other == rank);
        error.renumbered(|rank| place(rank).unwrap_or_else(|| self.0.len().saturating_add(rank)))
    }

    /// An error that comes out.
    pub fn to_parent(self, unmet: BootstrapError) -> BootstrapError {
        let count = self.0.len();
        let number = |place: usize| self.0.get(place).copied().unwrap_or_else(|| place - count);
        BootstrapError { error: unmet.error.renumbered(number), ..unmet }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RankProcess;

    #[test]
    fn what_goes_in_comes_out_as_it_was() {
        let numbering = ChildRanks(&[4, 1, 0]);
        let text = "rank 2 (host b, pid 7) died: rank 4 cannot go on".to_string();
        let (rank, peer, operation) = (1, RankProcess::unmet(4), None);
        let error = Error::Remote { rank, peer, operation, text };
        let inside = numbering.to_child(error.clone());
        let told = inside.to_string();
        assert!(told.starts_with("rank 0 failed and rank 1 cannot go on"), "{told}");
        assert!(told.ends_with("rank 5 (host b, pid 7) died: rank 0 cannot go on"), "{told}");
        assert_eq!(numbering.to_parent(BootstrapError::there(inside)).error, error);
    }
}
