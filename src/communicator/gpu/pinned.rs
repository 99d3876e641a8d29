//! Pinned memory that comes and goes between the launches of kernels that wait for each other, not
//! while some of a call are launched and others are not.

use super::company::beside_companies;
use crate::device::cuda::{Device, Pinned};
use crate::error::Result;
use std::sync::Arc;

/// Pinned memory, there until this is dropped.
pub struct Steady(Option<Pinned>);

impl Steady {
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Steady> {
        let _one_order = beside_companies();
        Pinned::new(device, bytes).map(|pinned| Steady(Some(pinned)))
    }

    pub fn pointer(&self) -> *mut u8 {
        self.0.as_ref().map_or(std::ptr::null_mut(), Pinned::pointer)
    }

    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, Pinned::bytes)
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        let _one_order = beside_companies();
        self.0 = None;
    }
}
