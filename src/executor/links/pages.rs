//! The pages of all ranks, for threads that look on while another one runs an operation.
#![allow(unsafe_code)]

use super::SegmentMap;
use crate::executor::control_block::ControlBlock;
use crate::executor::control_block::device::DevicePage;
use crate::transport::segment::Segment;
use std::sync::Arc;

/// A control page inside a segment that `Links::segments` keeps alive.
#[derive(Clone, Copy)]
pub(super) struct ControlPage(pub *const ControlBlock);

// SAFETY: a control page is all atomics; the segment behind it outlives the pointer (Links, Pages).
unsafe impl Send for ControlPage {}
// SAFETY: as above.
unsafe impl Sync for ControlPage {}

/// The control pages alone, for threads that look on: abort, dump, the watch.
#[derive(Clone)]
pub struct Pages {
    pub rank: usize,
    pub(super) controls: Vec<ControlPage>,
    pub(super) _segments: Vec<Arc<Segment>>,
}

impl Pages {
    /// The pages at the start of every rank's segment.
    pub fn new(rank: usize, segments: Vec<Arc<Segment>>) -> Pages {
        assert!(segments.iter().all(|segment| segment.bytes() >= SegmentMap::mirror_bytes()));
        let page = |segment: &Arc<Segment>| ControlPage(segment.address().cast());
        Pages { rank, controls: segments.iter().map(page).collect(), _segments: segments }
    }

    pub fn of(&self, rank: usize) -> &ControlBlock {
        // SAFETY: the page lies in a segment that `_segments` keeps mapped.
        unsafe { &*self.controls[rank].0 }
    }

    pub fn mine(&self) -> &ControlBlock {
        self.of(self.rank)
    }

    pub fn nranks(&self) -> usize {
        self.controls.len()
    }
}

/// The pages of ranks on devices, which devices and threads that look on use.
#[derive(Clone)]
pub struct DevicePages {
    pub(super) pages: Vec<DevicePagePointer>,
    pub(super) _segments: Vec<Arc<Segment>>,
}

/// A page inside a segment that [`DevicePages`] keeps alive.
#[derive(Clone, Copy)]
pub(super) struct DevicePagePointer(pub *const DevicePage);

// SAFETY: as for a control page.
unsafe impl Send for DevicePagePointer {}
// SAFETY: as above.
unsafe impl Sync for DevicePagePointer {}

impl DevicePages {
    pub fn nranks(&self) -> usize {
        self.pages.len()
    }

    pub fn of(&self, rank: usize) -> &DevicePage {
        // SAFETY: the page lies in a segment that `_segments` keeps mapped.
        unsafe { &*self.pages[rank].0 }
    }
}
