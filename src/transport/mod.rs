//! Transports: how bytes get from one rank to another, and how a rank waits for them.
//!
//! A connection is a ring of slots ([`fifo`]) in memory that both ends address: a [`segment`],
//! later device memory or the two ends of a socket. User memory that is shared beforehand
//! ([`exports`]) needs no slots, nor what the kernel copies from a peer's ([`kernel`]). Every wait
//! goes through [`wait`], which also sees peers die ([`process`]).

pub mod distance;
pub mod exports;
pub mod fifo;
pub mod kernel;
pub mod process;
pub mod segment;
pub mod tcp;
pub mod wait;

mod imports;
mod mailbox;
mod prefetch;
