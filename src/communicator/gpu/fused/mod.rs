//! Fused kernels: one launch does the work of all ranks of a process.

pub(super) mod launch;
pub(super) mod launch_barrier;
