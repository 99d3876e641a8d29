//! The one switch between `std` and `loom`: lock-free code names its atomics from here.

#[cfg(not(loom))]
pub use std::sync::atomic;

#[cfg(loom)]
pub use loom::sync::atomic;
