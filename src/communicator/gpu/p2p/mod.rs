//! Peer-to-peer kernels: kernels of all ranks that wait for each other by flags.

pub(super) mod peer_access_probe;
mod process_calls;
pub(super) mod processes;
pub(super) mod select;
pub(super) mod threads;
mod trial;
mod trial_processes;
