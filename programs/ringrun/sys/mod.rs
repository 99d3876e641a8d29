//! The operating system's side: polling of descriptors, and signals.

pub(super) mod poll;
pub(super) mod signals;
pub(super) mod terminal;
