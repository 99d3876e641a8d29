//! TCP transport: [`Connection`] and [`Endpoint`] over sockets, for messages between machines.
//!
//! Each end keeps slots of its own; frames carry their position, so that any data socket may take
//! the next one and the receiver puts them back in order. The thread that makes a call moves the
//! bytes: while it waits it reads and writes sockets, and sleeps in `ppoll`. A message may also lie
//! in the user's memory at either end ([`Connection::send_from`], [`Connection::receive_at`]).
//!
//! Sockets come from outside, connected and proved: [`SocketInbox`] takes them from whoever makes
//! them.
//!
//! [`Connection`]: super::network::Connection
//! [`Endpoint`]: super::network::Endpoint
//! [`Connection::send_from`]: super::network::Connection::send_from
//! [`Connection::receive_at`]: super::network::Connection::receive_at

mod connection;
mod data_socket;
mod endpoint;
mod frame;
mod inbound;
mod outbound;
mod protect;
mod slot_pool;

pub use connection::{EXPLANATION, TcpConnection};
pub(in crate::transport) use data_socket::{MOST_GREETING, verify};
pub use endpoint::{Connect, NewDataSocket, Settings, SocketInbox, TcpEndpoint};
pub use frame::{FRAME_BYTES, Frame};
pub(in crate::transport) use inbound::{FrameAdmission, Inbound, PayloadTarget};
pub(in crate::transport) use outbound::Outbound;
pub use protect::SocketKeys;
