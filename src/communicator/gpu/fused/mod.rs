//! Fused kernels: one launch does the work of all ranks of a process.

pub(super) mod barrier;
pub(super) mod launch;
