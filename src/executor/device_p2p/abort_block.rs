//! How the host and one rank's kernels tell each other to stop: a block of pinned memory.
#![allow(unsafe_code)]

use crate::device::cuda::{Address, DeferredFree, Device, Pinned, abi};
use crate::error::Result;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::fmt;
use std::sync::Arc;

/// A rank's word to its kernels, and theirs.
pub struct AbortBlock {
    pinned: DeferredFree<Pinned>,
}

// SAFETY: after `new`, the memory is read and written by atomics only, and what a report says is
// read after its last word.
unsafe impl Sync for AbortBlock {}

impl AbortBlock {
    pub fn new(device: &Arc<Device>) -> Result<AbortBlock> {
        let pinned = DeferredFree::<Pinned>::of(device, size_of::<abi::Control>())?;
        // SAFETY: fresh memory of as many bytes, of which nobody else knows yet.
        unsafe { pinned.pointer().write_bytes(0, size_of::<abi::Control>()) };
        Ok(AbortBlock { pinned })
    }

    /// No kernel reads or writes it any more.
    pub(super) fn release(self) {
        self.pinned.release();
    }

    /// As the device addresses it.
    pub(super) fn address(&self) -> Address {
        self.pinned.pointer().expose_provenance() as Address
    }

    fn control(&self) -> *const abi::Control {
        self.pinned.pointer().cast_const().cast()
    }

    /// A word for each block.
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let flags = self.pinned.pointer().cast_const().cast::<abi::Flag>();
        // SAFETY: the first thing in the block: as many flags, whose words the kernels only read.
        (0..abi::BARRIER_BLOCKS).map(move |block| unsafe { &*flags.add(block).cast::<AtomicU64>() })
    }

    /// Kernels of the rank end, those that run and those that have not begun.
    pub fn stop(&self) {
        // Relaxed: kernels poll them, and nothing else depends on them.
        self.words().for_each(|word| word.store(1, Relaxed));
    }

    pub fn is_stopped(&self) -> bool {
        // Relaxed: as above.
        self.words().next().is_some_and(|word| word.load(Relaxed) != 0)
    }

    /// Where and why a kernel of the rank has ended early, if one has.
    pub fn ending(&self) -> Option<Ending> {
        // SAFETY: the word that the kernels write last.
        let reason = unsafe { &*(&raw const (*self.control()).report.reason).cast::<AtomicU32>() };
        // Acquire: pairs with the system fence before the kernel's store.
        match reason.load(Acquire) {
            0 => None,
            // SAFETY: written before the reason, once.
            _ => Some(Ending(unsafe { (&raw const (*self.control()).report).read() })),
        }
    }
}

/// A wait of a kernel that ended without what it waited for.
#[derive(Clone, Copy, Debug)]
pub struct Ending(abi::Report);

impl Ending {
    /// The deadline passed; else it was told to stop.
    pub fn is_late(&self) -> bool {
        self.0.reason == abi::LATE
    }

    /// The rank that was waited for.
    pub fn peer(&self) -> usize {
        self.0.peer as usize
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let abi::Report { waiting, peer, block, step, wanted, found, .. } = self.0;
        let what = match waiting {
            abi::FOR_MESSAGE => "a message",
            abi::FOR_SLOT => "a free slot",
            abi::FOR_BARRIER => "the barrier",
            abi::FOR_LINES => "the lines",
            _ => "the probe",
        };
        write!(f, "a kernel waited for {what} of rank {peer} (block {block}, ")?;
        if matches!(waiting, abi::FOR_MESSAGE | abi::FOR_SLOT) {
            write!(f, "step {step}, ")?;
        }
        write!(f, "number {wanted}, found {found})")
    }
}
