//! How ranks of different machines find each other, and how nobody else gets in.
//!
//! A [`AuthListener`] listens and lets in whoever proves the unique id's secret; a [`Dial`] proves
//! it to another rank's listener. [`meet`] brings all ranks of an id together over such
//! connections: a short contact with the root, then a tree. What speaks a protocol here is fed with
//! streams and time, so that the same code runs on sockets and on a simulated network.
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
pub(super) mod listener;
pub(super) mod pending;
pub(super) mod secure_frame;
pub(super) mod socket;
pub(super) mod stream_traits;

pub use connect::{Connecting, Dial, Proved};
pub use handshake::{ANSWER, HELLO, Handshake, Keys, PROOF, SharedSecret};
pub use hello::{ANYONE, GREETING, Hello, Purpose, ROOT};
pub use interface::{Interface, interfaces};
pub use listener::{AuthListener, MOST_ADDRESSES, NetworkConfig};
#[cfg(test)]
pub use pending::PendingPeers;
pub use pending::{AdmissionStats, ProvenConnection};
#[cfg(test)]
pub(crate) use secure_frame::encoded;
pub use secure_frame::{Framed, LENGTH, MAX_FRAME, OVERHEAD, Opener, Sealer, StreamEnd};
#[cfg(test)]
pub use socket::USER_TIMEOUT;
pub use socket::{OsNetwork, TcpSocket, is_deserted};
pub use stream_traits::{ByteStream, Network, is_not_yet};

pub use crate::error::Refusal;
