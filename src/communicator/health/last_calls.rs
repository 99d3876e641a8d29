//! Whether ranks make the same calls, also where no call follows that would tell.

use super::wait_check::{CommHealth, LOOK_BACK};
use crate::communicator::call::rank_state;
use crate::error::{Error, Operation, Result};
use crate::sync::atomic::Ordering::Relaxed;

impl CommHealth {
    pub(super) fn mismatch(&self, peer: usize, mine: Operation, theirs: Operation) -> Error {
        let (rank, peer) = (self.pages.rank, self.who(peer));
        Error::Mismatch { rank, mine, peer, theirs: Box::new(theirs) }
    }

    /// A peer that made another call than this rank under this number, or one of the last before.
    pub(in crate::communicator) fn check_calls(&self, other: usize, last: u64) -> Result<()> {
        let (mine, page) = (self.pages.mine(), self.pages.of(other));
        for sequence in last.saturating_sub(LOOK_BACK)..=last {
            if let (Some(mine), Some(theirs)) = (mine.record(sequence), page.record(sequence))
                && mine.fingerprint.load(Relaxed) != theirs.fingerprint.load(Relaxed)
            {
                let (mine, theirs) = (rank_state::operation(mine), rank_state::operation(theirs));
                return Err(self.mismatch(other, mine, theirs));
            }
        }
        Ok(())
    }
}
