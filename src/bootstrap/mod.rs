//! How ranks find each other: the unique id, and the authenticated rendezvous it leads to.
//!
//! The id carries a secret. From it every rank derives one unguessable name in the abstract socket
//! namespace; whoever binds that name first coordinates, and the others prove that they know the
//! secret before a byte of theirs is believed. Nothing in the file system, no thread, nothing that
//! outlives a killed process.

mod bulletin;
mod candidate;
mod coordinator;
mod exchange;
mod id;
mod inbox;
mod member;
pub mod network;
mod porch;
mod process;
pub mod rendezvous;
mod socket;
mod unmet;
pub mod wire;

pub use exchange::{
    Absent, Contribution, Doubts, MAX_FDS, Member, exchange, exchange_unless, rendezvous_name,
};
pub use id::UniqueId;
pub use process::process_token;
pub use unmet::{Cause, Unmet};
pub use wire::MAX_PAYLOAD;
