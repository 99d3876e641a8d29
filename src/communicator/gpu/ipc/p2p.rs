//! Ranks that are processes with a device each, whose kernels wait for each other's.
//!
//! Every rank opens the others' grounds once, when the communicator is made; its kernels touch no
//! other memory but that and its own. So a call asks for nobody's buffers, names nothing that comes
//! and goes, and can be part of a graph: each rank replays its own part, in the order that all
//! ranks replay theirs in.
//!
//! One rank of each call's kernels is on each device, so that none is behind what it waits for,
//! unless a program gives its devices the calls of several communicators in different orders on
//! queues that they share: each has half of a device, and every wait has a deadline.
#![allow(unsafe_code)]

use super::imports::{imported, still_open};
use super::p2p_calibration::{self, Tried};
use super::peer_values::{PeerValues, Plain};
use crate::communicator::gpu::abort::Stopper;
use crate::communicator::gpu::p2p::kernel_select::{
    ChosenKernelPath, GpuSettings, LinkCosts, Ways,
};
use crate::communicator::gpu::p2p::peer_access_probe::wait_stream;
use crate::communicator::gpu::p2p::threads::P2pCall;
use crate::communicator::gpu::staging::NAP;
use crate::device::cuda::{
    Address, Capture, DeferredFree, Device, DeviceMemory, Imported, IpcMemHandle, Kernels,
    OwnedStream, RawStream, SpinKernelsActive,
};
use crate::error::{Error, Result};
use crate::executor::control_block::device::DevicePage;
use crate::executor::device_p2p::{KernelLauncher, KernelPath, KernelWork, P2pSizing, Tabled};
use crate::executor::device_work::RankBuffers;
use crate::executor::links::DevicePages;
use crate::fork::ForkSafeMutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A part of a handle: messages are small where buffers are.
type Half = [u64; 4];
impl Plain for Half {}

/// What is known before anything is made. The same on every rank, but for the device.
pub struct P2pProcessesConfig<'a> {
    pub device: &'a Arc<Device>,
    pub kernels: &'a Arc<Kernels>,
    pub asked: GpuSettings,
    /// Of the smallest of the devices.
    pub multiprocessors: usize,
    /// Of a rank's ground.
    pub bytes: usize,
    pub pages: &'a DevicePages,
    pub stopper: &'a Arc<Stopper>,
}

/// A call of this rank's that can be launched once all ranks have come.
#[derive(Clone, Copy)]
pub struct Prepared {
    way: KernelPath,
    tabled: Tabled,
}

/// A rank's own buffers in a call, and its factor.
#[derive(Clone, Copy)]
pub struct Own {
    pub place: RankBuffers,
    pub scalar: f64,
}

/// This rank's part.
pub struct P2pProcesses {
    kernels: Arc<Kernels>,
    rank: usize,
    nranks: usize,
    pub(super) geometry: P2pSizing,
    /// All that can go, which goes when the others' kernels are at rest, too.
    held: Option<SharedPart>,
    stopper: Arc<Stopper>,
    ways: Ways,
    /// From the first call's kernels on.
    interlocked: Option<SpinKernelsActive>,
    /// A graph may launch kernels of this rank's for ever.
    is_captured: bool,
}

/// What kernels of any rank may use: this rank's part, which its peers may still use when its
/// communicator is no more, or came to none.
struct SharedPart {
    pages: DevicePages,
    rank: usize,
    /// The ground, until the station has it.
    memory: Option<DeferredFree<DeviceMemory>>,
    station: Option<KernelLauncher>,
    /// None before they are opened, and once they are let go.
    grounds: Option<DeferredFree<Grounds>>,
}

/// All ranks' grounds, as this process addresses them: the others' are open as long as this lives.
struct Grounds {
    opened: Vec<Imported>,
    addresses: Vec<Address>,
    rank: usize,
    pages: DevicePages,
}

impl Grounds {
    /// Open all of them, after `own`; those before an error stay open as long as this lives, too.
    fn open(
        &mut self,
        ground: &P2pProcessesConfig,
        geometry: &P2pSizing,
        own: Address,
        handles: &[[u64; 8]],
    ) -> Result<()> {
        let _current = ground.device.enter()?;
        for (peer, handle) in handles.iter().enumerate() {
            if peer == self.rank {
                self.addresses.push(own);
                continue;
            }
            let bytes = geometry.ground_bytes();
            let imported = imported(ground.device, IpcMemHandle(*handle), bytes)?;
            let imported = imported.ok_or_else(|| still_open(peer))?;
            let address = imported.address(0, bytes);
            self.opened.push(imported);
            self.addresses.push(address?);
        }
        Ok(())
    }
}

impl Drop for Grounds {
    /// Where other kernels wait meanwhile, that may be long after they were let go.
    fn drop(&mut self) {
        self.opened.clear();
        self.pages.of(self.rank).close();
    }
}

/// The result of this rank's part, if all ranks could do theirs.
pub fn agreed<T>(mine: Result<T>, talk: &mut PeerValues) -> Result<Result<T>> {
    let all = talk.exchange(u64::from(mine.is_ok()), 0..talk.links.nranks)?;
    Ok(mine.and_then(|mine| match all.iter().position(|able| *able == 0) {
        None => Ok(mine),
        Some(rank) => Err(Error::Cuda(format!("rank {rank} cannot run peer-to-peer kernels"))),
    }))
}

impl P2pProcesses {
    /// Make this rank's part, and try it with the others'. All ranks have one, or none, and then
    /// this is why. The error is a peer's that ended it.
    pub fn new(ground: P2pProcessesConfig, talk: &mut PeerValues) -> Result<Result<P2pProcesses>> {
        sweep();
        let (device, nranks) = (ground.device, talk.links.nranks);
        let geometry = P2pSizing::new(nranks, ground.multiprocessors, ground.bytes);
        let (memory, handle) = match agreed(offered(device, &geometry), talk)? {
            Ok(own) => own,
            Err(error) => return Ok(Err(error)),
        };
        let rank = talk.links.rank;
        let mut held = SharedPart::of(ground.pages.clone(), rank, memory);
        let ready = held.ready(&ground, geometry, handle, talk);
        let failed = match ready {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Ok(Err(error))),
            Err(error) => Some(Err(error)),
        };
        if let Some(failed) = failed {
            // Others may have open what this rank has offered.
            held.leave();
            return failed;
        }
        let mut p2p_processes = P2pProcesses {
            kernels: ground.kernels.clone(),
            rank,
            nranks,
            geometry,
            held: Some(held),
            stopper: ground.stopper.clone(),
            ways: Ways::new(ground.asked, LinkCosts::default()),
            interlocked: None,
            is_captured: false,
        };
        match p2p_calibration::run(&mut p2p_processes, device, talk) {
            Ok(Tried::Works(pace)) => p2p_processes.ways.pace = pace,
            Ok(Tried::Unready(unready)) => {
                // No kernel was launched, and none will be.
                p2p_processes.held.take().into_iter().for_each(SharedPart::leave);
                return unready.map(Err);
            }
            Ok(Tried::Fails(error)) => {
                p2p_processes.leak();
                return Ok(Err(error));
            }
            Err(error) => {
                p2p_processes.leak();
                return Err(error);
            }
        }
        p2p_processes.stopper.set(p2p_processes.station().control().clone());
        Ok(Ok(p2p_processes))
    }

    /// An algorithm is asked for, which fused launches do not have.
    pub fn is_asked(&self) -> bool {
        self.ways.asked.algorithm.is_some()
    }

    /// How the call is done; `None` where no kernel of these does it. The same on every rank.
    pub fn way(&mut self, call: P2pCall) -> Result<Option<ChosenKernelPath>> {
        let (nranks, held) = (self.nranks, &self.held);
        let station = held.as_ref().expect("there until it is let go").station();
        self.ways.of(call, nranks, |way| does(station, nranks, &call, way))
    }

    /// Whether its kernels do a call this way. The same on every rank.
    pub fn does(&self, call: &P2pCall, way: KernelPath) -> Result<bool> {
        does(self.station(), self.nranks, call, way)
    }

    pub fn timeout(&self) -> Duration {
        self.ways.asked.timeout
    }

    /// From here on there may be kernels that wait, beside which nothing is freed.
    pub fn begin(&mut self) -> Result<()> {
        if self.interlocked.is_none() {
            self.interlocked = Some(SpinKernelsActive::begin(self.timeout() / 2)?);
        }
        Ok(())
    }

    /// Connections between two ranks that a call is spread over.
    pub fn channels(&self, call: &P2pCall, way: KernelPath) -> usize {
        let places = vec![RankBuffers::default(); self.nranks];
        self.station().channels(&call.work(way, &places, &[]))
    }

    /// Give `stream` what this rank's kernel reads beside its arguments. Where this is an error,
    /// nobody must launch.
    pub fn prepare(
        &mut self,
        call: &P2pCall,
        way: KernelPath,
        (stream, capture): (RawStream, Capture),
    ) -> Result<Prepared> {
        let (places, scalars) = (vec![RankBuffers::default(); self.nranks], vec![1.0; self.nranks]);
        let work = call.work(way, &places, &scalars);
        let tabled = self.station_mut().prepare(&work, stream, capture)?;
        Ok(Prepared { way, tabled })
    }

    /// No launch comes of what was prepared, or could not be.
    pub fn cancel(
        &mut self,
        prepared: Option<&Prepared>,
        (stream, capture): (RawStream, Capture),
    ) -> Result<()> {
        match prepared {
            // Nothing was given to the stream.
            Some(Prepared { tabled: None, .. }) => Ok(()),
            _ => self.station_mut().skip_launch(stream, capture),
        }
    }

    /// Launch this rank's part.
    ///
    /// # Safety
    /// The buffers are valid until the stream has passed.
    pub unsafe fn launch(
        &mut self,
        call: &P2pCall,
        prepared: Prepared,
        own: Own,
        (stream, capture): (RawStream, Capture),
    ) -> Result<()> {
        self.is_captured |= capture != Capture::No;
        let mut places = vec![RankBuffers::default(); self.nranks];
        let mut scalars = vec![1.0; self.nranks];
        (places[self.rank], scalars[self.rank]) = (own.place, own.scalar);
        let work: KernelWork = call.work(prepared.way, &places, &scalars);
        let held = self.held.as_mut().expect("there until it is let go");
        let what = (&work, prepared.tabled);
        // SAFETY: the caller's promise; these ways look at no other rank's buffers.
        unsafe { held.station_mut().launch(&self.kernels, what, stream, capture) }
    }

    pub(super) fn station(&self) -> &KernelLauncher {
        self.held.as_ref().expect("there until it is let go").station()
    }

    fn station_mut(&mut self) -> &mut KernelLauncher {
        self.held.as_mut().expect("there until it is let go").station_mut()
    }

    /// Let its memory go as soon as nobody's kernels use it any more: now, where the others go,
    /// too, else with a later communicator.
    pub fn release_when_idle(mut self) {
        if self.is_captured || !self.station().is_at_rest() {
            return self.leak();
        }
        // None of its own kernels runs any more.
        self.stopper.clear();
        drop(self.interlocked.take());
        self.held.take().into_iter().for_each(SharedPart::leave);
        sweep();
    }

    /// Kernels may come for ever, and nothing is freed beside them.
    fn leak(mut self) {
        self.held.take().into_iter().for_each(SharedPart::leak);
        std::mem::forget(self.interlocked.take());
    }
}

/// Every rank's handle.
fn exchanged(mine: IpcMemHandle, talk: &mut PeerValues) -> Result<Vec<[u64; 8]>> {
    let mut handles = vec![[0; 8]; talk.links.nranks];
    for half in [0, 4] {
        let mine: Half = std::array::from_fn(|index| mine.0[half + index]);
        let all = talk.exchange(mine, 0..talk.links.nranks)?;
        for (handle, part) in handles.iter_mut().zip(all) {
            handle[half..half + 4].copy_from_slice(&part);
        }
    }
    Ok(handles)
}

fn does(station: &KernelLauncher, nranks: usize, call: &P2pCall, way: KernelPath) -> Result<bool> {
    // Pieces are worked on in the peers' buffers.
    let (places, scalars) = (vec![RankBuffers::default(); nranks], vec![1.0; nranks]);
    Ok(way != KernelPath::Pieces && station.does(&call.work(way, &places, &scalars))?)
}

/// This rank's ground, and what the others open it by.
fn offered(
    device: &Arc<Device>,
    geometry: &P2pSizing,
) -> Result<(DeferredFree<DeviceMemory>, IpcMemHandle)> {
    let ground = DeferredFree::<DeviceMemory>::of(device, geometry.ground_bytes())?;
    let _current = device.enter()?;
    let address = ground.pointer().expose_provenance() as Address;
    let refused =
        || Error::Cuda("the CUDA driver returned no IPC handle for its own allocation".into());
    let allocation = device.allocation(address)?.ok_or_else(refused)?;
    let handle = match allocation.base == address {
        true => device.export(&allocation)?.ok_or_else(refused)?,
        false => return Err(refused()),
    };
    Ok((ground, handle))
}

/// The station on all grounds, ready.
fn station(
    ground: &P2pProcessesConfig,
    geometry: P2pSizing,
    grounds: &Grounds,
    rank: usize,
) -> Result<KernelLauncher> {
    let (device, timeout) = (ground.device, ground.asked.timeout);
    let stream = OwnedStream::new(device)?;
    let made =
        KernelLauncher::new(device, rank, geometry, &grounds.addresses, timeout, stream.raw())?;
    wait_stream(device, &stream)?;
    Ok(made)
}

/// Of communicators that are no more, or came to none.
static LEAVING: ForkSafeMutex<Vec<SharedPart>> = ForkSafeMutex::new(Vec::new());

impl SharedPart {
    fn of(pages: DevicePages, rank: usize, memory: DeferredFree<DeviceMemory>) -> SharedPart {
        SharedPart { pages, rank, memory: Some(memory), station: None, grounds: None }
    }

    /// Open the others' grounds, and have a station on all of them. The error is a peer's that
    /// ended it.
    fn ready(
        &mut self,
        ground: &P2pProcessesConfig,
        geometry: P2pSizing,
        handle: IpcMemHandle,
        talk: &mut PeerValues,
    ) -> Result<Result<()>> {
        let handles = exchanged(handle, talk)?;
        let own = self.memory.as_ref().expect("a station has none of it yet").pointer();
        let own = own.expose_provenance() as Address;
        let mut opened = Ok(());
        let (rank, pages) = (self.rank, self.pages.clone());
        let grounds = DeferredFree::new(|| {
            let (others, addresses) = (Vec::new(), Vec::new());
            let mut grounds = Grounds { opened: others, addresses, rank, pages };
            opened = grounds.open(ground, &geometry, own, &handles);
            Ok(grounds)
        })?;
        let grounds = self.grounds.insert(grounds);
        if let Err(error) = agreed(opened, talk)? {
            return Ok(Err(error));
        }
        let made = station(ground, geometry, grounds, rank);
        agreed(made, talk).map(|made| {
            made.map(|made| {
                let memory = self.memory.take().expect("as above");
                self.station = Some(made.on(memory));
            })
        })
    }

    fn station(&self) -> &KernelLauncher {
        self.station.as_ref().expect("these processes have one")
    }

    fn station_mut(&mut self) -> &mut KernelLauncher {
        self.station.as_mut().expect("these processes have one")
    }

    /// No kernel of this rank's uses it any more, or will: let it go once no other rank's does, now
    /// or with a later communicator.
    fn leave(mut self) {
        /// Ranks that leave do so at about the same time; nobody waits longer for who does not.
        const LONGEST: Duration = Duration::from_millis(200);
        self.pages.of(self.rank).mark_quiesced();
        if self.grounds.is_none() {
            self.pages.of(self.rank).close();
        }
        let started = Instant::now();
        while !self.goes_on() {
            if started.elapsed() > LONGEST {
                return LEAVING.lock().push(self);
            }
            std::thread::sleep(NAP);
        }
        self.release();
    }

    /// Let go the peers' grounds once all kernels are at rest; whether all have closed this one's.
    fn goes_on(&mut self) -> bool {
        let all = |is_so: fn(&DevicePage) -> bool| {
            (0..self.pages.nranks()).all(|rank| is_so(self.pages.of(rank)))
        };
        if all(DevicePage::rests) {
            self.grounds = None;
        }
        all(DevicePage::has_closed)
    }

    fn release(self) {
        // What was not ready may still be cleared: nobody else has it.
        drop(self.memory);
        self.station.into_iter().for_each(KernelLauncher::release);
    }

    /// Kernels may come for ever.
    fn leak(mut self) {
        self.station.take().into_iter().for_each(KernelLauncher::leak);
        std::mem::forget(self);
    }
}

/// Let go what earlier communicators had to leave and nobody uses any more.
fn sweep() {
    let all = std::mem::take(&mut *LEAVING.lock());
    for mut held in all {
        match held.goes_on() {
            true => held.release(),
            false => LEAVING.lock().push(held),
        }
    }
}
