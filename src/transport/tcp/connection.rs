//! One peer's connection: what is posted to it, what comes from it, and the data sockets in
//! between.
#![allow(unsafe_code)]

use super::data_socket::{DataSocket, SocketBroken};
use super::endpoint::{NewDataSocket, Settings};
use super::inbound::Inbound;
use super::outbound::Outbound;
use super::slot_pool::SlotPool;
use crate::config::MOST_NSOCKS;
use crate::error::Result;
use crate::transport::engine::{ENVELOPE_BYTES, Lane};
use crate::transport::fifo::{FifoShape, ReceivedMessage, Stamp};
use crate::transport::network::Connection;
use std::time::{Duration, Instant};

/// Slots of the receiving half: a reader takes a message as soon as it is there, so few are ever
/// full, and the sender's slots alone are as deep as plans are proved for.
const INBOUND_DEPTH: usize = 8;

/// How long a broken connection waits to be explained where the peer does not answer: it is gone,
/// and the news of its death or its last words are on their way, or its host is silent. As long as
/// its neighbours may take to find that out.
pub const EXPLANATION: Duration = Duration::from_secs(1);

/// Every how many polls data sockets other than the first are read: a short message usually is on
/// the first one.
const OTHER_SOCKETS: u32 = 4;

/// The same where messages come over a lane, and sockets only tell of the peer's end.
const BESIDE_LANE: u32 = 64;

/// A bit for each data socket.
type Ended = u32;

/// Sockets at most: each of a peer's sockets may come again.
pub(super) const MOST_SOCKETS: usize = 2 * MOST_NSOCKS;
const _: () = assert!(MOST_SOCKETS <= Ended::BITS as usize);

/// A connection that is of no more use, why, and since when. The peer's death or failure, which
/// comes over another socket, says more than a closed one does: so the control plane is asked.
struct Breach {
    why: String,
    since: Instant,
    is_asked: bool,
    is_explained: bool,
}

/// The receiving half's part of the settings.
fn inbound_geometry(settings: Settings) -> FifoShape {
    let depth = settings.geometry.depth.min(INBOUND_DEPTH);
    FifoShape { depth, ..settings.geometry }
}

pub struct TcpConnection {
    /// A lane beside the sockets, closed before the slots are given up.
    lane: Option<Lane>,
    greets: bool,
    /// Sockets over which the peer has not said where its engine is.
    greetings: usize,
    /// Messages leave over the lane. They come over either.
    uses_lane: bool,
    outbound: Outbound,
    inbound: Inbound,
    data_sockets: Vec<DataSocket>,
    settings: Settings,
    broken: Option<Breach>,
    /// A bit for each data socket that gives nothing any more. Others may still hold what was sent
    /// before.
    ended: Ended,
    polls: u32,
}

impl TcpConnection {
    /// An error where there is no memory for its slots.
    ///
    /// `greets`: both ends say over each socket where their engine is, or that there is none.
    pub fn new(settings: Settings, lane: Option<Lane>, greets: bool) -> Result<TcpConnection> {
        let behind = lane.as_ref().map_or(0, |_| ENVELOPE_BYTES);
        let mut shapes = [settings.geometry, inbound_geometry(settings)];
        if lane.as_ref().is_some_and(Lane::posts_receives) {
            // A block for its words, and as many to receive into as the sockets have.
            shapes[0].depth += 1;
            shapes[1].depth *= 2;
        }
        let [blocks, into] = shapes.map(|shape| SlotPool::new(shape, behind));
        let (blocks, into) = (blocks?, into?);
        let mut connection = TcpConnection::of(settings, blocks, into, lane);
        connection.greets = greets;
        Ok(connection)
    }

    /// One without slots, over which nothing goes; it takes no data sockets.
    pub fn bare(settings: Settings) -> TcpConnection {
        TcpConnection::of(settings, SlotPool::none(), SlotPool::none(), None)
    }

    fn of(settings: Settings, out: SlotPool, into: SlotPool, lane: Option<Lane>) -> TcpConnection {
        TcpConnection {
            lane,
            greets: false,
            greetings: 0,
            uses_lane: false,
            outbound: Outbound::new(out, settings.geometry, settings.protection),
            inbound: Inbound::new(into, inbound_geometry(settings)),
            data_sockets: Vec::with_capacity(settings.data_sockets),
            settings,
            broken: None,
            ended: 0,
            polls: 0,
        }
    }

    /// Let messages leave over the lane, or over the sockets.
    pub fn use_lane(&mut self, is_used: bool) {
        self.uses_lane = is_used && self.lane.is_some();
        self.outbound.copy_all(self.uses_lane);
    }

    /// Have no lane any more: all that either end sent over it has come.
    pub fn close_lane(&mut self) {
        self.use_lane(false);
        let Some(mut lane) = self.lane.take() else { return };
        if !lane.close() {
            self.outbound.keep_slots();
            self.inbound.keep_slots();
        }
        // The lane says no more of what it has sent.
        let at_sockets = self.data_sockets.iter().filter_map(DataSocket::position);
        self.outbound.all_done_but(&at_sockets.collect::<Vec<u64>>());
    }

    pub fn is_bare(&self) -> bool {
        self.outbound.is_bare()
    }

    pub fn has_sockets(&self) -> bool {
        !self.data_sockets.is_empty()
    }

    /// Add one of the peer's sockets. One that is made anew does not replace the one that broke: of
    /// what had gone over that nobody knows how much has come. One that is too many is hung up on.
    pub fn add_socket(&mut self, data_socket: NewDataSocket) {
        if self.data_sockets.len() == MOST_SOCKETS {
            return;
        }
        self.data_sockets.push(DataSocket::new(
            data_socket.socket,
            self.settings.protection,
            &data_socket.keys,
        ));
        if self.greets {
            let socket = self.data_sockets.last_mut().expect("just pushed");
            let keys = data_socket.keys;
            let words = self.lane.as_mut().map_or(&[][..], |lane| lane.greeting(&keys));
            if let Err(why) = socket.greet(words, keys) {
                return self.mark_broken(&why.to_string());
            }
            self.greetings += 1;
        }
        self.flush();
    }

    /// Hear the peer's words before all messages, which open the lane, or say that there is none.
    fn take_greetings(&mut self) {
        if self.greetings > 0 {
            let mut failed = None;
            for data_socket in &mut self.data_sockets {
                let heard = match data_socket.take_greeting() {
                    Ok(None) => continue,
                    Ok(Some((words, _))) if words.is_empty() => {
                        Err("it has no network engine any more".into())
                    }
                    Ok(Some((words, keys))) => {
                        self.lane.as_mut().map_or(Ok(()), |lane| lane.open(&words, &keys))
                    }
                    Err(SocketBroken::Damaged(why)) => Err(why.into()),
                    // Who reads it finds out what was sent before, and why it broke.
                    Err(_) => Ok(()),
                };
                self.greetings -= 1;
                failed = failed.or(heard.err());
            }
            if let Some(why) = failed {
                self.fail_lane(&why);
            }
        }
        if let Some(lane) = self.lane.as_mut().filter(|lane| lane.lacks_blocks()) {
            lane.lend(&mut self.outbound, &mut self.inbound);
        }
    }

    /// The lane is of no use: nor is the connection, unless messages go over its sockets.
    fn fail_lane(&mut self, why: &str) {
        match self.uses_lane {
            true => self.mark_broken(&format!("{why} (RINGCOMM_NET=tcp does without the engine)")),
            false => self.close_lane(),
        }
    }

    /// Whether the engine works between both ends.
    pub fn lane_hears(&mut self) -> bool {
        self.take_greetings();
        self.lane.as_ref().is_some_and(Lane::hears)
    }

    /// Whether a socket has a message that it has not written to its end.
    fn is_writing(&self) -> bool {
        self.data_sockets.iter().any(DataSocket::is_writing)
    }

    pub fn data_sockets(&self) -> impl Iterator<Item = &DataSocket> {
        self.data_sockets.iter()
    }

    /// End the data sockets once nothing is on its way over any: who finds the end of one has what
    /// came over the others.
    pub fn end(&self) {
        if self.data_sockets.len() == 1 && self.lane.is_none() || self.is_delivered() {
            self.data_sockets.iter().for_each(DataSocket::shutdown_write);
        }
    }

    /// Whether the peer's machine has all that was written.
    pub fn is_delivered(&self) -> bool {
        let lane = self.lane.as_ref().is_none_or(Lane::is_delivered);
        self.is_broken() || lane && self.data_sockets.iter().all(DataSocket::is_delivered)
    }

    pub fn settle(&mut self, address: *const u8, bytes: usize) {
        self.outbound.settle(address, bytes);
    }

    /// See whether anybody is at the other end, which writing and reading do not tell.
    pub fn check_liveness(&mut self) {
        if self.data_sockets.iter_mut().any(DataSocket::is_silent) {
            self.mark_broken("nobody at its other end has answered for seconds");
        }
    }

    pub fn mark_broken(&mut self, why: &str) {
        let (why, since) = (why.to_string(), Instant::now());
        let (is_asked, is_explained) = (false, false);
        self.broken.get_or_insert(Breach { why, since, is_asked, is_explained });
    }

    /// Whether somebody has to be asked why it broke; says so once.
    pub fn is_to_be_explained(&mut self) -> bool {
        self.broken.as_mut().is_some_and(|breach| !std::mem::replace(&mut breach.is_asked, true))
    }

    /// All that others know of why it broke is known.
    pub fn explained(&mut self) {
        if let Some(breach) = &mut self.broken {
            breach.is_explained = true;
        }
    }

    /// Why the connection is of no more use, once nobody can say it better and nothing that was
    /// sent before is here or may come over a data socket that is open; a second after it broke at
    /// the latest.
    pub fn breach(&self, now: Instant) -> Option<&str> {
        let breach = self.broken.as_ref()?;
        let has_ended = self.ended.count_ones() as usize >= self.data_sockets.len();
        let is_over = breach.is_explained && has_ended && self.inbound.ready().is_none();
        let is_due = is_over || now.saturating_duration_since(breach.since) >= EXPLANATION;
        is_due.then_some(&breach.why)
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }
}

impl Connection for TcpConnection {
    fn try_reserve(&mut self, length: usize) -> Option<*mut u8> {
        if !self.outbound.has_room() {
            self.flush();
        }
        self.outbound.try_reserve(length)
    }

    fn post(&mut self, stamp: &Stamp, length: usize) {
        self.outbound.post(stamp, length);
        self.flush();
    }

    unsafe fn send_from(&mut self, stamp: &Stamp, payload: *const u8, length: usize) -> bool {
        if !self.outbound.has_room() {
            self.flush();
        }
        // SAFETY: the caller's promise.
        let lent = unsafe { self.outbound.send_zero_copy(stamp, payload, length) };
        if lent {
            self.flush();
        }
        lent
    }

    fn flush(&mut self) {
        if self.broken.is_some() {
            return;
        }
        self.take_greetings();
        // What the lane took before it was left.
        if let Some(lane) = self.lane.as_mut().filter(|_| !self.uses_lane)
            && !self.outbound.is_written()
        {
            lane.settle(&mut self.outbound);
        }
        // Until the peer has said where its engine is, messages go over sockets.
        let lane = self.lane.as_mut().filter(|lane| self.uses_lane && lane.is_open());
        let begins = lane.is_none();
        if let Some(Err(why)) = lane.map(|lane| lane.write(&mut self.outbound)) {
            return self.fail_lane(&why);
        }
        for data_socket in &mut self.data_sockets {
            if let Err(why) = data_socket.write(&mut self.outbound, begins) {
                return self.mark_broken(&why.to_string());
            }
        }
    }

    fn is_written(&self) -> bool {
        // An engine sends what it has taken without further calls.
        self.outbound.is_written()
            || self.uses_lane && self.outbound.is_taken() && !self.is_writing()
    }

    fn receive_at(&mut self, address: *mut u8, length: usize, stamp: &Stamp) {
        if !self.uses_lane {
            self.inbound.want_at(address, length, stamp);
        }
    }

    fn receive_anywhere(&mut self) {
        self.inbound.want_nowhere();
    }

    fn peek(&mut self) -> Option<(ReceivedMessage, bool)> {
        let ready = self.inbound.ready();
        if ready.is_some() {
            return ready;
        }
        self.polls = self.polls.wrapping_add(1);
        self.take_greetings();
        if let Some(lane) = &mut self.lane {
            // The peer may have closed a lane that nobody uses.
            if let Err(why) = lane.read(&mut self.inbound) {
                self.fail_lane(&why);
            }
            let ready = self.inbound.ready();
            if ready.is_some() {
                return ready;
            }
        }
        let uses_lane = self.uses_lane && self.greetings == 0;
        let polls = if uses_lane { BESIDE_LANE } else { OTHER_SOCKETS };
        let all = self.broken.is_some() || self.polls.is_multiple_of(polls);
        let ended = self.ended;
        let worth = |(index, data_socket): &(usize, &mut DataSocket)| {
            let is_likely = *index == 0 && !uses_lane || data_socket.is_reading();
            ended & 1 << index == 0 && (all || is_likely)
        };
        let mut failure = None;
        for (index, data_socket) in self.data_sockets.iter_mut().enumerate().filter(worth) {
            if let Err(why) = data_socket.read(&mut self.inbound) {
                self.ended |= 1 << index;
                failure = Some(why);
            }
        }
        if let Some(why) = failure {
            if matches!(why, SocketBroken::Damaged(_)) {
                self.ended = Ended::MAX;
            }
            self.mark_broken(&why.to_string());
        }
        self.inbound.ready()
    }

    fn free(&mut self) {
        self.inbound.free();
    }
}

impl Drop for TcpConnection {
    fn drop(&mut self) {
        self.close_lane();
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
