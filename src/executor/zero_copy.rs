//! From how many bytes on messages are read where they lie, instead of through slots.

use super::send_recv::LOAN_BYTES;

/// What is lent: messages from so many bytes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroCopyPolicy {
    /// From memory that the receiver reaches.
    pub reached: usize,
    /// From other memory of another process, which the kernel reads.
    pub by_cma: usize,
    /// The same where nothing is received in the batch.
    pub by_cma_alone: usize,
}

impl ZeroCopyPolicy {
    /// Only what no slot holds, and only what is reached.
    pub const LEAST: ZeroCopyPolicy =
        ZeroCopyPolicy { reached: usize::MAX, by_cma: usize::MAX, by_cma_alone: usize::MAX };

    /// As [`ZeroCopyPolicy`] says, for a batch whose sends `wait` for others or not.
    pub(super) fn of(self, slot: usize, wait: bool) -> ZeroCopyPolicy {
        let least = if wait { LOAN_BYTES + 1 } else { slot + 1 };
        ZeroCopyPolicy {
            reached: self.reached.min(slot + 1).max(least),
            by_cma: if wait { self.by_cma } else { self.by_cma_alone }.max(least),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_alone_leaves_at_once_where_a_slot_holds_it() {
        let policy = ZeroCopyPolicy { reached: 100, by_cma: 200, by_cma_alone: 5000 };
        let of = |slot, wait| {
            let ZeroCopyPolicy { reached, by_cma, by_cma_alone: _ } = policy.of(slot, wait);
            (reached, by_cma)
        };
        assert_eq!(of(1000, true), (100, 200));
        assert_eq!(of(1000, false), (1001, 5000));
        assert_eq!(of(8000, false), (8001, 8001));
        assert_eq!(ZeroCopyPolicy::LEAST.of(1000, true).reached, 1001);
    }
}
