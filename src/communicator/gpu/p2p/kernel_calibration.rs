//! Kernels that wait, tried before the first call relies on them: results compared, and timed.
//!
//! A probe shows that memory carries data; this shows that flags arrive in kernels that poll them,
//! after what they announce. The times are those of the rank that is launched last, to which all
//! others have come: a small ring is `2n - 2` crossings longer than a small one-shot, and large
//! pieces are longer than small ones by their bytes.
#![allow(unsafe_code)]

use super::kernel_select::LinkCosts;
use super::peer_access_probe::wait_stream;
use super::rank_device::RankDevice;
use super::threads::{P2pCall, P2pThreads, RankLaunch};
use crate::algorithm::Algorithm;
use crate::device::cuda::{
    Capture, DeferredFree, DeviceMemory, Event, Kernels, OwnedStream, Pinned, Recording, copy, fill,
};
use crate::error::{Error, Result};
use crate::executor::device_p2p::KernelPath;
use crate::executor::device_work::RankBuffers;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};

/// Elements of the large trial: 1 MiB, some microseconds of any link, several of its round trips.
pub const LARGE: usize = 1 << 18;
/// Elements of the others: each rank of most communicators has one.
pub const SMALL: usize = 16;

/// Of each trial, after one that only warms up; the fastest counts, as devices may be busy.
pub const TIMES: usize = 3;

/// Elements between those that are compared: the results of all blocks, not all of each.
const APART: usize = 61;

/// A step between two devices takes no less; a clock that says so has measured nothing.
const LEAST_CROSSING_US: f64 = 0.1;
/// Nor has one by which a link carries more than this many bytes in a microsecond.
const MOST_BYTES_PER_US: f64 = 10e6;

/// Elements of the pattern between the inputs of two ranks.
pub const SHIFT: usize = 32;

/// What outputs hold before each turn: no sum that is compared is made of it alone.
pub const POISON: u8 = 0x5a;

/// What trials work with.
struct ThreadTrials {
    pattern: DeferredFree<Pinned>,
    back: DeferredFree<Pinned>,
    buffers: Vec<[DeferredFree<DeviceMemory>; 2]>,
    /// Around the launch of the last rank.
    around: [Event; 2],
}

/// Element `index` of the pattern: neighbours and ranks differ in all bits.
pub fn element(index: usize) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b1)
}

/// What devices take, by the microseconds of sums: a small one in one shot and through a ring, and
/// a small one and one of `large` elements by which each rank sends and receives as ring and pieces
/// do. What a small buffer budget has no room for was not measured.
pub fn pace(
    nranks: usize,
    (one_shot_us, ring_us): (Option<f64>, Option<f64>),
    (small_us, large_us, large): (Option<f64>, Option<f64>, usize),
) -> LinkCosts {
    let n = nranks as f64;
    let moved = 2.0 * (n - 1.0) / n * 4.0 * (large - SMALL) as f64;
    let usual = LinkCosts::default();
    let between = |longer: Option<f64>, shorter: Option<f64>| Some(longer? - shorter?);
    // Two for each of the ring's steps, less the one-shot's one: see `LinkCosts`.
    let crossings = 2.0 * (2.0 * n - 2.0) - 1.0;
    LinkCosts {
        crossing_us: between(ring_us, one_shot_us)
            .map_or(usual.crossing_us, |us| (us / crossings).max(LEAST_CROSSING_US)),
        us_per_byte: between(large_us, small_us)
            .map_or(usual.us_per_byte, |us| (us / moved).max(1.0 / MOST_BYTES_PER_US)),
    }
}

/// Look at the sums that a rank has, of as many elements as it got.
pub fn check(got: &[u32], nranks: usize, rank: usize, way: KernelPath) -> Result<()> {
    let count = got.len();
    let sum = |index: usize| {
        let of = |rank: usize| element(index + SHIFT * rank);
        (0..nranks).map(of).fold(0u32, u32::wrapping_add)
    };
    let is_wrong = |index: &usize| got[*index] != sum(*index);
    match (0..count).step_by(APART).find(is_wrong) {
        None => Ok(()),
        Some(wrong) => Err(Error::Cuda(format!(
            "kernels that wait for each other gave rank {rank} a wrong element {wrong} of {count} \
             in a trial ({way:?})"
        ))),
    }
}

/// Try all ways on these streams; what they take.
pub fn run(
    p2p_threads: &mut P2pThreads,
    rank_devices: &[&RankDevice],
    streams: &[OwnedStream],
) -> Result<LinkCosts> {
    let bench = ThreadTrials::new(rank_devices)?;
    let tried = bench.all(p2p_threads, rank_devices, streams);
    if tried.is_err() {
        p2p_threads.stop();
        // Something may be under way still, and to free the memory would wait for it.
        std::mem::forget(bench);
    } else {
        bench.release();
    }
    tried
}

impl ThreadTrials {
    fn new(rank_devices: &[&RankDevice]) -> Result<ThreadTrials> {
        let nranks = rank_devices.len();
        let device = &rank_devices[0].device;
        let pattern = DeferredFree::<Pinned>::of(device, 4 * (LARGE + SHIFT * nranks))?;
        let place = pattern.pointer().cast::<u32>();
        // SAFETY: fresh memory of as many elements.
        let elements = unsafe { std::slice::from_raw_parts_mut(place, LARGE + SHIFT * nranks) };
        elements.iter_mut().enumerate().for_each(|(index, place)| *place = element(index));
        let memory = |one: &&RankDevice| DeferredFree::of(&one.device, 4 * LARGE);
        let both = |one: &&RankDevice| Ok([memory(one)?, memory(one)?]);
        let last = &rank_devices[nranks - 1].device;
        let event = || Event::new(last, Recording::Time);
        Ok(ThreadTrials {
            pattern,
            back: DeferredFree::of(device, 4 * LARGE)?,
            buffers: rank_devices.iter().map(both).collect::<Result<_>>()?,
            around: [event()?, event()?],
        })
    }

    /// Nothing of it is under way.
    fn release(self) {
        self.pattern.release();
        self.back.release();
        self.buffers.into_iter().flatten().for_each(DeferredFree::release);
    }

    fn all(
        &self,
        p2p_threads: &mut P2pThreads,
        rank_devices: &[&RankDevice],
        streams: &[OwnedStream],
    ) -> Result<LinkCosts> {
        for (rank, (rank_device, stream)) in rank_devices.iter().zip(streams).enumerate() {
            let _current = rank_device.device.enter()?;
            let (to, from) = (self.buffers[rank][0].pointer(), self.pattern.pointer());
            let from = from.wrapping_add(4 * SHIFT * rank);
            // SAFETY: both have the bytes, and stay until the stream has passed.
            unsafe { copy(&rank_device.device, to, from, 4 * LARGE, stream.raw())? };
        }
        // The stations' own work is on the same streams.
        for (rank_device, stream) in rank_devices.iter().zip(streams) {
            wait_stream(&rank_device.device, stream)?;
        }
        let mut time = |way, count| self.time(p2p_threads, rank_devices, streams, (way, count));
        let one_shot_us = time(KernelPath::OneShot, SMALL)?;
        let ring_us = time(KernelPath::Plan(Algorithm::Ring), SMALL)?;
        let small_us = time(KernelPath::Pieces, SMALL)?;
        let large_us = time(KernelPath::Pieces, LARGE)?;
        Ok(pace(rank_devices.len(), (one_shot_us, ring_us), (small_us, large_us, LARGE)))
    }

    /// Microseconds of a sum of so many elements; `None` where it is not done so.
    fn time(
        &self,
        p2p_threads: &mut P2pThreads,
        rank_devices: &[&RankDevice],
        streams: &[OwnedStream],
        (way, count): (KernelPath, usize),
    ) -> Result<Option<f64>> {
        let end = |memory: &DeferredFree<DeviceMemory>| memory.pointer().expose_provenance() as u64;
        let place = |both: &[DeferredFree<DeviceMemory>; 2]| RankBuffers {
            input: end(&both[0]),
            output: end(&both[1]),
        };
        let places: Vec<RankBuffers> = self.buffers.iter().map(place).collect();
        let scalars = vec![1.0; rank_devices.len()];
        let call = P2pCall {
            collective: Collective::AllReduce,
            root: 0,
            count,
            data_type: DataType::Uint32,
            op: ReduceOp::Sum,
            is_plain: true,
        };
        let work = call.work(way, &places, &scalars);
        if !p2p_threads.does(&work)? {
            return Ok(None);
        }
        let last = rank_devices.len() - 1;
        let parts: Vec<RankLaunch> = rank_devices
            .iter()
            .zip(streams)
            .enumerate()
            .map(|(rank, (rank_device, stream))| {
                let (kernels, capture) = (kernels(rank_device)?, Capture::No);
                let around = (rank == last).then_some(&self.around);
                Ok(RankLaunch { kernels, stream: stream.raw(), capture, around })
            })
            .collect::<Result<_>>()?;
        let mut best_ms = f32::MAX;
        for turn in 0..=TIMES {
            for (rank, (rank_device, stream)) in rank_devices.iter().zip(streams).enumerate() {
                let _current = rank_device.device.enter()?;
                let output = self.buffers[rank][1].pointer();
                // What the way before has left must not pass for this one's.
                // SAFETY: the buffer's own bytes, which stay until the stream has passed.
                unsafe { fill(&rank_device.device, output, POISON, 4 * count, stream.raw())? };
            }
            // One launch for all is on the last rank's stream, and follows no other.
            let mut all = rank_devices.iter().zip(streams);
            all.try_for_each(|(rank_device, stream)| wait_stream(&rank_device.device, stream))?;
            // SAFETY: the trial's own buffers, which stay until the streams have passed.
            unsafe { p2p_threads.launch(&parts, last, &work)? };
            for (rank_device, stream) in rank_devices.iter().zip(streams) {
                wait_stream(&rank_device.device, stream)?;
            }
            if turn > 0 {
                best_ms = best_ms.min(self.around[1].since(&self.around[0])?);
            }
        }
        self.compare(rank_devices, streams, (way, count))?;
        Ok(Some(f64::from(best_ms) * 1e3))
    }

    /// Look at the sums that all ranks have.
    fn compare(
        &self,
        rank_devices: &[&RankDevice],
        streams: &[OwnedStream],
        (way, count): (KernelPath, usize),
    ) -> Result<()> {
        for (rank, (rank_device, stream)) in rank_devices.iter().zip(streams).enumerate() {
            {
                let _current = rank_device.device.enter()?;
                let (to, from) = (self.back.pointer(), self.buffers[rank][1].pointer());
                // SAFETY: both have the bytes, and stay until the stream has passed.
                unsafe { copy(&rank_device.device, to, from, 4 * count, stream.raw())? };
            }
            wait_stream(&rank_device.device, stream)?;
            // SAFETY: as many elements, all written; nothing of the device uses them now.
            let got: &[u32] =
                unsafe { std::slice::from_raw_parts(self.back.pointer().cast(), count) };
            check(got, rank_devices.len(), rank, way)?;
        }
        Ok(())
    }
}

fn kernels(rank_device: &RankDevice) -> Result<&Kernels> {
    rank_device.kernels.as_deref().ok_or_else(|| Error::Internal("a launch without kernels".into()))
}
