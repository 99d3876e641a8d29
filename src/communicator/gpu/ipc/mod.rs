//! Calls of ranks that are several processes of one machine, on one device or on several.
//!
//! ```text
//!  rank 0, leads its device          rank 1, of the same device
//!  stream: come (before = n)         stream: come (before = n)
//!  host:   offers  <----------------->  offers: where the buffers are
//!  stream: wait before of rank 1
//!          kernels on all buffers
//!          after = n
//!  host:   launched ---------------->  launched
//!                                    stream: wait after of rank 0
//! ```
//!
//! One rank of each device does that device's part of the call for all, in memory that it has
//! opened of the others. What a stream waits for is submitted before the wait is, so no number of
//! hardware queues can hang, and nothing spins on a device. The words that streams write and wait
//! for lie in host memory that all ranks share: what a dead rank will never write, the guardian of
//! every survivor writes in its place.
#![allow(unsafe_code)]

mod device_leader;
mod exports;
mod imports;
mod p2p;
mod p2p_calibration;
mod p2p_calls;
pub(in crate::communicator) mod peer_values;
mod probe;
mod watchdog;

use super::super::call::Call;
use super::data_path::GpuDataPath;
use super::fused::launch::has_room;
use super::staging::{NAP, StreamWaitCheck, wait_for};
use crate::device::cuda::{
    Address, Capture, DeferredFree, Device, Event, HandleType, HostRegistration, Kernels,
    RawStream, Recording, wait, wait_value, write_value,
};
use crate::error::{Error, Result};
use crate::executor::control_block::device::DevicePage;
use crate::executor::links::{DevicePages, Links, Reach};
use crate::sync::atomic::{Ordering::SeqCst, fence};
use exports::{BufferRef, Exports, Offering};
use imports::IpcImports;
use p2p::{P2pProcesses, Prepared};
use peer_values::{PeerValues, Plain};
use std::sync::Arc;
use std::time::{Duration, Instant};
use watchdog::DeadProcessWatchdog;

/// What a rank tells the others of its part in a call. Fits the smallest slot.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CallOffer {
    pub input: BufferRef,
    pub output: BufferRef,
    pub scalar: f64,
    /// A [`FITS`] or one of the others.
    state: u64,
}

impl Plain for CallOffer {}

/// Kernels of other processes can do the call on the rank's buffers; its stream has come.
const FITS: u64 = 1;
/// The same, and some of them are to be opened first.
const CLOSED: u64 = 6;
/// They cannot: the call goes through the host.
const UNFIT: u64 = 0;
/// The rank has run into an error, which it will tell.
const FAILED: u64 = 2;
/// Kernels that wait for each other's do the call: its own are ready.
const READY: u64 = 3;
/// The same, in a graph.
const CAPTURED: u64 = 4;
/// The rank refuses the call, whose caller has the reason, and goes on.
const REFUSED: u64 = 5;

/// What a rank knows of its buffers before it offers them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OfferedBuffers {
    /// They are not its device's, or its kernels do not do such a call.
    Unfit,
    /// Allocated plainly, all of them.
    Plain,
    /// Some may be mapped piece by piece, or be none that is shared.
    Any,
}

/// A rank's page, as this process's devices address it; mapped as long as they do.
pub struct Word {
    registered: HostRegistration,
    _pages: DevicePages,
}

impl Word {
    fn of(device: &Arc<Device>, pages: &DevicePages, rank: usize) -> Result<Word> {
        let start = std::ptr::from_ref(pages.of(rank)).cast_mut().cast();
        let registered = HostRegistration::new(device, start, size_of::<DevicePage>())?;
        Ok(Word { registered, _pages: pages.clone() })
    }

    /// Of what lies so many bytes behind its start.
    pub fn address(&self, offset: usize) -> Address {
        self.registered.address(offset)
    }
}

/// One rank's part in the memory and the order that processes share.
pub struct IpcRank {
    pub(super) device: Arc<Device>,
    pub(super) kernels: Arc<Kernels>,
    pub(super) rank: usize,
    pub(super) nranks: usize,
    pub(super) pages: DevicePages,
    /// By rank: its page.
    pub(super) words: Vec<DeferredFree<Word>>,
    /// The rank that launches for each device: by device, in the order of ranks.
    pub(super) leaders: Vec<usize>,
    /// The ranks that open what this one offers, if all can be sent pieces.
    openers: Option<Vec<usize>>,
    exports: Exports,
    pub(super) imports: IpcImports,
    /// This rank's stream is past the last call, for the next one's stream, and before anything
    /// that the call uses is let go.
    pub(super) last: Arc<Event>,
    /// A stream may have been given something that the event does not stand for.
    is_loose: bool,
    /// A call had to go through the host.
    has_detoured: bool,
    /// Why the last call with memory to open did, if this rank could not open that.
    pub(super) detour: Option<Error>,
    /// An error of the trial of memory in pieces.
    fallback_reason: Option<Error>,
    /// Where each rank is a process with a device of its own.
    pub(super) p2p_processes: Option<P2pProcesses>,
    /// Why not, where it was tried.
    pub(super) alone: Option<Error>,
    guardian: Option<DeadProcessWatchdog>,
}

impl IpcRank {
    /// What a rank has by itself, before the others are asked.
    pub fn prepare(device: &Arc<Device>, kernels: &Arc<Kernels>, links: &Links) -> Result<IpcRank> {
        let pages = links.device_pages();
        let register = |rank: usize| DeferredFree::new(|| Word::of(device, &pages, rank));
        let last = Arc::new(Event::new(device, Recording::Moment)?);
        Ok(IpcRank {
            words: (0..links.nranks).map(register).collect::<Result<_>>()?,
            device: device.clone(),
            kernels: kernels.clone(),
            rank: links.rank,
            nranks: links.nranks,
            pages,
            leaders: Vec::new(),
            openers: None,
            exports: Exports::default(),
            imports: IpcImports::new(&last),
            last,
            is_loose: false,
            has_detoured: false,
            detour: None,
            fallback_reason: None,
            p2p_processes: None,
            alone: None,
            guardian: None,
        })
    }

    /// All ranks are known: who launches, `mine` for this rank's device, and who watches over
    /// their lives.
    pub fn appoint(
        &mut self,
        leaders: Vec<usize>,
        mine: usize,
        guardian: DeadProcessWatchdog,
        links: &Links,
    ) {
        // This rank and a thread of its process on its device use its addresses as they are; a
        // thread on another device has no rights on pieces, and no socket that they go through.
        let mut openers = leaders.iter().copied().filter(|leader| *leader != self.rank);
        let is_near = |leader: &usize| links.reach(*leader) == Reach::Process;
        let stray = openers.clone().find(|leader| is_near(leader) && *leader != mine);
        self.openers = match stray {
            Some(_) => None,
            None => Some(openers.by_ref().filter(|leader| !is_near(leader)).collect()),
        };
        self.leaders = leaders;
        self.guardian = Some(guardian);
    }

    /// Send peers the pieces of memory that is mapped so, or not: whether they came to all when it
    /// was tried, or an error of that. How calls ran before is forgotten.
    pub fn set_carrier_usable(&mut self, carrier: HandleType, came: Result<bool>) {
        match came {
            Ok(true) => self.exports.carriers.add(carrier),
            _ => self.exports.carriers.remove(carrier),
        }
        self.fallback_reason = self.fallback_reason.take().or(came.err());
        self.has_detoured = false;
    }

    /// Why memory that is mapped piece by piece goes through the host, or why kernels do not wait
    /// for each other.
    pub fn fallback_reason(&self) -> Option<Error> {
        self.fallback_reason.clone().or_else(|| self.alone.clone())
    }

    /// Close what was opened, unless a kernel may use it for ever.
    pub fn close_imports(&mut self) {
        let imports = self.imports.take();
        if !self.is_at_rest() {
            std::mem::forget(imports);
        }
    }

    /// How calls have run so far.
    pub(in crate::communicator::gpu) fn data_path(&self) -> GpuDataPath {
        if self.has_detoured { GpuDataPath::FusedByIpcOrStaged } else { GpuDataPath::FusedByIpc }
    }

    pub fn pages(&self) -> &DevicePages {
        &self.pages
    }

    fn mine(&self) -> &DevicePage {
        self.pages.of(self.rank)
    }

    /// Give the devices a call's work, if all ranks' buffers allow it; whether they did.
    pub fn run(
        &mut self,
        call: &Call,
        buffers: OfferedBuffers,
        on: (RawStream, Capture),
        talk: &mut PeerValues,
    ) -> Result<bool> {
        let number = self.mine().begin();
        let mut prepared = None;
        let came = match self.way(call, on.1) {
            Ok(None) => self.come(call, buffers, number, talk),
            Ok(Some(way)) => self.prepare_launch(call, buffers, way, on).map(|ready| {
                let state = match (&ready, on.1) {
                    (None, _) => UNFIT,
                    (Some(_), Capture::No) => READY,
                    (Some(_), _) => CAPTURED,
                };
                prepared = ready;
                CallOffer { state, ..CallOffer::default() }
            }),
            Err(error) => Err(error),
        };
        let mine = match &came {
            Ok(card) => *card,
            Err(Error::InvalidArgument(_)) => CallOffer { state: REFUSED, ..CallOffer::default() },
            Err(_) => CallOffer { state: FAILED, ..CallOffer::default() },
        };
        let met = self.meet(call, mine, (number, prepared, on), talk);
        let mut ran = came.and(met);
        if !matches!(ran, Ok(true)) {
            if let (Some(prepared), Some(p2p_processes)) = (prepared, &mut self.p2p_processes) {
                let passed = p2p_processes.cancel(Some(&prepared), on);
                ran = ran.and_then(|ran| passed.map(|()| ran));
            }
            if mine.state != UNFIT && on.1 == Capture::No {
                self.mark(call.order.stream);
            }
            self.exports.take_back(self.pages.of(self.rank));
        }
        if !self.is_loose {
            self.imports.end();
        }
        self.has_detoured |= matches!(ran, Ok(false));
        if !matches!(ran, Ok(true)) {
            let pages = &self.pages;
            talk.memory.forget_parcels(|rank, number| {
                rank < pages.nranks() && pages.of(rank).offers(number)
            });
        }
        ran
    }

    /// Meet the others with this rank's card; whether the devices have the call's work.
    fn meet(
        &mut self,
        call: &Call,
        mine: CallOffer,
        (number, prepared, on): (u32, Option<Prepared>, (RawStream, Capture)),
        talk: &mut PeerValues,
    ) -> Result<bool> {
        let offers = talk.exchange(mine, 0..self.nranks)?;
        if mine.state == FAILED || mine.state == REFUSED {
            // It has an error of its own to tell, for which the others wait.
            return Ok(false);
        }
        let of_state = |state: u64| offers.iter().position(|card| card.state == state);
        if let Some(failed) = of_state(FAILED) {
            return Err(talk.told(failed));
        }
        if let Some(rank) = of_state(REFUSED) {
            return Err(Error::argument(format!(
                "rank {rank} has refused this call: the error of its own call says why"
            )));
        }
        if let Some(captured) = of_state(CAPTURED)
            && let Some(other) = offers.iter().position(|card| card.state != CAPTURED)
        {
            return Err(Error::argument(format!(
                "rank {captured} gives this call to a stream that is being captured, and rank \
                 {other} to one that is not: a graph has a call of all ranks or of none"
            )));
        }
        if let Some(prepared) = prepared
            && offers.iter().all(|card| card.state == mine.state)
        {
            return self.launch(call, prepared, number, on).map(|()| true);
        }
        if offers.iter().any(|card| card.state != FITS && card.state != CLOSED) {
            return Ok(false);
        }
        self.imports.begin();
        if of_state(CLOSED).is_some() {
            if !self.all_open(call, &offers, talk)? {
                return Ok(false);
            }
            self.exports.mark_open();
        }
        let mut led = Ok(());
        if let Some(part) = self.leaders.iter().position(|leader| *leader == self.rank) {
            led = self.lead(call, &offers, (number, part), talk);
            let word = u64::from(led.is_ok());
            for peer in (0..self.nranks).filter(|peer| *peer != self.rank) {
                talk.post(peer, word)?;
            }
        }
        // Heard also by a rank with an error of its own, so that no word is left for later.
        let mut failed = None;
        for leader in self.leaders.iter().filter(|leader| **leader != self.rank) {
            let word: u64 = talk.receive(*leader)?;
            failed = failed.or((word == 0).then_some(*leader));
        }
        led?;
        if let Some(leader) = failed {
            return Err(talk.told(leader));
        }
        self.follow(call.order.stream, number).map(|()| true)
    }

    /// The stream of a call that did not come to its end may have been given some of it.
    fn mark(&mut self, stream: RawStream) {
        let current = self.device.enter();
        let recorded = current.and_then(|_current| self.last.record(stream));
        self.is_loose |= recorded.is_err();
    }

    /// Say where this rank's buffers are, and let its stream say when it comes to the call.
    fn come(
        &mut self,
        call: &Call,
        buffers: OfferedBuffers,
        number: u32,
        talk: &mut PeerValues,
    ) -> Result<CallOffer> {
        let extents = call.extents(self.rank, self.nranks)?;
        if buffers == OfferedBuffers::Unfit || !has_room(call.collective, call.op, self.nranks) {
            return Ok(CallOffer { state: UNFIT, ..CallOffer::default() });
        }
        let _current = self.device.enter()?;
        let page = self.pages.of(self.rank);
        self.exports.begin(&self.device, page)?;
        let mut offering = Offering {
            device: &self.device,
            page,
            rank: self.rank,
            memory: &mut *talk.memory,
            openers: self.openers.as_deref(),
        };
        let mut part = |address: *const u8, bytes| {
            let range = (address.expose_provenance() as u64, bytes);
            self.exports.part(&mut offering, buffers == OfferedBuffers::Plain, range)
        };
        let input = part(call.send, extents.input)?;
        let output = part(call.recv, extents.output)?;
        let (Some(input), Some(output)) = (input, output) else {
            return Ok(CallOffer { state: UNFIT, ..CallOffer::default() });
        };
        // One call at a time, whatever streams they come from.
        wait(call.order.stream, &self.last)?;
        if self.leaders != [self.rank] {
            let word = self.words[self.rank].address(DevicePage::BEFORE);
            // SAFETY: the page is registered until `last` has passed.
            unsafe { write_value(&self.device, call.order.stream, word, number)? };
            self.mine().announce_write(number);
        }
        let state = if self.exports.has_unopened() { CLOSED } else { FITS };
        Ok(CallOffer { input, output, scalar: call.scalar, state })
    }

    /// Let this rank's stream wait for what others have launched.
    fn follow(&mut self, stream: RawStream, number: u32) -> Result<()> {
        let _current = self.device.enter()?;
        for leader in self.leaders.iter().filter(|leader| **leader != self.rank) {
            let word = self.words[*leader].address(DevicePage::AFTER);
            // SAFETY: the page is registered until `last` has passed.
            unsafe { wait_value(&self.device, stream, word, number)? };
        }
        self.last.record(stream)
    }

    /// Wait, not for ever, until no launch of a peer's uses this rank's memory any more: it has
    /// failed, and its buffers are about to be the caller's again.
    pub fn wait_peer_launches(&self, longest: Duration) {
        if self.last.has_passed().is_err() {
            self.mine().mark_lost();
        }
        // Pairs with the fence of a leader's visit: it sees this rank's failure, or its launch is
        // seen here.
        fence(SeqCst);
        let started = Instant::now();
        let is_used = |rank: usize| rank != self.rank && self.pages.of(rank).is_at_work();
        while (0..self.nranks).any(is_used) && started.elapsed() < longest {
            std::thread::sleep(NAP);
        }
    }

    /// Whether the last call is through, or is so soon.
    fn is_at_rest(&self) -> bool {
        /// As long as a copy of several gigabytes; what is before it on a stream may take for ever.
        const LONGEST: Duration = Duration::from_secs(2);
        !self.is_loose && wait_for(&self.last, &Within(LONGEST)).is_ok()
    }
}

impl Drop for IpcRank {
    /// What a stream still waits for, and memory that kernels still use, stays for good, and so
    /// does who lets the stream go.
    fn drop(&mut self) {
        if let Some(p2p_processes) = self.p2p_processes.take() {
            p2p_processes.release_when_idle();
        }
        if !self.is_at_rest() {
            std::mem::forget(self.pages.clone());
            std::mem::forget(std::mem::take(&mut self.words));
            std::mem::forget(self.imports.take());
            std::mem::forget(self.guardian.take());
        }
    }
}

/// Ends a wait after so long.
pub struct Within(pub Duration);

impl StreamWaitCheck for Within {
    fn look(&self, waited: Duration) -> Result<()> {
        if waited < self.0 {
            return Ok(());
        }
        let text = format!("work on the device did not end within {} ms", self.0.as_millis());
        Err(Error::Cuda(text))
    }
}
