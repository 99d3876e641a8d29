//! How ranks find each other: the unique id, and the authenticated rendezvous it leads to.
//!
//! The id carries a secret. From it every rank derives one unguessable name in the abstract socket
//! namespace; whoever binds that name first coordinates, and the others prove that they know the
//! secret before a byte of theirs is believed. Nothing in the file system, no thread, nothing that
//! outlives a killed process.

mod addresses;
mod admission;
pub mod allgather;
mod error;
pub mod local;
mod process;
pub mod rendezvous;
#[cfg(test)]
pub mod sim;
pub mod tcp;
mod unique_id;

pub use error::{Blame, BootstrapError};
pub use local::wire::MAX_PAYLOAD;
pub use local::{
    Contribution, LivenessProbe, MAX_FDS, Member, VanishedPeer, exchange, exchange_unless,
    rendezvous_name,
};
pub use process::process_token;
pub use unique_id::UniqueId;
