//! The transport interface: what a network has to do for messages between hosts.
//!
//! A rank has one [`Endpoint`] for all peers that it reaches through a network, and one
//! [`Connection`] to each of them. `executor::links` is the only caller. Shared memory has an
//! interface of its own, [`fifo`](crate::transport::fifo), which is static: no call there goes
//! through a table of functions.
//!
//! # Contract
//!
//! **Who calls.** One thread at a time, the rank's; the endpoint moves between threads. What other
//! threads bring, such as sockets or completions, comes in through the implementation's own inbox.
//!
//! **Progress.** Every call may make some, and none waits but [`Endpoint::sleep`].
//! [`Endpoint::flush`] sends what was posted, [`Connection::peek`] takes in what came. Nothing
//! moves between calls, unless the hardware moves it.
//!
//! **Order.** Messages to one peer arrive in the order in which they were posted. Peers are
//! independent of each other.
//!
//! **Memory.** A slot from [`Connection::try_reserve`] is the caller's until [`Connection::post`].
//! A message from [`Connection::peek`] stays where it is until [`Connection::free`]. The
//! caller's own memory is read from [`Connection::send_from`] until [`Connection::is_written`], or
//! until [`Endpoint::settle`] has named it. It is written from [`Connection::receive_at`] until the
//! message has come or [`Connection::receive_anywhere`]. Nothing is kept after that.
//!
//! **A dead peer.** [`Endpoint::failure`] says why, once nobody can say it better and all that the
//! peer had sent is read. The caller looks at deaths and aborts between two polls; no call of a
//! transport waits for either.
//!
//! **Abort.** Nothing is to be done: the caller makes no more calls. [`Endpoint::end`] and dropping
//! the endpoint close everything.
//!
//! **Lack of memory.** [`Endpoint::shortage`] says so, and calls on the connection do nothing.
//!
//! `tests/transport_network` runs one suite against every implementation.
#![allow(unsafe_code)]

use crate::error::Error;
use crate::transport::engine::EngineInfo;
use crate::transport::fifo::{ReceivedMessage, Stamp};
use std::time::Duration;

/// How long messages are at most, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of those that are cut.
    pub cut: usize,
    /// Of those that may go whole.
    pub whole: usize,
}

/// One peer's connection: messages in both directions, each in order.
pub trait Connection {
    /// A slot for a message of `length` bytes, if one is free.
    fn try_reserve(&mut self, length: usize) -> Option<*mut u8>;

    /// Send the message that was written to the last reserved slot.
    fn post(&mut self, stamp: &Stamp, length: usize);

    /// Send `length` bytes from where they lie; whether there was room.
    ///
    /// # Safety
    /// They stay as they are until [`Connection::is_written`] or [`Endpoint::settle`].
    unsafe fn send_from(&mut self, stamp: &Stamp, payload: *const u8, length: usize) -> bool;

    /// Send on what was posted, as far as the network takes it.
    fn flush(&mut self);

    /// Whether nothing that was posted needs this rank's memory or calls any more.
    fn is_written(&self) -> bool;

    /// Where the next message is wanted, if it is this one. It may come to a slot all the same.
    ///
    /// The memory is used until the message has come or [`Connection::receive_anywhere`].
    fn receive_at(&mut self, address: *mut u8, length: usize, stamp: &Stamp);

    /// The memory that [`Connection::receive_at`] named is the caller's again.
    fn receive_anywhere(&mut self);

    /// The next message, if it has come, and whether it lies where it was wanted.
    fn peek(&mut self) -> Option<(ReceivedMessage, bool)>;

    /// The message that [`Connection::peek`] gave is read.
    fn free(&mut self);
}

/// All connections of one rank to ranks that it reaches through a network.
pub trait Endpoint: Send {
    /// The connection to `peer`, made at its first use.
    fn connection(&mut self, peer: usize) -> &mut dyn Connection;

    /// How long the messages of plans are.
    fn step_lengths(&self) -> Lengths;

    /// How long the user's own messages are.
    fn message_lengths(&self) -> Lengths;

    /// Whether [`Connection::send_from`] sends from where the bytes lie, without a copy.
    fn is_zero_copy(&self) -> bool;

    /// The network engine beside the sockets, and whether messages go over it.
    fn engine(&self) -> Option<(EngineInfo, bool)> {
        None
    }

    /// Whether the engine works between this rank and a peer: asked again, it comes to be.
    fn engine_hears(&mut self, _peer: usize) -> bool {
        false
    }

    /// Send over the engine from now on, or over sockets: all that was posted is written.
    fn use_engine(&mut self, _is_used: bool) {}

    /// Have no engine any more: all that any end sent over it has come.
    fn close_engine(&mut self) {}

    /// Note that messages were posted to `peer`.
    fn posted(&mut self, peer: usize);

    /// Send on what was posted to all peers, as far as the network takes it; whether all is.
    fn flush(&mut self) -> bool;

    /// A peer that messages are still to be written to.
    fn unwritten(&self) -> Option<usize>;

    /// Copy what is still to be sent of this memory: it is about to be overwritten.
    fn settle(&mut self, address: *const u8, bytes: usize);

    /// Why the connection to `peer` is of no more use, once nobody can say it better.
    fn failure(&mut self, peer: usize) -> Option<&str>;

    /// What this rank lacks for a connection that it needs.
    fn shortage(&self) -> Option<&Error>;

    /// Sleep until `peer`, or any, has news, or the time is over.
    fn sleep(&mut self, peer: Option<usize>, time: Duration);

    /// Send nothing more to anybody.
    fn end(&self);

    /// One of the peers that `matters` names, whose machine has not got all that was sent.
    fn undelivered(&self, matters: &dyn Fn(usize) -> bool) -> Option<usize>;
}
