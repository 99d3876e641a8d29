//! Transports: how bytes get from one rank to another, and how a rank waits for them.
//!
//! A connection is a ring of slots ([`fifo`]) in memory that both ends address: a [`segment`],
//! later device memory or the two ends of a socket. User memory that is shared beforehand
//! ([`shm_export`]) needs no slots, nor what the kernel copies from a peer's ([`cma`]). Every wait
//! goes through [`wait`], which also sees peers die ([`pidfd`]).

pub mod cma;
pub mod core_distance;
pub mod fifo;
pub mod pidfd;
pub mod segment;
pub mod shm_export;
pub mod tcp;
pub mod wait;

mod fd_mailbox;
mod prefetch;
mod shm_import;
