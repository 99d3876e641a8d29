//! Memory of calls: buffers that the user registered, and shared scratch.

pub(super) mod registration;
pub(super) mod shared_scratch;
