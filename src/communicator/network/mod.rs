//! The control thread of a rank whose communicator spans several hosts.

mod engine;

pub use engine::{Engine, Start};
