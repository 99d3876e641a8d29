//! Ranks whose kernels wait for each other's: on a device each, or, where it is asked for, all on
//! one device in one cooperative launch.
//!
//! A device's kernel that waits must not be behind what it waits for. So nobody shares a device
//! with another rank's waiting kernel; one thread launches the kernels of a call on all devices,
//! [`in_one_order`], so that calls of several communicators come to all devices in one order,
//! whatever queues their streams share; and a kernel leaves half of its device to others: to
//! the streams that its peers may wait for, and to a second communicator's, not to any number.
#![allow(unsafe_code)]

use super::kernel_calibration;
use super::kernel_select::{ChosenKernelPath, LinkCosts, Ways};
use super::rank_device::{RankCall, RankDevice};
use crate::config::DEFAULT_BUFF_SIZE;
use crate::device::cuda::{
    Address, Capture, DeferredFree, DeviceMemory, Event, Kernels, OwnedStream, RawStream,
    SpinKernelsActive, in_one_order,
};
use crate::error::Result;
use crate::executor::device_p2p::{
    AbortBlock, KernelLauncher, KernelPath, KernelWork, P2pSizing, Tabled, cooperative,
};
use crate::executor::device_work::RankBuffers;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::sync::Arc;
use std::time::Duration;

/// What is asked of a way to do a call. All ranks give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct P2pCall {
    pub collective: Collective,
    pub root: usize,
    pub count: usize,
    pub data_type: DataType,
    pub op: ReduceOp,
    /// All devices reach all ranks' buffers, not only their grounds.
    pub is_plain: bool,
}

impl P2pCall {
    pub fn of(arrivals: &[&RankCall]) -> P2pCall {
        let RankCall { collective, root, count, data_type, op, .. } = *arrivals[0];
        let is_plain = arrivals.iter().all(|arrival| arrival.is_plain);
        P2pCall { collective, root, count, data_type, op, is_plain }
    }

    /// As the kernels are told of it.
    pub fn work<'a>(
        &self,
        way: KernelPath,
        places: &'a [RankBuffers],
        scalars: &'a [f64],
    ) -> KernelWork<'a> {
        let P2pCall { collective, root, count, data_type, op, .. } = *self;
        KernelWork { way, collective, root, count, data_type, op, places, scalars }
    }
}

/// Where a rank's kernel is launched.
#[derive(Clone, Copy)]
pub struct RankLaunch<'a> {
    pub kernels: &'a Kernels,
    pub stream: RawStream,
    pub capture: Capture,
    /// Recorded before and after it.
    pub around: Option<&'a [Event; 2]>,
}

impl RankLaunch<'_> {
    /// Record the moment before the launch, or after it.
    fn record(&self, after: usize) -> Result<()> {
        let Some(around) = self.around else { return Ok(()) };
        let _current = self.kernels.device().enter()?;
        around[after].record(self.stream)
    }
}

/// The ranks of a communicator, ready to launch.
pub struct P2pThreads {
    stations: Vec<KernelLauncher>,
    /// All are on one device.
    is_together: bool,
    ways: Ways,
    /// The last to go: what was let go meanwhile is freed then.
    interlocked: Option<SpinKernelsActive>,
}

impl P2pThreads {
    /// Those of ranks that have a device each, or on one if an algorithm is asked for;
    /// `None` for others. Tries each kind of kernel.
    pub fn new(rank_devices: &[&RankDevice], ndevices: usize) -> Result<Option<P2pThreads>> {
        let nranks = rank_devices.len();
        let asked = rank_devices[0].asked;
        let is_together = ndevices == 1 && asked.algorithm.is_some();
        if nranks == 1 || !(is_together || ndevices == nranks) {
            return Ok(None);
        }
        let multiprocessors =
            rank_devices.iter().map(|one| one.device.multiprocessors as usize).min();
        let (least, bytes) = (multiprocessors.unwrap_or(1), asked.buff_size);
        if is_together && nranks > least {
            return Ok(None);
        }
        let geometry = match is_together {
            true => P2pSizing::of_one_device(nranks, least, bytes),
            false => P2pSizing::new(nranks, least, bytes.unwrap_or(DEFAULT_BUFF_SIZE)),
        };
        let longest = asked.timeout / 2;
        let interlocked = (!is_together).then(|| SpinKernelsActive::begin(longest)).transpose()?;
        let streams = rank_devices
            .iter()
            .map(|one| OwnedStream::new(&one.device))
            .collect::<Result<Vec<_>>>()?;
        let stations = stations(rank_devices, geometry, rank_devices[0].asked.timeout, &streams)?;
        let ways = Ways::new(asked, LinkCosts::default());
        let mut p2p_threads = P2pThreads { stations, is_together, ways, interlocked };
        p2p_threads.ways.pace = kernel_calibration::run(&mut p2p_threads, rank_devices, &streams)?;
        Ok(Some(p2p_threads))
    }

    pub fn controls(&self) -> Vec<Arc<AbortBlock>> {
        self.stations.iter().map(|station| station.control().clone()).collect()
    }

    pub fn is_together(&self) -> bool {
        self.is_together
    }

    pub fn nranks(&self) -> usize {
        self.stations.len()
    }

    /// Whether work can be done its way, whatever the buffers are.
    pub fn does(&self, work: &KernelWork) -> Result<bool> {
        self.stations[0].does(work)
    }

    /// Connections between two ranks that work is spread over.
    pub fn channels(&self, call: &P2pCall, way: KernelPath) -> usize {
        let places = vec![RankBuffers::default(); self.nranks()];
        self.stations[0].channels(&call.work(way, &places, &[]))
    }

    /// How the call is done; `None` where kernels that wait do not do it, or not as asked.
    pub fn way(&mut self, call: P2pCall) -> Result<Option<ChosenKernelPath>> {
        let (nranks, station) = (self.nranks(), &self.stations[0]);
        let places = vec![RankBuffers::default(); nranks];
        let scalars = vec![1.0; nranks];
        self.ways.of(call, nranks, |way| {
            let reaches = way != KernelPath::Pieces || call.is_plain;
            Ok(reaches && station.does(&call.work(way, &places, &scalars))?)
        })
    }

    /// Launch the kernels of all ranks, each on its part's stream; together on that of `leader`.
    ///
    /// Where this is an invalid argument no kernel was launched, and the communicator goes on.
    ///
    /// # Safety
    /// The buffers that `work` names are valid until the streams have passed.
    pub unsafe fn launch(
        &mut self,
        parts: &[RankLaunch],
        leader: usize,
        work: &KernelWork,
    ) -> Result<()> {
        if self.is_together {
            let part @ RankLaunch { kernels, stream, capture, .. } = parts[leader];
            part.record(0)?;
            // SAFETY: the caller's promise.
            unsafe { cooperative::launch(&mut self.stations, kernels, work, stream, capture)? };
            return part.record(1);
        }
        let all = self.stations.iter_mut().zip(parts);
        let tabled: Result<Vec<Tabled>> =
            all.map(|(station, part)| station.prepare(work, part.stream, part.capture)).collect();
        let mut all = self.stations.iter_mut().zip(parts);
        let tabled = match tabled {
            Ok(tabled) => tabled,
            Err(error) => {
                all.try_for_each(|(station, part)| station.skip_launch(part.stream, part.capture))?;
                return Err(error);
            }
        };
        let _one_order = in_one_order();
        let launched = all.zip(tabled).try_for_each(|((station, part), tabled)| {
            part.record(0)?;
            let what = (work, tabled);
            // SAFETY: the caller's promise.
            unsafe { station.launch(part.kernels, what, part.stream, part.capture)? };
            part.record(1)
        });
        // Those that were launched wait for those that were not.
        launched.inspect_err(|_| self.stop())
    }

    /// What a rank's stream is given next comes after its last kernel. The context is current.
    pub fn follow(&mut self, rank: usize, stream: RawStream, capture: Capture) -> Result<()> {
        self.stations[rank].follow(stream, capture)
    }

    /// Kernels that run end, and none begins any more.
    pub fn stop(&self) {
        self.stations.iter().for_each(|station| station.control().stop());
    }
}

/// Every rank's station, ready once the streams have passed.
fn stations(
    rank_devices: &[&RankDevice],
    geometry: P2pSizing,
    timeout: Duration,
    streams: &[OwnedStream],
) -> Result<Vec<KernelLauncher>> {
    let ground = |one: &&RankDevice| DeferredFree::of(&one.device, geometry.ground_bytes());
    let grounds: Vec<DeferredFree<DeviceMemory>> =
        rank_devices.iter().map(ground).collect::<Result<_>>()?;
    let address =
        |ground: &DeferredFree<DeviceMemory>| ground.pointer().expose_provenance() as Address;
    let addresses: Vec<Address> = grounds.iter().map(address).collect();
    let all = rank_devices.iter().zip(grounds).zip(streams).enumerate();
    all.map(|(rank, ((rank_device, ground), stream))| {
        let stream = stream.raw();
        let made =
            KernelLauncher::new(&rank_device.device, rank, geometry, &addresses, timeout, stream);
        made.map(|station| station.on(ground))
    })
    .collect()
}

impl Drop for P2pThreads {
    /// Grounds go together, and only where no kernel of any rank may still come to them.
    fn drop(&mut self) {
        let is_at_rest = self.stations.iter().all(KernelLauncher::is_at_rest);
        let release_when_idle: fn(KernelLauncher) =
            if is_at_rest { KernelLauncher::release } else { KernelLauncher::leak };
        self.stations.drain(..).for_each(release_when_idle);
        if !is_at_rest {
            // What else is freed would wait for those kernels.
            std::mem::forget(self.interlocked.take());
        }
    }
}
