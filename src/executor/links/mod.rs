//! One rank's connections: to each peer a sender and a receiver, and the peer's control page.
//!
//! Every message carries the stamp of its operation, and every receive compares it: a rank that
//! made another call is found at its first message.
#![allow(unsafe_code)]

mod pages;
mod remote;

use super::control_block::device::DevicePage;
use super::control_block::{ControlBlock, Life};
use crate::device::host::{STREAMED_LEAST, streams_far};
use crate::error::{Error, Result};
use crate::transport::core_distance::{Distance, Ticks};
use crate::transport::fifo::{FifoShape, INLINE, Receiver, Sender, Stamp};
use crate::transport::network::Endpoint;
use crate::transport::pidfd::ReadableProcess;
use crate::transport::segment::Segment;
use crate::transport::wait::{self, Doorbell, SpinPolicy, WaitCheck};
use pages::{ControlPage, DevicePagePointer};
pub use pages::{DevicePages, Pages};
use std::sync::Arc;
use std::time::Duration;

/// How far this rank's loads and stores reach at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The same process: every address.
    Process,
    /// The same machine: segments and exported memory.
    Machine,
    /// Another machine: sockets.
    Network,
}

/// The two connections with a peer.
enum PeerLink {
    /// Slots in memory that both ends address.
    Slots { sender: Sender, receiver: Receiver, reach: Reach, distance: Distance },
    /// Remote: see [`remote`].
    Remote,
}

/// One call of so many that write at their peers learns how far they are.
const LEARNS: u32 = 8;

/// Everything a rank needs to talk: created once, then used by one operation at a time.
pub struct Links {
    pub rank: usize,
    pub nranks: usize,
    pub geometry: FifoShape,
    pub patience: SpinPolicy,
    /// By rank; `None` for this rank itself.
    links: Vec<Option<PeerLink>>,
    /// By rank, this rank's own among them; they hold the memory that `links` points into.
    segments: Vec<Arc<Segment>>,
    controls: Vec<ControlPage>,
    /// By rank: the process whose memory the kernel reads for this one.
    processes: Vec<Option<ReadableProcess>>,
    /// From where on a peer is far.
    far: Ticks,
    /// Calls since one that was to learn it.
    unlearned: u32,
    /// The connections with peers on other machines, if there are any.
    pub(super) network: Option<Box<dyn Endpoint>>,
}

/// Where the parts of a rank's segment lie: its control page, its page for devices, then one
/// inbound ring for each other rank of its host.
#[derive(Clone, Copy, Debug)]
pub struct SegmentMap {
    /// Ranks of the host.
    locals: usize,
    pub geometry: FifoShape,
    bytes: usize,
}

impl SegmentMap {
    /// Of `locals` ranks of one host.
    pub fn new(locals: usize, geometry: FifoShape) -> SegmentMap {
        let map = SegmentMap { locals, geometry, bytes: 0 };
        SegmentMap { bytes: Self::pages_bytes() + (locals - 1) * map.ring_bytes(), ..map }
    }

    /// The same in segments of so many bytes, which were made before the ranks knew who shares a
    /// host.
    pub fn within(self, bytes: usize) -> SegmentMap {
        assert!(self.bytes <= bytes, "{self:?} in {bytes} bytes");
        SegmentMap { bytes, ..self }
    }

    /// Rounded so that rings start on a cache line pair of their own.
    fn control_bytes() -> usize {
        size_of::<ControlBlock>().next_multiple_of(4096)
    }

    fn ring_bytes(&self) -> usize {
        self.geometry.bytes().next_multiple_of(128)
    }

    /// Where the rings begin.
    fn pages_bytes() -> usize {
        Self::control_bytes() + size_of::<DevicePage>()
    }

    /// Bytes of a page without rings: the mirror of a rank on another machine.
    pub fn mirror_bytes() -> usize {
        Self::control_bytes()
    }

    /// The bytes of a segment, which may be more than lie in it: see [`SegmentMap::within`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where in the segment of the host's rank number `place` the ring for what number `source`
    /// sends it lies.
    fn ring(&self, place: usize, source: usize) -> usize {
        let before = if source < place { source } else { source - 1 };
        Self::pages_bytes() + before * self.ring_bytes()
    }
}

impl Links {
    /// Take the processes of the ranks, as the kernel names them.
    pub fn set_processes(&mut self, processes: Vec<Option<ReadableProcess>>) {
        self.processes = processes;
    }

    /// The process of a peer that says that the kernel may read its memory.
    pub fn process(&self, peer: usize) -> Result<ReadableProcess> {
        self.processes[peer].ok_or_else(|| {
            Error::usage(format!(
                "rank {peer} announced memory of its process, which rank {} cannot see",
                self.rank
            ))
        })
    }

    /// Connect to every rank: through its segment (this rank's own in its place), or, with a mirror
    /// of its control page for a segment, through the network that is to be attached.
    pub fn new(
        rank: usize,
        map: SegmentMap,
        segments: Vec<Arc<Segment>>,
        reach: &[Reach],
        patience: SpinPolicy,
    ) -> Links {
        let nranks = segments.len();
        let bytes = |peer: usize| match reach[peer] {
            Reach::Network => SegmentMap::mirror_bytes(),
            _ => map.bytes(),
        };
        assert!((0..nranks).all(|peer| segments[peer].bytes() >= bytes(peer)));
        // The number of each rank among those of its host.
        let mut locals = 0;
        let number = |peer: usize| {
            let place = locals;
            locals += usize::from(peer == rank || reach[peer] != Reach::Network);
            place
        };
        let places: Vec<usize> = (0..nranks).map(number).collect();
        assert!(locals <= map.locals);
        let link = |peer: usize| match reach[peer] {
            _ if peer == rank => None,
            Reach::Network => Some(PeerLink::Remote),
            // SAFETY: both rings lie inside segments of at least `map.bytes()` zeroed bytes that
            // the links keep mapped; this rank is the only sender into the peer's ring for it and
            // the only receiver of its own.
            reach => unsafe {
                let (mine, theirs) = (places[rank], places[peer]);
                let inbound = segments[rank].address().add(map.ring(mine, theirs));
                let outbound = segments[peer].address().add(map.ring(theirs, mine));
                Some(PeerLink::Slots {
                    sender: Sender::new(outbound, map.geometry),
                    receiver: Receiver::new(inbound, map.geometry),
                    reach,
                    distance: Distance::default(),
                })
            },
        };
        let links = (0..nranks).map(link).collect();
        let controls =
            segments.iter().map(|segment| ControlPage(segment.address().cast())).collect();
        let far = if streams_far() { Ticks::far() } else { Ticks::NEVER };
        let geometry = map.geometry;
        let (processes, network) = (vec![None; nranks], None);
        Links {
            rank,
            nranks,
            geometry,
            patience,
            links,
            segments,
            controls,
            processes,
            far,
            unlearned: 0,
            network,
        }
    }

    /// Give the links that reach through the network their connections.
    pub fn attach(&mut self, network: Box<dyn Endpoint>) {
        self.network = Some(network);
    }

    pub fn pages(&self) -> Pages {
        Pages { rank: self.rank, controls: self.controls.clone(), _segments: self.segments.clone() }
    }

    /// The pages for devices, where all ranks are on one machine.
    pub fn device_pages(&self) -> DevicePages {
        assert!(self.one_machine());
        let page = |segment: &Arc<Segment>| {
            DevicePagePointer(segment.address().wrapping_add(SegmentMap::control_bytes()).cast())
        };
        let pages = self.segments.iter().map(page).collect();
        DevicePages { pages, _segments: self.segments.clone() }
    }

    pub fn control(&self, rank: usize) -> &ControlBlock {
        // SAFETY: the page lies in a segment that `segments` keeps mapped.
        unsafe { &*self.controls[rank].0 }
    }

    /// A rank's doorbell, for waits that use the links meanwhile.
    pub fn bell(&self, rank: usize) -> *const Doorbell {
        &raw const self.control(rank).bell
    }

    /// The slots shared with `peer`, or `None` where it is reached through the network.
    #[inline]
    fn slots(&mut self, peer: usize) -> Option<(&mut Sender, &mut Receiver)> {
        match self.links[peer].as_mut().expect("no plan sends to its own rank") {
            PeerLink::Slots { sender, receiver, .. } => Some((sender, receiver)),
            PeerLink::Remote => None,
        }
    }

    /// Room to send `bytes` through slots, if there is any now.
    #[inline]
    fn room(far: Ticks, link: &mut Option<PeerLink>, bytes: usize) -> Option<*mut u8> {
        let Some(PeerLink::Slots { sender, distance, .. }) = link else {
            unreachable!("memory is shared with ranks of this machine only")
        };
        // Short ones, too: where long and short messages take turns, each lap may begin with the
        // short one.
        if bytes > INLINE && sender.is_full() {
            return distance.timed(far, || sender.try_reserve(bytes));
        }
        sender.try_reserve(bytes)
    }

    /// Whether `bytes` for `peer` are better written past the cache.
    #[inline]
    pub fn streams(&self, peer: usize, bytes: usize) -> bool {
        let is_far =
            |link: &PeerLink| matches!(link, PeerLink::Slots { distance, .. } if distance.is_far());
        bytes >= STREAMED_LEAST && self.links[peer].as_ref().is_some_and(is_far)
    }

    /// Whether a call that writes at its peers, without long messages, is to learn how far they
    /// are: one of a few, as cores move within seconds.
    pub fn learns(&mut self) -> bool {
        self.unlearned = (self.unlearned + 1) % LEARNS;
        self.unlearned == 0
    }

    /// Learn how far a local peer is from the load that finds its next message there.
    #[inline]
    pub fn time_arrival(&mut self, peer: usize) {
        let far = self.far;
        if let Some(PeerLink::Slots { receiver, distance, .. }) = &mut self.links[peer] {
            distance.timed(far, || receiver.has_come().then_some(()));
        }
    }

    /// As [`Links::time_arrival`], from the load that finds all messages to the peer freed.
    #[inline]
    pub fn time_release(&mut self, peer: usize) {
        let far = self.far;
        if let Some(PeerLink::Slots { sender, distance, .. }) = &mut self.links[peer] {
            distance.timed(far, || sender.is_drained().then_some(()));
        }
    }

    pub fn reach(&self, peer: usize) -> Reach {
        match &self.links[peer] {
            None => Reach::Process,
            Some(PeerLink::Slots { reach, .. }) => *reach,
            Some(PeerLink::Remote) => Reach::Network,
        }
    }

    /// Whether every peer shares this address space.
    pub fn one_process(&self) -> bool {
        (0..self.nranks).all(|peer| self.reach(peer) == Reach::Process)
    }

    /// Whether every peer is on this machine.
    #[inline]
    pub fn one_machine(&self) -> bool {
        self.network.is_none()
    }

    /// Room to send `bytes` to a local `peer`, if there is any now.
    #[inline]
    pub fn try_reserve(&mut self, peer: usize, bytes: usize) -> Option<*mut u8> {
        Links::room(self.far, &mut self.links[peer], bytes)
    }

    /// Whether a local `peer` has freed everything that it was sent.
    pub fn freed_all(&mut self, peer: usize) -> bool {
        self.slots(peer).expect("asked of local peers only").0.is_drained()
    }

    /// Wait for `peer`, which is on this machine; meanwhile messages to other machines go on.
    ///
    /// Apart from its callers: what polls need would push their own values out of the registers.
    #[inline(never)]
    fn wait_local<T>(
        &mut self,
        peer: usize,
        watch: &dyn WaitCheck,
        mut poll: impl FnMut(&mut Sender, &mut Receiver) -> Option<T>,
    ) -> Result<T> {
        // SAFETY: the pages are kept by `segments`.
        let (bell, theirs) = unsafe { (&*self.bell(self.rank), &*self.bell(peer)) };
        let patience = self.patience;
        let Some(PeerLink::Slots { sender, receiver, .. }) = &mut self.links[peer] else {
            unreachable!("asked of local peers only")
        };
        let poll = || poll(sender, receiver);
        match &mut self.network {
            None => wait::wait(patience, (bell, theirs), peer, watch, poll),
            Some(network) => {
                let mut waiting = remote::OnBoth { bell, network: &mut **network, poll };
                wait::wait_on(patience, peer, watch, &mut waiting)
            }
        }
    }

    /// Wait for room to send `bytes` to `peer`; where to write them.
    #[inline]
    pub fn reserve(&mut self, peer: usize, bytes: usize, watch: &dyn WaitCheck) -> Result<*mut u8> {
        if let Some(PeerLink::Remote) = self.links[peer] {
            return self.reserve_remote(peer, bytes, watch);
        }
        match self.try_reserve(peer, bytes) {
            Some(payload) => Ok(payload),
            None => self.wait_local(peer, watch, |sender, _| sender.try_reserve(bytes)),
        }
    }

    /// Send what was written where `reserve` said.
    #[inline]
    pub fn post(&mut self, peer: usize, stamp: &Stamp, bytes: usize) {
        let streams = self.streams(peer, bytes);
        let Some((sender, _)) = self.slots(peer) else {
            return self.post_remote(peer, stamp, bytes);
        };
        sender.post(stamp, bytes);
        // Lines that are written past the cache are better left where they are.
        sender.prefetch_next(if streams { 0 } else { bytes });
        self.ring(peer);
    }

    /// Wait for the next message of `peer` and check that it belongs to this operation.
    #[inline]
    pub fn receive(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        bytes: usize,
        watch: &dyn WaitCheck,
    ) -> Result<*const u8> {
        let there = match self.slots(peer) {
            Some((_, receiver)) if receiver.has_come() => {
                receiver.prepare();
                receiver.peek()
            }
            Some(_) => {
                self.wait_local(peer, watch, |_, receiver| receiver.has_come().then_some(()))?;
                self.slots(peer).and_then(|(_, receiver)| receiver.peek())
            }
            None => Some(self.wait_remote(peer, watch)?),
        };
        match there {
            Some(message) if message.matches(stamp, bytes) => Ok(message.payload),
            _ => Err(self.stranger(peer, stamp, bytes, watch)),
        }
    }

    /// As [`Links::receive`] from a local peer, if a message of one of two lengths is there
    /// already; and that length.
    #[inline]
    pub fn try_receive_either(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        lengths: [usize; 2],
        watch: &dyn WaitCheck,
    ) -> Result<Option<(*const u8, usize)>> {
        let (_, receiver) = self.slots(peer).expect("asked of local peers only");
        let Some(message) = receiver.peek() else { return Ok(None) };
        match lengths.into_iter().find(|length| message.matches(stamp, *length)) {
            Some(length) => Ok(Some((message.payload, length))),
            None => Err(self.stranger(peer, stamp, lengths[0], watch)),
        }
    }

    /// The error for a message of another operation. The watch knows both calls, if they differ.
    ///
    /// It reads the message again, so that the way of every other one keeps it in registers.
    #[cold]
    pub(super) fn stranger(
        &mut self,
        peer: usize,
        stamp: &Stamp,
        bytes: usize,
        watch: &dyn WaitCheck,
    ) -> Error {
        if let Err(error) = watch.check(peer, Duration::ZERO) {
            return error;
        }
        let come = match self.slots(peer) {
            Some((_, receiver)) => receiver.peek(),
            None => self.peek_remote(peer),
        };
        let Some(message) = come else {
            return Error::usage(format!("rank {peer} has taken a message back"));
        };
        if let Some(error) = watch.unexpected(peer, stamp, &message.stamp) {
            return error;
        }
        if self.slots(peer).is_none() {
            self.await_explanation(peer, watch);
        }
        if let Err(error) = watch.check(peer, Duration::ZERO) {
            return error;
        }
        watch.unexpected(peer, stamp, &message.stamp).unwrap_or_else(|| {
            Error::usage(format!(
                "rank {} expected message #{} of {bytes} bytes from rank {peer} but got #{} of {} \
             bytes; both ends must make the same calls, with the same count and type, in the same \
             order",
                self.rank, stamp.sequence, message.stamp.sequence, message.length
            ))
        })
    }

    /// Give the message that `receive` returned back to its sender.
    #[inline]
    pub fn free(&mut self, peer: usize) {
        match self.slots(peer) {
            Some((_, receiver)) => {
                receiver.free();
                self.ring(peer);
            }
            None => self.free_remote(peer),
        }
    }

    /// Begin to use the buffers of `owners`, unless one of them has given up and may reuse them.
    pub fn begin_remote_access(&self, owners: &[usize], watch: &dyn WaitCheck) -> Result<()> {
        self.control(self.rank).begin_remote_access();
        for &owner in owners {
            if self.control(owner).life() == Life::Failed {
                self.end_remote_access();
                watch.check(owner, Duration::ZERO)?;
                return Err(Error::usage(format!("rank {owner} has failed")));
            }
        }
        Ok(())
    }

    pub fn end_remote_access(&self) {
        self.control(self.rank).end_remote_access();
    }

    /// Wait until `peer`, which is on this machine, has freed everything this rank sent it.
    pub fn wait_until_drained(&mut self, peer: usize, watch: &dyn WaitCheck) -> Result<()> {
        self.wait_local(peer, watch, |sender, _| sender.is_drained().then_some(()))
    }

    #[inline]
    pub fn ring(&self, peer: usize) {
        wait::ring_bell(&self.control(peer).bell);
    }
}
