//! Which ranks of a communicator are on which devices.

use crate::config::{Config, DeviceChoice};
use crate::device::cuda::Device;
use crate::error::Result;
use std::sync::Arc;
use std::thread::ThreadId;

/// Which ranks of a communicator there are beside this one.
pub struct PeerSummary {
    pub nranks: usize,
    /// All are threads of this process.
    pub together: bool,
    /// All are on this machine.
    pub near: bool,
    /// Of connection buffers, by the configuration.
    pub buff_size: usize,
    /// Of a portion of a long call through the host.
    pub portion_bytes: usize,
}

/// Settle on which device a communicator is made that another thread will put together.
pub fn pin_current_device(config: &mut Config) {
    if config.device == DeviceChoice::Current {
        config.device = Device::current().map_or(DeviceChoice::Host, DeviceChoice::Context);
    }
}

/// The device that a configuration asks for.
pub fn device(config: &Config) -> Result<Option<Arc<Device>>> {
    match config.device {
        DeviceChoice::Host => Ok(None),
        DeviceChoice::Current => Device::current().map(Device::of_context).transpose(),
        DeviceChoice::Context(token) => Device::of_context(token).map(Some),
        DeviceChoice::Device(ordinal) => Device::of_ordinal(ordinal).map(Some),
    }
}

/// On which devices the ranks of a new communicator are, as far as one of them knows.
#[derive(Default)]
pub struct DevicePlacement {
    /// This rank's device, if it is on one.
    pub device: Option<Arc<Device>>,
    /// Every rank is on a device; some rank is.
    pub all: bool,
    pub any: bool,
    /// The thread that asked for all ranks, where one did.
    pub maker: Option<ThreadId>,
}

impl DevicePlacement {
    /// What the ranks have said of themselves.
    pub fn among(&mut self, are_on_devices: impl Iterator<Item = bool>) {
        (self.all, self.any) = (true, false);
        for is_on_device in are_on_devices {
            self.all &= is_on_device;
            self.any |= is_on_device;
        }
    }
}
