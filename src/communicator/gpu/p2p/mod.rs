//! Peer-to-peer kernels: kernels of all ranks that wait for each other by flags.

pub(super) mod kernel_calibration;
pub(super) mod kernel_select;
pub(super) mod peer_access_probe;
pub(super) mod rank_device;
pub(super) mod threads;
