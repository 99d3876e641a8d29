//! One rank's end of the kernels that wait: its private memory, and the launch of its part.
#![allow(unsafe_code)]
// A stream is handed to the driver, which looks it up; nothing here follows it.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use super::abort_block::AbortBlock;
use super::device_tables::{self, Tables};
use super::kernel_args::{first, oneshot_arguments, plan_arguments, shape};
use super::plan_programs::{Programs, append, channels};
use super::sizing::{DEPTH, FLAG, P2pSizing};
use super::{KernelPath, KernelWork};
use crate::device::cuda::{
    Address, Capture, DeferredFree, Device, DeviceMemory, Event, Fused, Grid, KernelFamily,
    Kernels, MOST_SCALED, Pinned, RawStream, Recording, Trail, abi, copy, fill, wait,
};
use crate::error::{Error, Result};
use crate::executor::device_work::{fits, pieces};
use crate::plan::Collective;
use crate::types::ReduceOp;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One rank's end.
pub struct KernelLauncher {
    device: Arc<Device>,
    pub(super) rank: usize,
    pub(super) geometry: P2pSizing,
    control: Arc<AbortBlock>,
    timeout_ns: u64,
    pub(super) tables: Tables,
    parts: Parts,
    /// The last launch, and the last that was captured.
    launched: Arc<Event>,
    captured: Arc<Event>,
    trail: Trail,
    /// Of the launch that is being made.
    capture: Capture,
    /// A graph may launch kernels of this station for ever.
    is_captured: bool,
    memory: KernelMemory,
}

/// The programs of a plan in device memory, and how many there are, for ways that have some.
pub type Tabled = Option<(Address, u32)>;

/// What kernels may still use when the station goes.
struct KernelMemory {
    /// Its own ground, where it holds that itself.
    ground: Option<DeferredFree<DeviceMemory>>,
    private: DeferredFree<DeviceMemory>,
    first: DeferredFree<Pinned>,
}

/// Where the private memory's parts begin.
#[derive(Clone, Copy)]
struct Parts {
    epochs: Address,
    epoch: Address,
    stop: Address,
    flags: Address,
    inboxes: Address,
    sends: Address,
    receives: Address,
    scratch: Address,
}

fn place(address: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl KernelLauncher {
    /// The station of `rank` on `device`; `grounds` are those of all ranks, as this device
    /// addresses them, which stay until no kernel of any rank will come to them. Gives `stream`
    /// what makes both ready: every rank's has to have passed before the first launch of any.
    pub fn new(
        device: &Arc<Device>,
        rank: usize,
        geometry: P2pSizing,
        grounds: &[Address],
        timeout: Duration,
        stream: RawStream,
    ) -> Result<KernelLauncher> {
        assert_eq!(grounds.len(), geometry.nranks);
        let control = Arc::new(AbortBlock::new(device)?);
        let connections = geometry.channels * geometry.nranks * size_of::<abi::Connection>();
        let mut end = 0;
        let mut part = |bytes: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(FLAG);
            start
        };
        let addresses = geometry.nranks * size_of::<Address>();
        let offsets = [
            part(geometry.blocks * size_of::<u64>()),
            part(size_of::<abi::Epoch>()),
            part(FLAG),
            part(addresses),
            part(addresses),
            part(connections),
            part(connections),
            part(geometry.scratch_bytes),
            part(device_tables::BYTES),
        ];
        let private = DeferredFree::<DeviceMemory>::of(device, end)?;
        let base = private.pointer().expose_provenance() as Address;
        let [epochs, epoch, stop, flags, inboxes, sends, receives, scratch, table] =
            offsets.map(|offset| base + offset as Address);
        let first = first(&geometry, rank, grounds);
        let pinned = DeferredFree::<Pinned>::of(device, first.len())?;
        {
            let _current = device.enter()?;
            // SAFETY: fresh memory of as many bytes; both memories stay until the stream has
            // passed, which the caller waits for.
            unsafe {
                pinned.pointer().copy_from_nonoverlapping(first.as_ptr(), first.len());
                fill(device, place(grounds[rank]), 0, geometry.cleared_bytes(), stream)?;
                fill(device, place(base), 0, offsets[7], stream)?;
                copy(device, place(flags), pinned.pointer(), first.len(), stream)?;
            }
        }
        let event = || Event::new(device, Recording::Moment);
        Ok(KernelLauncher {
            device: device.clone(),
            rank,
            geometry,
            control,
            timeout_ns: timeout.as_nanos() as u64,
            tables: Tables::new(device, table)?,
            parts: Parts { epochs, epoch, stop, flags, inboxes, sends, receives, scratch },
            launched: Arc::new(event()?),
            captured: Arc::new(event()?),
            trail: Trail::default(),
            capture: Capture::No,
            is_captured: false,
            memory: KernelMemory { ground: None, private, first: pinned },
        })
    }

    /// Hold its own ground, too.
    pub fn on(mut self, ground: DeferredFree<DeviceMemory>) -> KernelLauncher {
        self.memory.ground = Some(ground);
        self
    }

    /// What stops its kernels, and tells why they ended.
    pub fn control(&self) -> &Arc<AbortBlock> {
        &self.control
    }

    /// Connections between two ranks that work is spread over.
    pub fn channels(&self, work: &KernelWork) -> usize {
        match work.way {
            KernelPath::Plan(_) => channels(work, &self.geometry),
            KernelPath::OneShot | KernelPath::Pieces => 1,
        }
    }

    /// Whether `work` can be done its way, whatever the buffers are: the same on every rank.
    pub fn does(&self, work: &KernelWork) -> Result<bool> {
        let (geometry, nranks) = (&self.geometry, self.geometry.nranks);
        let scales = work.collective.reduces() && work.op == ReduceOp::PreMulSum;
        Ok(match work.way {
            KernelPath::OneShot => {
                let is_known =
                    matches!(work.collective, Collective::AllReduce | Collective::AllGather);
                // An empty exchange would not hold anybody up, and numbers would run ahead.
                let bytes = work.count * work.data_type.size();
                is_known && (1..=geometry.inbox_bytes()).contains(&bytes)
            }
            KernelPath::Pieces => {
                fits(work.collective, nranks) && !(scales && nranks > MOST_SCALED)
            }
            KernelPath::Plan(algorithm) => {
                let every = |rank| Programs::bind(work, algorithm, rank, geometry);
                let mut all = (0..nranks).map(every);
                all.try_fold(true, |all, one| Ok::<bool, Error>(all && one?.is_some()))?
            }
        })
    }

    /// Give `stream` what this rank's kernel reads beside its arguments. Of all ranks before any
    /// rank's launch: a kernel that runs would wait for one that is refused here.
    pub fn prepare(
        &mut self,
        work: &KernelWork,
        stream: RawStream,
        capture: Capture,
    ) -> Result<Tabled> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.follow(stream, capture)?;
        match work.way {
            KernelPath::Plan(algorithm) => self.programs(work, algorithm, stream).map(Some),
            KernelPath::OneShot | KernelPath::Pieces => Ok(None),
        }
    }

    /// No launch comes of what was prepared, but tables may be on their way to the device: what
    /// comes next on another stream is after them.
    pub fn skip_launch(&mut self, stream: RawStream, capture: Capture) -> Result<()> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.follow(stream, capture)?;
        self.mark(stream, capture)
    }

    /// Launch this rank's part, which was prepared. Every rank has to, of the same work, in the
    /// same order.
    ///
    /// # Safety
    /// The buffers that `work` names are valid until the stream has passed.
    pub unsafe fn launch(
        &mut self,
        kernels: &Kernels,
        (work, tabled): (&KernelWork, Tabled),
        stream: RawStream,
        capture: Capture,
    ) -> Result<()> {
        let device = self.device.clone();
        let _current = device.enter()?;
        match work.way {
            KernelPath::OneShot => {
                let arguments = self.oneshot(work);
                let what = (KernelFamily::OneShot, work.data_type);
                // SAFETY: the kernel's structure; its memory is the station's, or promised.
                unsafe { kernels.run(what, &arguments, self.lines_grid(work), stream)? };
            }
            KernelPath::Pieces => self.launch_pieces(kernels, work, stream)?,
            KernelPath::Plan(_) => {
                let unprepared = || Error::Internal("a plan without its programs".into());
                let (programs, channels) = tabled.ok_or_else(unprepared)?;
                let mut arguments = plan_arguments(work);
                arguments.call = self.plan_call(work, programs);
                let (what, grid) = ((KernelFamily::Plan, work.data_type), Grid::of(channels));
                // SAFETY: as above.
                unsafe { kernels.run(what, &arguments, grid, stream)? };
            }
        }
        self.mark(stream, capture)
    }

    /// What `stream` is given next comes after the last launch. The context is current.
    pub fn follow(&mut self, stream: RawStream, capture: Capture) -> Result<()> {
        self.capture = capture;
        match (self.trail.has_moved(stream, capture), capture) {
            (false, _) => Ok(()),
            (true, Capture::No) => wait(stream, &self.launched),
            (true, _) => wait(stream, &self.captured),
        }
    }

    /// The moment after the last launch in or outside of captures, which [`KernelLauncher::mark`]
    /// records.
    pub(super) fn after(&self, capture: Capture) -> &Arc<Event> {
        if capture == Capture::No { &self.launched } else { &self.captured }
    }

    /// The last launch is the last thing that `stream` was given.
    pub(super) fn mark(&mut self, stream: RawStream, capture: Capture) -> Result<()> {
        self.trail.mark(stream, capture);
        if capture == Capture::No {
            return self.launched.record(stream);
        }
        self.is_captured = true;
        self.tables.keep();
        self.captured.record(stream)
    }

    /// Each rank has a grid as large as every other's: the blocks meet one by one.
    pub(super) fn barrier_blocks(&self, work: &KernelWork) -> u32 {
        /// A block's threads with sixteen bytes each.
        const USEFUL: usize = 16 * abi::THREADS;
        let blocks = (work.bytes() / self.geometry.nranks).div_ceil(USEFUL);
        blocks.clamp(1, self.geometry.blocks) as u32
    }

    fn launch_pieces(&self, kernels: &Kernels, work: &KernelWork, stream: RawStream) -> Result<()> {
        let nranks = self.geometry.nranks;
        let (moved, size) = (work.moved_as(), work.data_type.size());
        let bytes = work.count.saturating_mul(size) / nranks;
        let fused = match work.collective.reduces() {
            true => {
                let what = (work.data_type, work.op);
                Fused::reducing(kernels, stream, what, nranks, work.scalars, bytes)
            }
            false => Fused::copying(kernels, stream, moved, bytes),
        };
        let mut fused = fused.barrier(self.barrier(), self.barrier_blocks(work));
        let unit = size / moved.size();
        pieces(&shape(work), work.places, (self.rank, nranks), |sources, targets, len| {
            fused.add(sources, targets, len * unit)
        })?;
        fused.launch()
    }

    pub(super) fn barrier(&self) -> abi::Barrier {
        abi::Barrier {
            flags: self.parts.flags,
            epochs: self.parts.epochs,
            nranks: self.geometry.nranks as u32,
            unused: 0,
            watch: self.watch(),
        }
    }

    fn watch(&self) -> abi::Watch {
        abi::Watch {
            control: self.control.address(),
            stop: self.parts.stop,
            timeout_ns: self.timeout_ns,
            rank: self.rank as u32,
            unused: 0,
        }
    }

    pub(super) fn lines_grid(&self, work: &KernelWork) -> Grid {
        let lines = (work.count * work.data_type.size()).div_ceil(abi::LINE_PAYLOAD);
        Grid::of(lines.div_ceil(abi::THREADS).clamp(1, self.geometry.blocks) as u32)
    }

    fn oneshot(&self, work: &KernelWork) -> abi::OneshotArgs {
        let mut arguments = oneshot_arguments(work);
        arguments.call = self.oneshot_call(work);
        arguments
    }

    pub(super) fn oneshot_call(&self, work: &KernelWork) -> abi::OneshotCall {
        let own = work.places[self.rank];
        abi::OneshotCall {
            input: own.input,
            output: own.output,
            count: work.count as u64,
            scalar: work.scalars[self.rank],
            inboxes: self.parts.inboxes,
            epoch: self.parts.epoch,
            lines: self.geometry.lines as u64,
            nranks: self.geometry.nranks as u32,
            unused: 0,
            watch: self.watch(),
        }
    }

    /// Where the programs of a plan lie, and how many there are.
    pub(super) fn programs(
        &mut self,
        work: &KernelWork,
        algorithm: crate::algorithm::Algorithm,
        stream: RawStream,
    ) -> Result<(Address, u32)> {
        let channels = channels(work, &self.geometry);
        let mut name = Vec::new();
        append(&mut name, &[work.collective as u64, algorithm as u64, work.root as u64]);
        append(&mut name, &[work.count as u64, work.data_type as u64, work.op as u64]);
        if let Some(address) = self.tables.find(&name, stream, self.capture)? {
            return Ok((address, channels as u32));
        }
        let Some(programs) = Programs::bind(work, algorithm, self.rank, &self.geometry)? else {
            return Err(Error::Internal(format!("{algorithm} does not do {:?}", work.collective)));
        };
        let fill = |base, place: &mut [u8]| programs.write(base, place);
        Ok((self.table(&name, stream, programs.bytes(), fill)?, channels as u32))
    }

    /// A table's address; where there is no room any more, all make room.
    pub(super) fn table(
        &mut self,
        name: &[u8],
        stream: RawStream,
        bytes: usize,
        fill: impl Fn(Address, &mut [u8]),
    ) -> Result<Address> {
        let on = (stream, self.capture);
        if let Some(address) = self.tables.find(name, stream, self.capture)? {
            return Ok(address);
        }
        if let Some(address) = self.tables.place(name, on, bytes, &fill)? {
            return Ok(address);
        }
        self.make_room(stream)?;
        let placed = self.tables.place(name, on, bytes, &fill)?;
        placed.ok_or_else(|| self.no_room("beside those that graphs keep"))
    }

    fn no_room(&self, why: &str) -> Error {
        let rank = self.rank;
        Error::argument(format!(
            "rank {rank}: there is no room for tables of kernels {why}; calls alike in shape and \
             buffers share one, small ones and between threads RINGCOMM_ALGO=twoshot need none"
        ))
    }

    /// Forget tables once nothing that was given to the stream, or before it, needs them any more.
    fn make_room(&mut self, stream: RawStream) -> Result<()> {
        if self.capture != Capture::No {
            return Err(self.no_room("in a graph"));
        }
        // Copies of this call may be under way, too.
        self.launched.record(stream)?;
        let started = Instant::now();
        while !self.launched.has_passed()? {
            // The others wait as long for this rank as it may for them.
            let is_late = started.elapsed().as_nanos() as u64 > self.timeout_ns / 2;
            if is_late || self.control.is_stopped() {
                return Err(self.no_room("while the stream does not come to the call"));
            }
            std::thread::yield_now();
        }
        self.tables.clear();
        Ok(())
    }

    pub(super) fn plan_call(&self, work: &KernelWork, programs: Address) -> abi::PlanCall {
        let own = work.places[self.rank];
        abi::PlanCall {
            input: own.input,
            output: own.output,
            scratch: self.parts.scratch,
            scalar: work.factor(self.rank),
            programs,
            sends: self.parts.sends,
            receives: self.parts.receives,
            npeers: self.geometry.nranks as u32,
            depth: DEPTH as u32,
            slot_bytes: self.geometry.slot_bytes as u64,
            watch: self.watch(),
        }
    }

    /// Whether no kernel of its own will touch any memory any more, or soon so.
    pub fn is_at_rest(&self) -> bool {
        // A kernel that has its peers takes milliseconds; one that has not may wait for minutes.
        const LONGEST: Duration = Duration::from_secs(2);
        let started = Instant::now();
        loop {
            match self.launched.has_passed() {
                Ok(true) => return !self.is_captured,
                Ok(false) if started.elapsed() < LONGEST => std::thread::yield_now(),
                _ => return false,
            }
        }
    }

    /// Let its memory go: it is at rest, and so are all that know its ground.
    pub fn release(self) {
        let KernelMemory { ground, private, first } = self.memory;
        ground.into_iter().for_each(DeferredFree::release);
        private.release();
        first.release();
        self.tables.release();
        // Who else knows the control has let go of it before.
        Arc::into_inner(self.control).into_iter().for_each(AbortBlock::release);
    }

    /// Give its memory up without freeing it: kernels may still come.
    pub fn leak(self) {
        std::mem::forget((self.memory, self.tables, self.control));
    }
}
