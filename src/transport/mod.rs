//! Transports (bring-up).
pub mod exports;
pub mod fifo;
pub mod process;
pub mod segment;
pub mod wait;
