//! Transports between hosts: one suite for what `ringcomm::transport::network` promises, run
//! against every implementation, and what each implementation promises beside.

mod conformance;
mod engines;
mod faults;
#[path = "../support/fixture_plugin.rs"]
mod fixture_plugin;
mod plugins;
#[path = "../support/skips.rs"]
mod skips;
mod tcp;
