//! Transports: how bytes get from one rank to another, and how a rank waits for them.
//!
//! On one host a connection is a ring of slots ([`fifo`]) in memory that both ends address: a
//! [`segment`]. User memory that is shared beforehand ([`shm_export`]) needs no slots, nor what the
//! kernel copies from a peer's ([`cma`]). Every wait goes through [`wait`], which also sees peers
//! die ([`pidfd`]). Other hosts are reached through what implements the traits of [`network`]:
//! [`tcp`], beside whose sockets an [`engine`] of the cluster's may carry the messages.

pub mod cma;
pub mod core_distance;
pub mod engine;
pub mod fifo;
pub mod network;
pub mod pidfd;
pub mod segment;
pub mod shm_export;
pub mod tcp;
pub mod wait;

mod fd_mailbox;
mod prefetch;
mod shm_import;

/// Slots of a connection where the buffer size allows; two is the least a ring algorithm needs.
/// With as many as give a ring of 4 MiB, writers meet lines that both second-level caches have let
/// go: 64 KiB between two processes take 3.6 us, with a quarter of it 6.1 us, with twice as much no
/// less (`benches/results/constants-2026-11-21.txt`).
pub const DEPTH: usize = 32;
