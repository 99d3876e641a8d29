//! How ranks of different machines find each other, and how nobody else gets in.
//!
//! A [`Gate`] listens and lets in whoever proves the unique id's secret; a [`Dial`] proves it to
//! another rank's gate. What speaks a protocol here is fed with streams and time, so that the same
//! code runs on sockets and on a simulated network.

mod dial;
mod gate;
mod greeting;
mod handshake;
mod interface;
mod lobby;
mod socket;
mod stream;

pub use dial::{Dial, Proved};
pub use gate::{Gate, NetworkConfig};
pub use greeting::{ANYONE, GREETING, Greeting, Purpose};
pub use handshake::{ANSWER, HELLO, Handshake, Keys, PROOF, Secret};
pub use interface::{Interface, interfaces};
pub use lobby::Tally;

/// Why bytes were not what they should have been.
pub type Refusal = &'static str;
