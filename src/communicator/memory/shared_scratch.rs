//! The scratch that the ranks of a machine share for calls in windows.
//!
//! The first call that would go through it opens it, on all ranks or on none: a rank may have no
//! descriptor or address space for its own, or no room to map a peer's, and then all go through
//! slots. (Memory is committed as it is first written, as that of slots is.) Nothing is allocated
//! or mapped before or after; what was mapped in vain goes with the communicator.
#![allow(unsafe_code)]

use super::peer_regions::Registrations;
use crate::error::Result;
use crate::executor::direct::run::{BufferAddresses, BufferLocation};
use crate::executor::links::Links;
use crate::executor::shm_two_shot;
use crate::transport::fifo::Stamp;
use crate::transport::shm_export;
use crate::transport::wait::WaitCheck;

/// How often it is tried to open the scratch. A mailbox may be full of other descriptors, or the
/// kernel have too many of them under way, as where many ranks send theirs at once: by the next
/// call they have been taken out.
const MOST_TRIES: u32 = 3;

/// Exported memory of this rank's.
struct ExportedRegion {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: memory of the process, which only calls in their turn use.
unsafe impl Send for ExportedRegion {}

impl ExportedRegion {
    fn new(bytes: usize) -> Result<ExportedRegion> {
        Ok(ExportedRegion { address: shm_export::allocate(bytes)?, bytes })
    }
}

impl Drop for ExportedRegion {
    fn drop(&mut self) {
        // It is in the table since it was allocated.
        let _ = shm_export::release(self.address);
    }
}

#[derive(Default)]
pub struct SharedScratch {
    mine: Option<ExportedRegion>,
    /// Where the peers find it, once all ranks reach all scratch.
    open: Option<u64>,
    /// How often not all of them did. The same on all ranks.
    failed: u32,
}

impl SharedScratch {
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// It is not tried any more.
    pub fn is_given_up(&self) -> bool {
        self.failed >= MOST_TRIES
    }

    /// Make this rank's, and see with the others whether all reach all of it: the answer is that of
    /// all ranks, who all call this.
    #[cold]
    pub fn open(
        &mut self,
        bytes: usize,
        memory: &mut Registrations,
        links: &mut Links,
        stamp: &Stamp,
        watch: &dyn WaitCheck,
    ) -> Result<bool> {
        // Without memory it is nowhere, which the others are told.
        self.mine = ExportedRegion::new(bytes).ok();
        memory.drop_withdrawn();
        let located = self.mine.as_ref().map(|mine| memory.export_range(mine.address, mine.bytes));
        let region =
            located.and_then(Result::ok).map_or(BufferLocation::PRIVATE, |(region, _)| region);
        let mut resolve = |theirs: &_, used: &_| memory.resolve(theirs, used);
        if shm_two_shot::open(&at(region, 1.0), bytes, &mut resolve, links, stamp, watch)? {
            self.open = Some(region);
            return Ok(true);
        }
        // What a peer could not open is sent once: the next try is with another one.
        self.mine = None;
        self.failed += 1;
        Ok(false)
    }

    /// What peers are told in a call, and this rank's scratch.
    pub fn scratch_addresses(&self, scalar: f64) -> (BufferAddresses, *mut u8) {
        let (Some(region), Some(mine)) = (self.open, &self.mine) else {
            unreachable!("asked after it was opened");
        };
        (at(region, scalar), mine.address)
    }
}

/// Input and output are both what begins with the region.
fn at(region: u64, scalar: f64) -> BufferAddresses {
    BufferAddresses {
        input_region: region,
        output_region: region,
        in_place: 1,
        scalar,
        ..BufferAddresses::default()
    }
}
