//! How ranks of different machines find each other, and how nobody else gets in.
//!
//! A [`Gate`] listens and lets in whoever proves the unique id's secret; a [`Dial`] proves it to
//! another rank's gate. [`meet`] brings all ranks of an id together over such connections: a short
//! contact with the root, then a tree. What speaks a protocol here is fed with streams and time, so
//! that the same code runs on sockets and on a simulated network.
//!
//! [`meet`]: super::allgather::meet
//!
//! [`meet`]: super::allgather::meet
//!
//! [`meet`]: super::allgather::meet
//!
//! [`meet`]: super::allgather::meet

pub(super) mod connect;
pub(super) mod handshake;
pub(super) mod hello;
mod interface;
pub(super) mod io;
pub(super) mod listener;
pub(super) mod pending;
pub(super) mod secure_frame;
pub(super) mod socket;

pub use connect::{Dial, Dialling, Proved};
pub use handshake::{ANSWER, HELLO, Handshake, Keys, PROOF, Secret};
pub use hello::{ANYONE, GREETING, Greeting, Purpose, ROOT};
pub use interface::{Interface, interfaces};
pub use io::{Network, Stream, is_not_yet};
pub use listener::{Gate, MOST_ADDRESSES, NetworkConfig};
#[cfg(test)]
pub use pending::Lobby;
pub use pending::{Arrival, Tally};
pub use secure_frame::{End, Framed, MAX_FRAME, OVERHEAD, Opener, Sealer};
pub use socket::{Kernel, Socket, is_deserted};
#[cfg(test)]
pub use socket::{USER_TIMEOUT, congestion_control};

/// Why bytes were not what they should have been.
pub type Refusal = &'static str;
