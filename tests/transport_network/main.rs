//! Transports between hosts: one suite for what `ringcomm::transport::network` promises, run
//! against every implementation, and what each implementation promises beside.

mod conformance;
mod faults;
mod tcp;
