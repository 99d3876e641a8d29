//! Memory of calls: buffers that the user registered, and shared scratch.

pub(super) mod peer_regions;
pub(super) mod shared_scratch;
