//! The control plane between machines: what every rank knows of the others' pages.
//!
//! A rank on another machine has a mirror of its page here, which looks like a page to everybody
//! else. One thread a communicator ([`handle`]) keeps the mirrors true: it holds connections to a
//! few neighbours, over which everybody's news is passed on ([`gossip`]) as [`frame`]s of a
//! [`status`] each. It also lets in and makes the connections that data moves over.

pub mod frame;
pub mod gossip;
pub mod status;

mod handle;
#[cfg(test)]
#[path = "tests/simulation.rs"]
mod simulation;
pub(super) mod state_machine;
mod thread;

pub(super) use handle::RemoteLinks;
pub use handle::{ControlThread, Publisher, Start};
