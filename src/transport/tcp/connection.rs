//! One peer's connection: what is posted to it, what comes from it, and the lanes in between.
#![allow(unsafe_code)]

use super::inbound::Inbound;
use super::lane::{Broken, Lane};
use super::network::{NewLane, Settings};
use super::outbound::Outbound;
use crate::transport::fifo::{Geometry, Message, Stamp};
use std::time::{Duration, Instant};

/// Slots of the receiving half: a reader takes a message as soon as it is there, so few are ever
/// full, and the sender's slots alone are as deep as plans are proved for.
const INBOUND_DEPTH: usize = 8;

/// How long a broken connection waits to be explained: the peer's death or failure comes over
/// another socket, and says more than a closed one does.
const EXPLANATION: Duration = Duration::from_millis(200);

/// Every how many polls lanes other than the first are read: a short message usually is on the
/// first one.
const OTHER_LANES: u32 = 4;

/// A connection that is of no more use, why, and since when.
struct Breach {
    why: String,
    since: Instant,
}

pub struct Connection {
    outbound: Outbound,
    inbound: Inbound,
    lanes: Vec<Lane>,
    settings: Settings,
    broken: Option<Breach>,
    /// A bit for each lane that gives nothing any more. Others may still hold what was sent before.
    ended: u32,
    polls: u32,
}

impl Connection {
    pub fn new(settings: Settings) -> Connection {
        let Settings { geometry, protection, .. } = settings;
        let depth = geometry.depth.min(INBOUND_DEPTH);
        Connection {
            outbound: Outbound::new(geometry, protection),
            inbound: Inbound::new(Geometry { depth, ..geometry }),
            lanes: Vec::with_capacity(settings.lanes),
            settings,
            broken: None,
            ended: 0,
            polls: 0,
        }
    }

    pub fn has_lanes(&self) -> bool {
        !self.lanes.is_empty()
    }

    pub fn add_lane(&mut self, lane: NewLane) {
        self.lanes.push(Lane::new(lane.socket, self.settings.protection, &lane.keys));
        self.flush();
    }

    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    /// As [`Lane::end`] and [`Lane::is_delivered`], of all lanes.
    pub fn end(&self) {
        self.lanes.iter().for_each(Lane::end);
    }

    pub fn is_delivered(&self) -> bool {
        self.is_broken() || self.lanes.iter().all(Lane::is_delivered)
    }

    pub fn is_written(&self) -> bool {
        self.outbound.is_written()
    }

    pub fn try_reserve(&mut self, length: usize) -> Option<*mut u8> {
        if !self.outbound.has_room() {
            self.flush();
        }
        self.outbound.try_reserve(length)
    }

    pub fn post(&mut self, stamp: &Stamp, length: usize) {
        self.outbound.post(stamp, length);
        self.flush();
    }

    /// Send `length` bytes from where they lie; whether there was room.
    ///
    /// # Safety
    /// They stay as they are until `is_written`.
    pub unsafe fn lend(&mut self, stamp: &Stamp, payload: *const u8, length: usize) -> bool {
        if !self.outbound.has_room() {
            self.flush();
        }
        // SAFETY: the caller's promise.
        let lent = unsafe { self.outbound.lend(stamp, payload, length) };
        if lent {
            self.flush();
        }
        lent
    }

    pub fn settle(&mut self, address: *const u8, bytes: usize) {
        self.outbound.settle(address, bytes);
    }

    /// Hand what is posted to the kernel, as far as it takes it.
    pub fn flush(&mut self) {
        if self.broken.is_some() {
            return;
        }
        for lane in &mut self.lanes {
            if let Err(why) = lane.write(&mut self.outbound) {
                return self.breaks(&why.to_string());
            }
        }
    }

    /// The next message, if it has come, and whether it lies where `want_at` said.
    pub fn try_wait(&mut self) -> Option<(Message, bool)> {
        let ready = self.inbound.ready();
        if ready.is_some() {
            return ready;
        }
        self.polls = self.polls.wrapping_add(1);
        let all = self.broken.is_some() || self.polls.is_multiple_of(OTHER_LANES);
        let ended = self.ended;
        let worth = |(index, lane): &(usize, &mut Lane)| {
            ended & 1 << index == 0 && (all || *index == 0 || lane.is_reading())
        };
        let mut failure = None;
        for (index, lane) in self.lanes.iter_mut().enumerate().filter(worth) {
            if let Err(why) = lane.read(&mut self.inbound) {
                self.ended |= 1 << index;
                failure = Some(why);
            }
        }
        if let Some(why) = failure {
            if matches!(why, Broken::Damaged(_)) {
                self.ended = u32::MAX;
            }
            self.breaks(&why.to_string());
        }
        self.inbound.ready()
    }

    pub fn want_at(&mut self, address: *mut u8, length: usize, stamp: &Stamp) {
        self.inbound.want_at(address, length, stamp);
    }

    pub fn want_nowhere(&mut self) {
        self.inbound.want_nowhere();
    }

    pub fn free(&mut self) {
        self.inbound.free();
    }

    pub fn breaks(&mut self, why: &str) {
        let breach = || Breach { why: why.to_string(), since: Instant::now() };
        self.broken.get_or_insert_with(breach);
    }

    /// Why the connection is of no more use, once nobody has said it better for a while.
    pub fn breach(&self) -> Option<&str> {
        let breach = self.broken.as_ref()?;
        (breach.since.elapsed() >= EXPLANATION).then_some(&breach.why)
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }
}
