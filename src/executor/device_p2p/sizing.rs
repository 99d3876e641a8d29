//! How much of everything a rank's kernels have, and where it lies.

use crate::config::DEFAULT_BUFF_SIZE;
use crate::device::cuda::abi;

/// Blocks of a kernel that waits, on a device that others compute on. A block has 64 KiB of loads
/// under way (two sources of 32 bytes times 512 threads, read and being written); 450 GB/s over
/// a link with 2 us there and back need 900 KB. Twice as many leave room for a slower one.
const MOST_BLOCKS: usize = 32;

/// Slots of a connection: as many as let plans run in stages.
pub(super) const DEPTH: usize = crate::plan::PIPELINE_DEPTH;

/// A slot worth a barrier: what two round trips of a link, 4 us, carry on one block's 64 KiB in
/// 2 us, less than which the flags cost more than the bytes.
const USEFUL_SLOT: usize = 8 << 10;

/// A slot worth a block's time where blocks share one device's memory. A step moves three times as
/// many bytes (it reads two slots or buffers and writes one), of which 132 blocks at 4.3 TB/s take
/// 12 us; between two steps its threads meet and wait for memory, about a microsecond in which no
/// other block of the multiprocessor works.
const LONG_SLOT: usize = 128 << 10;

/// What long slots of all ranks of a device, and as much scratch, may take of it at most: eight
/// ranks on 132 multiprocessors need 896 MiB.
const MOST_LONG_BYTES: usize = 1 << 30;

/// Bytes of everything that somebody polls: a line of its own.
pub(super) const FLAG: usize = size_of::<abi::Flag>();

/// Numbers that all ranks of a communicator agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pSizing {
    pub nranks: usize,
    /// Blocks that a rank's kernels have at most.
    pub blocks: usize,
    /// Lines of an inbox for each peer and half.
    pub lines: usize,
    /// Connections between two ranks.
    pub channels: usize,
    pub slot_bytes: usize,
    /// Scratch of plans.
    pub scratch_bytes: usize,
}

impl P2pSizing {
    /// For devices with so many multiprocessors each rank (of the smallest), under a budget for
    /// what peers write to: half is the inbox, half are slots.
    pub fn new(nranks: usize, multiprocessors: usize, buff_size: usize) -> P2pSizing {
        // Half of a device is left to what the streams of its peers may have to wait for.
        let blocks = (multiprocessors / 2).clamp(1, MOST_BLOCKS);
        P2pSizing::with_blocks(nranks, blocks, [buff_size / 2; 2])
    }

    /// For ranks that share a device, and wait for nothing else on it. Where no budget is asked
    /// for, every block has a channel of long slots, as far as the device's memory goes.
    pub fn of_one_device(
        nranks: usize,
        multiprocessors: usize,
        buff_size: Option<usize>,
    ) -> P2pSizing {
        let blocks = (multiprocessors / nranks).clamp(1, abi::BARRIER_BLOCKS);
        let long = (nranks - 1).max(1) * blocks * DEPTH * LONG_SLOT;
        let halves = match buff_size {
            Some(bytes) => [bytes / 2; 2],
            None => [DEFAULT_BUFF_SIZE / 2, long.min(MOST_LONG_BYTES / (2 * nranks))],
        };
        P2pSizing::with_blocks(nranks, blocks, halves)
    }

    fn with_blocks(nranks: usize, blocks: usize, [inbox, slots]: [usize; 2]) -> P2pSizing {
        let peers = (nranks - 1).max(1);
        let slot = |channels: usize| slots / (peers * channels * DEPTH) / FLAG * FLAG;
        let channels = (1..=blocks).rev().find(|channels| slot(*channels) >= USEFUL_SLOT);
        let channels = channels.unwrap_or(1);
        P2pSizing {
            nranks,
            blocks,
            lines: (inbox / (2 * nranks * size_of::<abi::Line>())).max(1),
            channels,
            slot_bytes: slot(channels).max(FLAG),
            scratch_bytes: slots.next_multiple_of(FLAG),
        }
    }

    /// Bytes of a rank's ground.
    pub fn ground_bytes(&self) -> usize {
        self.slots(self.channels, 0)
    }

    /// Bytes of it that are zero before the first kernel runs: all but the slots.
    pub fn cleared_bytes(&self) -> usize {
        self.slots(0, 0)
    }

    /// The payload that one-shot takes.
    pub fn inbox_bytes(&self) -> usize {
        self.lines * abi::LINE_PAYLOAD
    }

    /// Bytes of a vector of whose parts, one a rank, each crosses in one message a channel.
    pub fn bytes_at_once(&self) -> usize {
        self.nranks * self.channels * self.slot_bytes
    }

    /// Where the inbox begins; the flags of barriers are before it.
    pub(super) fn inbox(&self) -> usize {
        self.blocks * self.nranks * FLAG
    }

    /// Where the flag lies by which `peer` tells of messages in its slots.
    pub(super) fn posted(&self, channel: usize, peer: usize) -> usize {
        let inbox = 2 * self.nranks * self.lines * size_of::<abi::Line>();
        let flags = (self.inbox() + inbox).next_multiple_of(FLAG);
        flags + (channel * self.nranks + peer) * FLAG
    }

    /// Where the flag lies by which `peer` tells of slots that it has read.
    pub(super) fn freed(&self, channel: usize, peer: usize) -> usize {
        self.posted(self.channels + channel, peer)
    }

    /// Where the slots lie that `peer` writes.
    pub(super) fn slots(&self, channel: usize, peer: usize) -> usize {
        self.posted(2 * self.channels, 0) + (channel * self.nranks + peer) * DEPTH * self.slot_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_a_ground_does_not_overlap_and_fits_the_budget() {
        for (nranks, multiprocessors, bytes) in [(2, 132, 4 << 20), (8, 132, 4 << 20), (5, 3, 9)] {
            let of = P2pSizing::new(nranks, multiprocessors, bytes);
            let one = of.nranks - 1;
            assert!(of.inbox() >= of.blocks * nranks * FLAG);
            assert!(of.posted(0, 0) >= of.inbox() + 32 * nranks * of.lines);
            assert_eq!(of.posted(of.channels - 1, one) + FLAG, of.freed(0, 0));
            assert_eq!(of.freed(of.channels - 1, one) + FLAG, of.slots(0, 0));
            let last = of.slots(of.channels - 1, one) + DEPTH * of.slot_bytes;
            assert_eq!(last, of.ground_bytes());
            // Own slots are there, and not used.
            let flags = of.cleared_bytes() - 32 * nranks * of.lines;
            assert!(bytes < 100 || last - flags < 2 * bytes, "{of:?}");
        }
    }

    #[test]
    fn a_large_budget_has_channels_and_a_small_one_long_slots() {
        let large = P2pSizing::new(2, 132, 64 << 20);
        assert_eq!((large.blocks, large.channels), (32, 32));
        let small = P2pSizing::new(8, 132, 1 << 20);
        assert!(small.channels < 4 && small.slot_bytes >= USEFUL_SLOT, "{small:?}");
        let asked = P2pSizing::of_one_device(8, 132, Some(4 << 20));
        assert_eq!((asked.blocks, asked.channels, asked.slot_bytes), (16, 9, 8320));
    }

    #[test]
    fn ranks_of_one_device_have_long_slots_on_all_of_it_within_bounds() {
        for (nranks, blocks) in [(2, 66), (3, 44), (4, 33), (8, 16)] {
            let of = P2pSizing::of_one_device(nranks, 132, None);
            assert_eq!((of.blocks, of.channels), (blocks, blocks), "{of:?}");
            assert_eq!((of.slot_bytes, of.lines), (LONG_SLOT, (1 << 16) / nranks), "{of:?}");
        }
        for nranks in 1..=132 {
            let of = P2pSizing::of_one_device(nranks, 132, None);
            let slots = of.ground_bytes() - of.cleared_bytes();
            // A rank's own slots are there, and not used.
            let used = slots / nranks * (nranks - 1).max(1);
            assert!(nranks * (used + of.scratch_bytes) <= MOST_LONG_BYTES, "{of:?}");
        }
    }
}
