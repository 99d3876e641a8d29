//! How ranks of different machines find each other, and how nobody else gets in.
//!
//! A [`Gate`] listens and lets in whoever proves the unique id's secret; a [`Dial`] proves it to
//! another rank's gate. [`meet`] brings all ranks of an id together over such connections: a short
//! contact with the root, then a tree. What speaks a protocol here is fed with streams and time, so
//! that the same code runs on sockets and on a simulated network.

mod dial;
mod gate;
mod greeting;
mod handshake;
mod host;
mod interface;
mod lobby;
mod meet;
mod member;
mod message;
mod registry;
mod seal;
#[cfg(test)]
pub mod simulation;
mod socket;
mod stream;
mod tree;

pub use dial::{Dial, Dialling, Proved};
pub use gate::{Gate, NetworkConfig};
pub use greeting::{ANYONE, GREETING, Greeting, Purpose, ROOT};
pub use handshake::{ANSWER, HELLO, Handshake, Keys, PROOF, Secret};
pub(super) use interface::best_few;
pub use interface::{Interface, interfaces};
#[cfg(test)]
pub use lobby::Lobby;
pub use lobby::{Arrival, Tally};
pub use meet::{Root, meet, meet_unless};
pub use message::{Entry, MOST_ADDRESSES, Message, Party, entries};
pub use seal::{End, Framed, MAX_FRAME, OVERHEAD, Opener, Sealer};
pub use socket::{Kernel, Socket, is_deserted};
#[cfg(test)]
pub use socket::{USER_TIMEOUT, congestion_control};
pub use stream::{Network, Stream, is_not_yet};

/// Why bytes were not what they should have been.
pub type Refusal = &'static str;
