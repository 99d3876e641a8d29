//! Ranks: how the benchmark calls one, what they share, and the job that they may be of.

pub(super) mod endpoint;
pub(super) mod job;
pub(super) mod shared_state;
