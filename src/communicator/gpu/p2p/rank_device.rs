//! A rank's device as the ranks of its process know it, and what the rank brings to one call.

use super::kernel_select::GpuSettings;
use crate::communicator::gpu::DeviceStream;
use crate::device::cuda::{Capture, Device, Event, Kernels};
use crate::executor::device_work::RankBuffers;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::sync::Arc;
use std::thread::ThreadId;

/// What a rank leaves with the others for good.
pub struct RankDevice {
    pub device: Arc<Device>,
    pub kernels: Option<Arc<Kernels>>,
    /// The rank's stream has come to the call.
    pub before: Event,
    /// The device has done its part of the last call, where this is its first rank; and of the
    /// last one that was captured.
    pub after: Event,
    pub after_captured: Event,
    pub asked: GpuSettings,
}

impl RankDevice {
    /// The moment after a call in or outside of a capture.
    pub fn after(&self, capture: Capture) -> &Event {
        if capture == Capture::No { &self.after } else { &self.after_captured }
    }
}

/// What a rank brings to one call.
pub struct RankCall {
    pub place: RankBuffers,
    pub collective: Collective,
    pub count: usize,
    pub data_type: DataType,
    pub op: ReduceOp,
    pub root: usize,
    pub scalar: f64,
    pub fingerprint: u64,
    pub stream: DeviceStream,
    pub capture: Capture,
    /// Kernels of the rank's own device can do its part.
    pub is_fusable: bool,
    /// Kernels of other devices can, too.
    pub is_plain: bool,
    pub thread: ThreadId,
}
