//! One rank's connections: to each peer a sender and a receiver, and the peer's control page.
//!
//! Every message carries the stamp of its operation, and every receive compares it: a rank that
//! made another call is found at its first message.
#![allow(unsafe_code)]

use super::control::{Control, Life};
use crate::error::{Error, Result};
use crate::transport::fifo::{Geometry, Receiver, Sender, Stamp};
use crate::transport::segment::Segment;
use crate::transport::wait::{self, Doorbell, Patience, Watch};
use std::sync::Arc;
use std::time::Duration;

/// How far this rank's loads and stores reach at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The same process: every address.
    Process,
    /// The same machine: segments and exported memory.
    Machine,
}

pub struct Link {
    pub sender: Sender,
    pub receiver: Receiver,
    pub reach: Reach,
}

/// Everything a rank needs to talk: created once, then used by one operation at a time.
pub struct Links {
    pub rank: usize,
    pub nranks: usize,
    pub geometry: Geometry,
    pub patience: Patience,
    /// By rank; `None` for this rank itself.
    links: Vec<Option<Link>>,
    /// By rank, this rank's own among them; they hold the memory that `links` points into.
    segments: Vec<Arc<Segment>>,
    controls: Vec<ControlPage>,
}

/// A control page inside a segment that `Links::segments` keeps alive.
#[derive(Clone, Copy)]
struct ControlPage(*const Control);

// SAFETY: a control page is all atomics; the segment behind it outlives the pointer (Links, Pages).
unsafe impl Send for ControlPage {}
// SAFETY: as above.
unsafe impl Sync for ControlPage {}

/// The control pages alone, for threads that look on: abort, dump, the watch.
#[derive(Clone)]
pub struct Pages {
    pub rank: usize,
    controls: Vec<ControlPage>,
    _segments: Vec<Arc<Segment>>,
}

impl Pages {
    pub fn of(&self, rank: usize) -> &Control {
        // SAFETY: the page lies in a segment that `_segments` keeps mapped.
        unsafe { &*self.controls[rank].0 }
    }

    pub fn mine(&self) -> &Control {
        self.of(self.rank)
    }

    pub fn nranks(&self) -> usize {
        self.controls.len()
    }
}

/// Where the parts of a rank's segment lie: its control page, then one inbound ring for each rank.
///
/// The ring of the rank itself stays untouched, which keeps the arithmetic plain and costs no
/// memory.
#[derive(Clone, Copy, Debug)]
pub struct SegmentMap {
    pub nranks: usize,
    pub geometry: Geometry,
}

impl SegmentMap {
    /// Rounded so that rings start on a cache line pair of their own.
    fn control_bytes() -> usize {
        size_of::<Control>().next_multiple_of(4096)
    }

    fn ring_bytes(&self) -> usize {
        self.geometry.bytes().next_multiple_of(128)
    }

    pub fn bytes(&self) -> usize {
        let rings = if self.nranks == 1 { 0 } else { self.nranks };
        Self::control_bytes() + rings * self.ring_bytes()
    }

    fn ring(&self, source: usize) -> usize {
        Self::control_bytes() + source * self.ring_bytes()
    }
}

impl Links {
    /// Connect to every rank through its segment (this rank's own in its place).
    pub fn new(
        rank: usize,
        map: SegmentMap,
        segments: Vec<Arc<Segment>>,
        reach: &[Reach],
        patience: Patience,
    ) -> Links {
        let nranks = map.nranks;
        assert!(segments.len() == nranks && segments.iter().all(|s| s.bytes() >= map.bytes()));
        let link = |peer: usize| {
            (peer != rank).then(|| {
                // SAFETY: both rings lie inside segments of at least `map.bytes()` zeroed bytes
                // that the links keep mapped; this rank is the only sender into the peer's ring for
                // it and the only receiver of its own.
                unsafe {
                    let inbound = segments[rank].address().add(map.ring(peer));
                    let outbound = segments[peer].address().add(map.ring(rank));
                    Link {
                        sender: Sender::new(outbound, map.geometry),
                        receiver: Receiver::new(inbound, map.geometry),
                        reach: reach[peer],
                    }
                }
            })
        };
        let links = (0..nranks).map(link).collect();
        let controls =
            segments.iter().map(|segment| ControlPage(segment.address().cast())).collect();
        Links { rank, nranks, geometry: map.geometry, patience, links, segments, controls }
    }

    pub fn pages(&self) -> Pages {
        Pages { rank: self.rank, controls: self.controls.clone(), _segments: self.segments.clone() }
    }

    pub fn control(&self, rank: usize) -> &Control {
        // SAFETY: the page lies in a segment that `segments` keeps mapped.
        unsafe { &*self.controls[rank].0 }
    }

    /// This rank's doorbell, for waits that use the links meanwhile.
    pub fn own_bell(&self) -> *const Doorbell {
        &raw const self.control(self.rank).bell
    }

    #[inline]
    pub fn link(&mut self, peer: usize) -> &mut Link {
        self.links[peer].as_mut().expect("no plan sends to its own rank")
    }

    /// Whether every peer shares this address space.
    pub fn one_process(&self) -> bool {
        self.links.iter().flatten().all(|link| link.reach == Reach::Process)
    }

    /// Wait for room to send `bytes` to `peer`; where to write them.
    #[inline]
    pub fn reserve(&mut self, peer: usize, bytes: usize, watch: &dyn Watch) -> Result<*mut u8> {
        let bell = self.own_bell();
        let patience = self.patience;
        let sender = &mut self.link(peer).sender;
        if let Some(payload) = sender.try_reserve(bytes) {
            return Ok(payload);
        }
        // SAFETY: this rank's own page is kept by `segments`.
        let bell = unsafe { &*bell };
        wait::wait(patience, bell, peer, watch, || sender.try_reserve(bytes))
    }

    /// Send what was written where `reserve` said.
    #[inline]
    pub fn post(&mut self, peer: usize, stamp: &Stamp, bytes: usize) {
        self.link(peer).sender.post(stamp, bytes);
        self.ring(peer);
    }

    /// Wait for the next message of `peer` and check that it belongs to this operation.
    #[inline]
    pub fn receive(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        bytes: usize,
        watch: &dyn Watch,
    ) -> Result<*const u8> {
        let bell = self.own_bell();
        let patience = self.patience;
        let receiver = &self.link(peer).receiver;
        if !receiver.has_come() {
            // SAFETY: this rank's own page is kept by `segments`.
            let bell = unsafe { &*bell };
            wait::wait(patience, bell, peer, watch, || receiver.has_come().then_some(()))?;
        }
        match self.link(peer).receiver.try_wait() {
            Some(message) if message.matches(stamp, bytes) => Ok(message.payload),
            _ => Err(self.stranger(peer, stamp, bytes, watch)),
        }
    }

    /// As [`Links::receive`], if the message is there already.
    #[inline]
    pub fn try_receive(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        bytes: usize,
        watch: &dyn Watch,
    ) -> Result<Option<*const u8>> {
        match self.link(peer).receiver.try_wait() {
            None => Ok(None),
            Some(message) if message.matches(stamp, bytes) => Ok(Some(message.payload)),
            Some(_) => Err(self.stranger(peer, stamp, bytes, watch)),
        }
    }

    /// The error for a message of another operation. The watch knows both calls, if they differ.
    ///
    /// It reads the message again, so that the way of every other one keeps it in registers.
    #[cold]
    fn stranger(&mut self, peer: usize, stamp: &Stamp, bytes: usize, watch: &dyn Watch) -> Error {
        if let Err(error) = watch.check(peer, Duration::ZERO) {
            return error;
        }
        let rank = self.rank;
        let message = self.link(peer).receiver.try_wait().expect("it has come");
        Error::usage(format!(
            "rank {rank} expected message #{} of {bytes} bytes from rank {peer} but got #{} of {} \
             bytes; both ends must make the same calls, with the same count and type, in the same \
             order",
            stamp.sequence, message.stamp.sequence, message.length
        ))
    }

    /// Give the message that `receive` returned back to its sender.
    #[inline]
    pub fn free(&mut self, peer: usize) {
        self.link(peer).receiver.free();
        self.ring(peer);
    }

    /// Begin to use the buffers of `owners`, unless one of them has given up and may reuse them.
    pub fn visit(&self, owners: &[usize], watch: &dyn Watch) -> Result<()> {
        self.control(self.rank).visit();
        for &owner in owners {
            if self.control(owner).life() == Life::Failed {
                self.end_visit();
                watch.check(owner, Duration::ZERO)?;
                return Err(Error::usage(format!("rank {owner} has failed")));
            }
        }
        Ok(())
    }

    pub fn end_visit(&self) {
        self.control(self.rank).end_visit();
    }

    /// Wait until `peer` has freed everything this rank sent it.
    pub fn drained(&mut self, peer: usize, watch: &dyn Watch) -> Result<()> {
        let bell = self.own_bell();
        let patience = self.patience;
        let sender = &mut self.link(peer).sender;
        // SAFETY: this rank's own page is kept by `segments`.
        let bell = unsafe { &*bell };
        wait::wait(patience, bell, peer, watch, || sender.freed_all().then_some(()))
    }

    #[inline]
    pub fn ring(&self, peer: usize) {
        wait::ring_bell(&self.control(peer).bell);
    }
}
