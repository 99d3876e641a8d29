//! ringcomm: collective communication for CPUs and GPUs behind a stable C ABI.
//!
//! A collective is a [`plan`]: a pure function of the rank turned into a list of steps. Layers
//! point downwards only; `ARCHITECTURE.md` is the map.

#![deny(unsafe_code)]

pub mod algorithm;
pub mod bootstrap;
pub mod clock;
pub mod communicator;
pub mod config;
pub mod device;
pub mod error;
pub mod executor;
pub mod ffi;
pub mod fork;
pub mod host;
pub mod plan;
pub mod suggest;
pub mod sync;
pub mod tcp_liveness;
pub mod thread_signals;
pub mod transport;
pub mod types;

mod eventfd;
