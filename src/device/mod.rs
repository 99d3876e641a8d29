//! Memory and arithmetic of one device: what a rank reduces and copies with.
//!
//! A device knows elements and addresses, never ranks: the same [`host::Job`] serves a ring hop, a
//! tree node and a one-shot exchange.

pub mod cuda;
pub mod host;
