//! Peers' exported memory, as this process maps it.
//!
//! A mapping keeps the memory behind it alive, so one that its owner has given up can never crash;
//! it only takes room. The owner leaves a mark behind the region's last page, by which importers
//! find what to unmap once they use none of it.
#![allow(unsafe_code)]

use super::segment::Segment;
use super::shm_export::{contains, file_bytes, page};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering::Acquire};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// The regions that one communicator's peers have sent.
#[derive(Default)]
pub struct ShmImports {
    regions: BTreeMap<u64, Import>,
}

struct Import {
    /// The region and the page of its mark.
    segment: Segment,
    bytes: usize,
}

impl Import {
    fn is_withdrawn(&self) -> bool {
        // SAFETY: the mark is the first word of the page behind the region, which `segment` maps.
        let mark = unsafe { &*self.segment.address().add(self.bytes).cast::<AtomicU64>() };
        // Acquire: pairs with the system call that marks, so that this is the owner's last word.
        mark.load(Acquire) != 0
    }
}

impl ShmImports {
    /// Map a region that a peer sent. One that is mapped already stays as it is.
    pub fn import(&mut self, region: u64, descriptor: OwnedFd, bytes: usize) -> Result<()> {
        if self.regions.contains_key(&region) {
            return Ok(());
        }
        let whole = file_bytes(bytes)
            // The mark is an aligned word: it lies at the start of a page.
            .filter(|_| bytes > 0 && bytes.is_multiple_of(page()))
            .ok_or_else(|| {
                Error::usage(format!(
                    "a peer sent a region of {bytes} bytes, which are not whole pages; all ranks \
                     must run the same version"
                ))
            })?;
        let segment = Segment::map(descriptor, whole)?;
        self.regions.insert(region, Import { segment, bytes });
        Ok(())
    }

    /// The address of a range of a region, if the region is mapped and holds all of it.
    ///
    /// Where the range lies is a peer's claim: nothing outside of the mapping is ever returned.
    pub fn resolve(&self, region: u64, offset: usize, bytes: usize) -> Option<*mut u8> {
        let import = self.regions.get(&region)?;
        let inside = contains(0, import.bytes, offset, bytes);
        // SAFETY: the offset lies in the mapping, or is its end where there are no bytes.
        inside.then(|| unsafe { import.segment.address().add(offset) })
    }

    /// Unmap what its owners have given up. Addresses that [`ShmImports::resolve`] returned may be
    /// among it, so this is for when none of them is in use.
    pub fn forget_withdrawn(&mut self) {
        self.regions.retain(|_, import| !import.is_withdrawn());
    }
}
