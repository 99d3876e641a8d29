//! Messages to and from peers on other machines, through [`Connection`] and [`Endpoint`], and the
//! waits in which both are served.
//!
//! A message may lie in the user's memory at both ends: it is lent to the socket by the sender and
//! read from the socket to its place by the receiver. Whoever overwrites memory asks first whether
//! some of it is still lent ([`Links::settle`]), and an operation ends with nothing lent
//! ([`Links::flush`]).
#![allow(unsafe_code)]

use super::{Links, Reach};
use crate::device::host::copy;
use crate::error::{Error, Result};
use crate::transport::engine::EngineInfo;
use crate::transport::fifo::{ReceivedMessage, Stamp};
use crate::transport::network::{Connection, Endpoint, Lengths};
use crate::transport::wait::{self, Doorbell, OnBell, WaitCheck, Waiting};
use std::time::{Duration, Instant};

/// The longest sleep on one thing while another may need this thread too.
const BETWEEN: Duration = Duration::from_millis(1);

/// The time in which bytes and their acknowledgement cross loopback or a fast local network.
const FIRST_PAUSE: Duration = Duration::from_micros(20);

/// How long an unexpected message waits for its sender's words: a rank that waits publishes its
/// call within a tenth of a second; the rest is for a machine that does not run it at once, within
/// the second that ranks which disagree may take.
const EXPLANATION: Duration = Duration::from_millis(700);

/// Waiting for a local peer's bell while messages to other machines have to be written.
pub(super) struct OnBoth<'a, F> {
    pub bell: &'a Doorbell,
    pub network: &'a mut dyn Endpoint,
    pub poll: F,
}

impl<T, F: FnMut() -> Option<T>> Waiting for OnBoth<'_, F> {
    type Value = T;

    fn poll(&mut self) -> Option<T> {
        let value = (self.poll)();
        if value.is_none() {
            self.network.flush();
        }
        value
    }

    fn sleep(&mut self, time: Duration) -> Option<T> {
        let time = if self.network.flush() { time } else { time.min(BETWEEN) };
        OnBell { bell: self.bell, theirs: None, poll: &mut self.poll }.sleep(time)
    }
}

/// Why nothing comes from a peer, or goes to it, any more.
enum ConnectionEnd {
    /// Its connection broke.
    Broken(String),
    /// This rank lacks what it takes.
    Own(Error),
}

impl ConnectionEnd {
    fn of(network: &mut dyn Endpoint, peer: usize) -> Option<ConnectionEnd> {
        if let Some(error) = network.shortage() {
            return Some(ConnectionEnd::Own(error.clone()));
        }
        network.failure(peer).map(|why| ConnectionEnd::Broken(why.to_string()))
    }

    fn error(self, peer: usize, watch: &dyn WaitCheck) -> Error {
        match self {
            ConnectionEnd::Broken(why) => watch.broken(peer, &why),
            ConnectionEnd::Own(error) => error,
        }
    }
}

/// Waiting for a peer on another machine.
struct OnNetwork<'a, F> {
    network: &'a mut dyn Endpoint,
    peer: usize,
    poll: F,
}

impl<T, F: FnMut(&mut dyn Connection) -> Option<T>> Waiting for OnNetwork<'_, F> {
    type Value = std::result::Result<T, ConnectionEnd>;

    fn poll(&mut self) -> Option<Self::Value> {
        self.network.flush();
        let connection = self.network.connection(self.peer);
        match (self.poll)(connection) {
            Some(value) => Some(Ok(value)),
            None => ConnectionEnd::of(self.network, self.peer).map(Err),
        }
    }

    fn sleep(&mut self, time: Duration) -> Option<Self::Value> {
        self.network.sleep(Some(self.peer), time);
        None
    }
}

impl Links {
    pub fn is_remote(&self, peer: usize) -> bool {
        self.network.is_some() && self.reach(peer) == Reach::Network
    }

    /// Up to how many bytes a message between hosts goes whole, where plans cut none.
    pub fn longest_whole(&self) -> usize {
        self.network.as_ref().map_or(0, |network| network.step_lengths().whole)
    }

    /// The longest message of a plan's step that is cut: all ranks reach others through sockets, or
    /// none.
    pub fn longest_message(&self) -> usize {
        let slot = self.geometry.slot_bytes;
        self.network.as_ref().map_or(slot, |network| network.step_lengths().cut)
    }

    /// How many bytes of the user's message of `all` bytes, of which `done` have gone, go to or
    /// come from another host at once: both ends must say the same.
    pub fn next_piece(&self, all: usize, done: usize) -> usize {
        let network = self.network.as_ref().expect("remote peers come with a network");
        let Lengths { cut, whole } = network.message_lengths();
        if all <= whole { all } else { cut.min(all - done) }
    }

    /// The longest piece where some rank is on a device: there none goes whole that is longer.
    pub fn longest_piece(&self) -> usize {
        self.next_piece(usize::MAX, 0)
    }

    /// The network engine beside the sockets, and whether messages go over it.
    pub fn engine(&self) -> Option<(EngineInfo, bool)> {
        self.network.as_ref()?.engine()
    }

    /// What moves messages between hosts: "tcp", or the kind of engine.
    pub fn net(&self) -> &'static str {
        self.engine().filter(|(_, is_used)| *is_used).map_or("tcp", |(info, _)| info.kind)
    }

    /// Whether the engine works between this rank and a peer, of those that it reaches over it.
    pub fn engine_hears(&mut self, peer: usize) -> bool {
        self.remote().engine_hears(peer)
    }

    /// Send to other hosts over the engine from now on, or over sockets.
    pub fn use_engine(&mut self, is_used: bool) {
        self.remote().use_engine(is_used);
    }

    /// Have no engine any more.
    pub fn close_engine(&mut self) {
        self.remote().close_engine();
    }

    fn remote(&mut self) -> &mut dyn Endpoint {
        &mut **self.network.as_mut().expect("remote peers come with a network")
    }

    fn wait_network<T>(
        &mut self,
        peer: usize,
        watch: &dyn WaitCheck,
        poll: impl FnMut(&mut dyn Connection) -> Option<T>,
    ) -> Result<T> {
        let patience = self.patience;
        let mut waiting = OnNetwork { network: self.remote(), peer, poll };
        let outcome = wait::wait_on(patience, peer, watch, &mut waiting)?;
        outcome.map_err(|end| end.error(peer, watch))
    }

    /// Wait until a message of `peer` has come, at most about so long; whether one has.
    pub fn await_message(
        &mut self,
        peer: usize,
        patience: Duration,
        watch: &dyn WaitCheck,
    ) -> Result<bool> {
        // A patience past the end of time is none.
        let end = Instant::now().checked_add(patience);
        let over = || end.is_some_and(|end| Instant::now() >= end).then_some(false);
        if self.slots(peer).is_some() {
            return self.wait_local(peer, watch, |_, receiver| match receiver.has_come() {
                true => Some(true),
                false => over(),
            });
        }
        let come = self.wait_network(peer, watch, |connection| match connection.peek() {
            Some(_) => Some(true),
            None => over(),
        })?;
        match ConnectionEnd::of(self.remote(), peer).filter(|_| !come) {
            Some(end) => Err(end.error(peer, watch)),
            None => Ok(come),
        }
    }

    #[cold]
    pub(super) fn reserve_remote(
        &mut self,
        peer: usize,
        bytes: usize,
        watch: &dyn WaitCheck,
    ) -> Result<*mut u8> {
        self.wait_network(peer, watch, |connection| connection.try_reserve(bytes))
    }

    #[cold]
    pub(super) fn post_remote(&mut self, peer: usize, stamp: &Stamp, bytes: usize) {
        let network = self.remote();
        network.connection(peer).post(stamp, bytes);
        network.posted(peer);
    }

    #[cold]
    pub(super) fn wait_remote(
        &mut self,
        peer: usize,
        watch: &dyn WaitCheck,
    ) -> Result<ReceivedMessage> {
        self.wait_network(peer, watch, |connection| connection.peek()).map(|(message, _)| message)
    }

    /// The message that is there.
    #[cold]
    pub(super) fn peek_remote(&mut self, peer: usize) -> Option<ReceivedMessage> {
        self.remote().connection(peer).peek().map(|(message, _)| message)
    }

    /// Give the sender time to say over the control plane what call its message belongs to, or that
    /// it has failed: `watch` then knows.
    #[cold]
    pub(super) fn await_explanation(&self, peer: usize, watch: &dyn WaitCheck) {
        let started = Instant::now();
        // The peer may be here as well, with a message of this rank: time that is told of as waited
        // makes both publish their calls.
        while started.elapsed() < EXPLANATION && watch.check(peer, started.elapsed()).is_ok() {
            std::thread::sleep(BETWEEN);
        }
    }

    #[cold]
    pub(super) fn free_remote(&mut self, peer: usize) {
        self.remote().connection(peer).free();
    }

    /// Whether what is lent to remote peers leaves from where it lies.
    pub fn is_zero_copy(&self) -> bool {
        self.network.as_ref().is_some_and(|network| network.is_zero_copy())
    }

    /// Send `bytes` bytes to a remote `peer` from where they lie.
    ///
    /// # Safety
    /// They stay as they are until a [`Links::flush`] or a [`Links::settle`] of them.
    pub unsafe fn send_zero_copy(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        payload: *const u8,
        bytes: usize,
        watch: &dyn WaitCheck,
    ) -> Result<()> {
        self.wait_network(peer, watch, |connection| {
            // SAFETY: the caller's promise.
            unsafe { connection.send_from(stamp, payload, bytes) }.then_some(())
        })?;
        self.remote().posted(peer);
        Ok(())
    }

    /// As [`Links::send_zero_copy`], if there is room now; whether there was.
    ///
    /// # Safety
    /// As [`Links::send_zero_copy`].
    pub unsafe fn try_send_zero_copy(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        payload: *const u8,
        bytes: usize,
        watch: &dyn WaitCheck,
    ) -> Result<bool> {
        let network = self.remote();
        network.flush();
        if let Some(end) = ConnectionEnd::of(network, peer) {
            return Err(end.error(peer, watch));
        }
        let connection = network.connection(peer);
        // SAFETY: the caller's promise.
        let lent = unsafe { connection.send_from(stamp, payload, bytes) };
        network.posted(peer);
        Ok(lent)
    }

    /// Wait for the next message of a remote `peer`, and have it at `target`.
    ///
    /// # Safety
    /// `target` is valid for `bytes` bytes, which nothing else uses.
    pub unsafe fn receive_into(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        target: *mut u8,
        bytes: usize,
        watch: &dyn WaitCheck,
    ) -> Result<()> {
        let outcome = self.wait_network(peer, watch, |connection| {
            connection.receive_at(target, bytes, stamp);
            connection.peek()
        });
        self.remote().connection(peer).receive_anywhere();
        let (message, landed) = outcome?;
        // SAFETY: the caller's promise.
        unsafe { self.keep(peer, stamp, target, bytes, (message, landed), watch) }
    }

    /// As [`Links::receive_into`], if the message is there already; whether it was.
    ///
    /// # Safety
    /// As [`Links::receive_into`], until the message has come or the operation is over.
    pub unsafe fn try_receive_into(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        target: *mut u8,
        bytes: usize,
        watch: &dyn WaitCheck,
    ) -> Result<bool> {
        let network = self.remote();
        // The peer may not send before it has what this rank still has to write.
        network.flush();
        let connection = network.connection(peer);
        connection.receive_at(target, bytes, stamp);
        let Some(come) = connection.peek() else {
            return ConnectionEnd::of(network, peer)
                .map_or(Ok(false), |end| Err(end.error(peer, watch)));
        };
        // SAFETY: the caller's promise.
        unsafe { self.keep(peer, stamp, target, bytes, come, watch)? };
        Ok(true)
    }

    /// Check a message that has come and see that it lies at `target`.
    unsafe fn keep(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        target: *mut u8,
        bytes: usize,
        (message, landed): (ReceivedMessage, bool),
        watch: &dyn WaitCheck,
    ) -> Result<()> {
        if !message.matches(stamp, bytes) {
            return Err(self.stranger(peer, stamp, bytes, watch));
        }
        if !landed && bytes > 0 {
            // SAFETY: the slot holds the message until it is freed; the target is the caller's.
            unsafe { copy(target, message.payload, bytes, false) };
        }
        self.free_remote(peer);
        Ok(())
    }

    /// Take back what is lent of this memory: it is about to be overwritten.
    #[inline]
    pub fn settle(&mut self, address: *const u8, bytes: usize) {
        if let Some(network) = &mut self.network {
            network.settle(address, bytes);
        }
    }

    /// Wait until the kernel has every byte that was posted to other machines.
    #[cold]
    pub fn flush(&mut self, watch: &dyn WaitCheck) -> Result<()> {
        while let Some(network) = &mut self.network {
            if network.flush() {
                break;
            }
            let Some(peer) = network.unwritten() else { break };
            self.wait_network(peer, watch, |connection| {
                connection.flush();
                connection.is_written().then_some(())
            })?;
        }
        Ok(())
    }

    /// Send nothing more, and wait until the machines of the peers that `matters` names have all
    /// that was sent: the news that this rank has left goes another way and would come before it.
    pub fn deliver(&mut self, matters: impl Fn(usize) -> bool) {
        let Some(network) = &mut self.network else { return };
        let mut pause = FIRST_PAUSE;
        loop {
            network.end();
            if network.undelivered(&matters).is_none() {
                return;
            }
            std::thread::sleep(pause);
            pause = BETWEEN.min(2 * pause);
        }
    }

    /// Sleep until a socket has news or the time is over.
    pub(in crate::executor) fn sleep(&mut self, time: Duration) {
        if let Some(network) = &mut self.network {
            network.sleep(None, time.min(BETWEEN));
        }
    }
}
