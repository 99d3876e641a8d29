//! Peer-to-peer kernels: kernels of all ranks that wait for each other by flags.

mod kernel_calibration;
pub(super) mod kernel_select;
pub(super) mod peer_access_probe;
mod process_calibration;
mod process_calls;
pub(super) mod processes;
pub(super) mod threads;
