//! A rank on a CUDA device: its calls name device memory, and are ordered by the caller's stream.
//!
//! There are several ways. Where all ranks of a communicator are threads of this process and reach
//! each other's memory, they meet at a [`fused::launch_barrier`]: the last one launches kernels for
//! all. Ranks on a device each are a [`p2p::threads`], whose kernels wait for each other; others
//! have kernels that wait for nothing, between events of every rank's stream. Where ranks are
//! several processes of one machine whose devices share memory, one process for each device
//! launches ([`ipc`]), or, with a device each, in graphs and where an algorithm is asked for, each
//! its own kernels, which wait for each other (`ipc::p2p_calls`). Everywhere else a call goes
//! through pinned host memory and the collectives of the processor ([`staging`]), which is right
//! with any mixture of ranks. Only such kernels, and streams that wait for the host
//! ([`staging::async_calls`]), wait for work that may not be submitted yet.
#![allow(unsafe_code)]

mod abort;
mod data_path;
mod device_placement;
mod fused;
pub(super) mod ipc;
mod p2p;
mod refuse_capture;
pub(super) mod staging;
mod stream_order;

pub use device_placement::pin_current_device;
pub(super) use device_placement::{DevicePlacement, PeerSummary, device};
pub use staging::EnqueuedCall;
pub use staging::send_recv::OrderedMessage;

use super::call::portions::RunOnHost;
use super::call::{Call, Extents};
use super::health::wait_check::OpWaitCheck;
use super::memory::peer_regions::Registrations;
use super::tuning::plan_cache::BoundCall;
use super::tuning::select::forced_algorithm;
use crate::algorithm::Algorithm;
use crate::config::Config;
use crate::device::cuda::{
    Capture, Device, Event, Kernels, PointerKind, RawStream, Recording, Trail, check_stream,
};
use crate::error::{Error, Result};
use crate::executor::device_p2p::KernelPath;
use crate::executor::device_work::fits;
use crate::executor::links::Links;
use crate::plan::Collective;
use crate::sync::Mutex;
use crate::transport::fifo::Stamp;
use abort::Stopper;
use data_path::{GpuDataPath, StagedBecause};
use fused::launch_barrier::{BarrierOutcome, DeviceReach, LaunchBarrier};
use ipc::peer_values::PeerValues;
use ipc::{IpcRank, OfferedBuffers};
use p2p::kernel_select::{ChosenKernelPath, GpuSettings};
use p2p::rank_device::{RankCall, RankDevice};
use refuse_capture::refuse_capture;
use staging::async_calls::{DeviceHold, Outstanding, StreamWords};
use staging::driver_deadlock::DriverCallers;
use staging::{Staging, StreamWaitCheck};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a rank on a device has of it.
pub(super) struct Gpu {
    pub device: Arc<Device>,
    rank: usize,
    nranks: usize,
    /// Or why it has none.
    kernels: Result<Arc<Kernels>>,
    /// Where this rank's operations were given.
    trail: Mutex<Trail>,
    /// Used by one operation at a time: whoever has the communicator's turn.
    pub(super) staging: Mutex<Staging>,
    /// Bytes of a portion of a long call there.
    pub(super) portion_bytes: usize,
    /// Of calls whose streams wait for the host.
    pub(super) words: Arc<StreamWords>,
    /// Held by who gives a call to its stream and its host's part to the thread.
    pub(super) giving: Mutex<Outstanding>,
    place: DeviceHold,
    /// Calls of this process's ranks that are inside the driver.
    pub(super) callers: Arc<DriverCallers>,
    /// Since when the host has had its part of what a stream was given, which waits for it.
    on_host_since: Mutex<Option<Instant>>,
    /// Where all ranks meet, if they are threads of this process on devices.
    pub(super) launch_barrier: Option<Arc<LaunchBarrier>>,
    /// All ranks are of this machine.
    is_near: bool,
    /// All ranks are on devices of this machine, in several processes.
    pub(super) may_share: bool,
    /// Used by whoever has the communicator's turn.
    sharing: Mutex<Sharing>,
    /// Of this rank's kernels that wait for other processes'.
    stopper: Arc<Stopper>,
    asked: GpuSettings,
    /// Of what peers' kernels write to.
    ground_bytes: usize,
    /// Why its calls go through the host though its device and the others might not have to.
    warning: Option<Error>,
}

/// Whether processes work in each other's memory.
enum Sharing {
    No,
    Works(Box<IpcRank>),
    /// It was tried, and this is why not.
    Failed(Error),
}

/// What a call was found to name, before anything of it is done.
pub(super) struct BufferKinds {
    /// The buffer to read or to write is no host memory.
    sends: bool,
    receives: bool,
    /// Kernels of other devices of this process reach both buffers.
    is_plain: bool,
    /// Both buffers, as far as they are used, are of this rank's device.
    is_here: bool,
    capture: Capture,
    /// Streams order it: not all of it is in host memory, or a stream is named.
    is_ordered: bool,
}

impl BufferKinds {
    /// The host's part of a call that its stream has.
    const GIVEN: BufferKinds = BufferKinds {
        sends: false,
        receives: false,
        is_plain: false,
        is_here: false,
        capture: Capture::No,
        is_ordered: false,
    };
}

impl Gpu {
    /// What a rank has of its device, if it is on one. `name` is what all ranks call their
    /// communicator.
    pub fn seated(
        seated: DevicePlacement,
        rank: usize,
        name: &[u8],
        around: &PeerSummary,
        config: &Config,
    ) -> Result<Option<Gpu>> {
        let Some(device) = seated.device else { return Ok(None) };
        let kernels = Kernels::of(&device)?;
        let launch_barrier =
            (around.together && seated.all).then(|| LaunchBarrier::of(name, around.nranks));
        let may_share = seated.all && around.near && !around.together;
        let mut warning = None;
        let asked = GpuSettings {
            algorithm: forced_algorithm(config)?,
            deterministic: config.deterministic,
            buff_size: config.buff_size,
            timeout: Duration::from_millis(config.timeout_ms),
        };
        if let Some(launch_barrier) = &launch_barrier {
            let event = || Event::new(&device, Recording::Moment);
            let rank_device = RankDevice {
                device: device.clone(),
                kernels: kernels.clone().ok(),
                before: event()?,
                after: event()?,
                after_captured: event()?,
                asked,
            };
            warning = launch_barrier.take_seat(rank, rank_device);
        }
        let portion_bytes = around.portion_bytes;
        let staging = Staging::new(&device, portion_bytes, around.nranks)?;
        let (words, staging) = (staging.words(), Mutex::new(staging));
        let (giving, place) = (Mutex::default(), DeviceHold::of(name, device.ordinal));
        let sharing = Mutex::new(Sharing::No);
        Ok(Some(Gpu {
            device,
            rank,
            nranks: around.nranks,
            kernels,
            trail: Mutex::default(),
            staging,
            portion_bytes,
            words,
            giving,
            place,
            callers: DriverCallers::of(name),
            on_host_since: Mutex::default(),
            launch_barrier,
            is_near: around.near,
            may_share,
            sharing,
            stopper: Arc::default(),
            asked,
            ground_bytes: around.buff_size,
            warning,
        }))
    }

    /// Why its calls go through the host though they might not have to.
    pub fn fallback_reason(&self) -> Option<Error> {
        match &*self.sharing.lock() {
            Sharing::Failed(error) => Some(error.clone()),
            Sharing::Works(shared) => shared.fallback_reason(),
            Sharing::No => self.warning.clone().or(self.kernels.clone().err()),
        }
    }

    /// Why a call has just gone through the host that might not have had to, if this rank knows.
    pub fn detour(&self) -> Option<Error> {
        match &mut *self.sharing.lock() {
            Sharing::Works(shared) => shared.detour.take(),
            _ => None,
        }
    }

    /// Wait, not for ever, until no other process's launch uses this rank's memory any more.
    pub fn wait_peer_launches(&self, longest: Duration) {
        if let Sharing::Works(shared) = &*self.sharing.lock() {
            shared.wait_peer_launches(longest);
        }
    }

    /// How calls on device memory run here, in words; in C they have 31 bytes.
    pub fn transport(&self) -> &'static str {
        self.data_path().name()
    }

    /// How calls on device memory run here.
    fn data_path(&self) -> GpuDataPath {
        if self.kernels.is_err() {
            return GpuDataPath::Staged(StagedBecause::NoKernels);
        }
        match &*self.sharing.lock() {
            Sharing::Works(shared) => return shared.data_path(),
            Sharing::Failed(_) => return GpuDataPath::Staged(StagedBecause::NoSharedMemory),
            Sharing::No => {}
        }
        match self.launch_barrier.as_ref().map(|launch_barrier| launch_barrier.reach()) {
            Some(DeviceReach::All) => GpuDataPath::Fused,
            Some(DeviceReach::Memory) => GpuDataPath::FusedOnly,
            Some(DeviceReach::Failed) => GpuDataPath::Staged(StagedBecause::ProbeFailed),
            Some(DeviceReach::Refused) => GpuDataPath::Staged(StagedBecause::NoPeerAccess),
            Some(DeviceReach::No) | None if self.is_near => {
                GpuDataPath::Staged(StagedBecause::OneHost)
            }
            Some(DeviceReach::No) | None => GpuDataPath::Staged(StagedBecause::SeveralHosts),
        }
    }

    /// The same for a call on memory that all devices reach, with the algorithm, its channels and
    /// its modelled time where it is not the host's. A fused call is one launch that waits for
    /// nothing: it has no algorithm that could be asked for, and no modelled time.
    pub fn explain(&self, call: &Call) -> (&'static str, Option<(&'static str, usize, f64)>) {
        let chosen =
            self.launch_barrier.as_ref().and_then(|launch_barrier| launch_barrier.explain(call));
        let chosen = match &mut *self.sharing.lock() {
            Sharing::Works(shared) => shared.explain(call),
            _ => chosen.map(|(chosen, channels, is_together)| {
                let how = if is_together { "gpu/cooperative" } else { "gpu/p2p" };
                (chosen, channels, how)
            }),
        };
        match chosen {
            None if self.fuses(call) => (self.fused(), Some(("fused", 1, 0.0))),
            None => (self.transport(), None),
            Some((ChosenKernelPath { way, predicted_us }, channels, transport)) => {
                let algorithm = match way {
                    KernelPath::OneShot => Algorithm::OneShot,
                    KernelPath::Pieces => Algorithm::TwoShot,
                    KernelPath::Plan(algorithm) => algorithm,
                };
                (transport, Some((algorithm.name(), channels, predicted_us)))
            }
        }
    }

    /// Whether kernels that wait for nothing do a call on memory that all devices reach.
    fn fuses(&self, call: &Call) -> bool {
        let works = match &*self.sharing.lock() {
            Sharing::Works(_) => true,
            Sharing::Failed(_) => false,
            Sharing::No => {
                let reach =
                    self.launch_barrier.as_ref().map(|launch_barrier| launch_barrier.reach());
                matches!(reach, Some(DeviceReach::All | DeviceReach::Memory))
                    && self.kernels.is_ok()
            }
        };
        works && !is_apart(call) && fits(call.collective, self.nranks)
    }

    /// How a fused call runs, in words; it has no algorithm to be asked for.
    fn fused(&self) -> &'static str {
        match self.data_path() {
            GpuDataPath::Fused if self.asked.algorithm.is_some() => "gpu/fused, not as asked",
            GpuDataPath::FusedByIpc if self.asked.algorithm.is_some() => {
                "gpu/fused by ipc, not as asked"
            }
            data_path => data_path.name(),
        }
    }

    /// End the kernels of all ranks that wait for each other, and let none begin.
    pub fn stop(&self) {
        self.launch_barrier.iter().for_each(|launch_barrier| launch_barrier.stop());
        self.stopper.stop();
    }

    /// Look where a call's buffers are, and whether it can run at all.
    pub fn inspect(&self, call: &Call, extents: &Extents) -> Result<BufferKinds> {
        if call.order.ticket.is_some() {
            // It was looked at when its stream was given it.
            return Ok(BufferKinds::GIVEN);
        }
        let stream = check_stream(call.order.stream)?;
        let _current = self.device.enter()?;
        let kind = |pointer: *const u8, bytes: usize| match bytes {
            0 => Ok(None),
            _ => self.device.kind(pointer).map(Some),
        };
        let input = kind(call.send, extents.input)?;
        // In place there is one to ask for.
        let is_one = call.send == call.recv.cast_const() && input.is_some() && extents.output > 0;
        let output = if is_one { input } else { kind(call.recv, extents.output)? };
        let sides = [input, output];
        let is_device =
            |kind: &Option<PointerKind>| matches!(kind, Some(PointerKind::Device { .. }));
        let all = |wanted: &dyn Fn(i32, bool) -> bool| {
            sides.iter().flatten().all(|kind| match kind {
                PointerKind::Host => false,
                PointerKind::Device { ordinal, plain } => wanted(*ordinal, *plain),
            })
        };
        let (sends, receives) = (is_device(&sides[0]), is_device(&sides[1]));
        let is_nothing = sides.iter().all(Option::is_none);
        let is_ordered = sends || receives || !stream.is_null() || is_nothing;
        let capture = if is_ordered { Capture::of(&self.device, stream)? } else { Capture::No };
        if self.launch_barrier.is_none() {
            // Processes that can be captured say so when they meet.
            let sharing = &*self.sharing.lock();
            let why = match sharing {
                Sharing::Works(shared) => shared.refuses_captures(),
                _ => Some("it goes through host memory, which a graph cannot replay".to_string()),
            };
            why.map_or(Ok(()), |why| refuse_capture(capture, &why))?;
        }
        Ok(BufferKinds {
            sends,
            receives,
            is_plain: all(&|_, plain| plain),
            is_here: all(&|ordinal, _| ordinal == self.device.ordinal),
            capture,
            is_ordered,
        })
    }

    /// Run a call that was looked at in the memory that processes share, if it can be; whether it
    /// did.
    pub fn run_shared(
        &self,
        call: &Call,
        found: &BufferKinds,
        links: &mut Links,
        memory: &mut Registrations,
        (stamp, watch): (&Stamp, &OpWaitCheck),
    ) -> Result<bool> {
        let ran = match &mut *self.sharing.lock() {
            Sharing::Works(shared) => {
                let buffers = match (is_fusable(call, found), found.is_plain) {
                    (false, _) => OfferedBuffers::Unfit,
                    (true, true) => OfferedBuffers::Plain,
                    (true, false) => OfferedBuffers::Any,
                };
                let on = (call.order.stream, found.capture);
                shared.run(call, buffers, on, &mut PeerValues { links, memory, stamp, watch })?
            }
            _ => false,
        };
        if ran {
            self.mark_captured(call.order.stream, found.capture);
        }
        if ran && call.order.settles {
            self.settle(call.order.stream, watch)?;
            self.check_whole(watch)?;
        }
        Ok(ran)
    }

    /// Run a call that was looked at: at the launch barrier, or through the host with `on_host`.
    pub fn run_launched(
        &self,
        call: &Call,
        (found, ready): (&BufferKinds, &BoundCall),
        watch: &OpWaitCheck,
        on_host: &mut RunOnHost,
    ) -> Result<()> {
        let finished = |settles: bool| match settles {
            true => self.settle(call.order.stream, watch),
            false => Ok(()),
        };
        if let Some(launch_barrier) = &self.launch_barrier {
            let arrival = self.arrival(call, found, ready.fingerprint);
            if launch_barrier.arrive_and_wait(self.rank, arrival, watch, call.meanwhile)?
                == BarrierOutcome::Done
            {
                self.mark_captured(call.order.stream, found.capture);
                finished(call.order.settles)?;
                return if call.order.settles { self.check_whole(watch) } else { Ok(()) };
            }
            if let Some(meanwhile) = call.meanwhile {
                launch_barrier.has_more();
                return Err(meanwhile.leave());
            }
        }
        let portions = ready.portions.as_ref();
        if let Some(ran) = self.run_given(call, portions, watch, on_host) {
            return ran;
        }
        let mut staging = self.staging.lock();
        match portions.filter(|_| found.sends || found.receives) {
            Some(portions) => staging.run_portions(call, portions, found, watch, on_host)?,
            None => staging.run(call, found, &ready.extents, watch, on_host)?,
        }
        drop(staging);
        finished(call.order.settles && found.receives)
    }

    /// Wait until a stream is past all that it was given.
    fn settle(&self, stream: RawStream, watch: &dyn StreamWaitCheck) -> Result<()> {
        self.staging.lock().arrive(&[stream], watch)
    }

    fn arrival(&self, call: &Call, found: &BufferKinds, fingerprint: u64) -> RankCall {
        RankCall {
            place: crate::executor::device_work::RankBuffers {
                input: call.send.expose_provenance() as u64,
                output: call.recv.expose_provenance() as u64,
            },
            collective: call.collective,
            count: call.count,
            data_type: call.data_type,
            op: call.op,
            root: call.root,
            scalar: call.scalar,
            fingerprint,
            stream: DeviceStream(call.order.stream),
            capture: found.capture,
            is_fusable: is_fusable(call, found),
            is_plain: found.is_plain,
            thread: std::thread::current().id(),
        }
    }
}

/// Whether kernels of the rank's own device can do its part of a call.
fn is_fusable(call: &Call, found: &BufferKinds) -> bool {
    found.is_here && !is_apart(call)
}

/// Whether a call is of those that only the host does, wherever its buffers are.
pub(super) fn is_apart(call: &Call) -> bool {
    let in_place = call.send == call.recv.cast_const() && !call.send.is_null();
    call.vector.is_some() || call.collective == Collective::AllToAll && in_place
}

/// A stream that travels between threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceStream(pub RawStream);

// SAFETY: a stream's handle is a number to this library; the driver locks what it names.
unsafe impl Send for DeviceStream {}
