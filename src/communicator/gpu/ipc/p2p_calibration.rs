//! Calibration of P2P kernels between processes: a trial that compares and times them before the
//! first call relies on them. It goes as between the ranks of one process
//! ([`kernel_calibration`]), but each rank launches its own kernel, and all tell all how it went.
//!
//! The shortest of the ranks' times counts: that of the rank which came last, to which all others
//! had come.
#![allow(unsafe_code)]

use super::p2p::{Own, P2pProcesses, agreed};
use super::peer_values::PeerValues;
use crate::algorithm::Algorithm;
use crate::communicator::gpu::p2p::kernel_calibration::{
    self, LARGE, POISON, SHIFT, SMALL, TIMES, element,
};
use crate::communicator::gpu::p2p::kernel_select::LinkCosts;
use crate::communicator::gpu::p2p::peer_access_probe::wait_stream;
use crate::communicator::gpu::p2p::threads::P2pCall;
use crate::device::cuda::{
    Capture, DeferredFree, Device, DeviceMemory, Event, OwnedStream, Pinned, Recording,
    SpinKernelsActive, copy, fill,
};
use crate::error::{Error, Result};
use crate::executor::device_p2p::KernelPath;
use crate::executor::device_work::RankBuffers;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::sync::Arc;

/// Elements that show what bytes take: beside fewer, what a crossing takes is in doubt by as much.
const LEAST_LARGE: usize = 1 << 14;

/// What a rank's trials work with.
struct ProcessTrials {
    device: Arc<Device>,
    rank: usize,
    nranks: usize,
    stream: OwnedStream,
    host: DeferredFree<Pinned>,
    input: DeferredFree<DeviceMemory>,
    output: DeferredFree<DeviceMemory>,
    /// Around the launch.
    around: [Event; 2],
}

/// What came of the trial: the same kind on all ranks.
pub enum Tried {
    Works(LinkCosts),
    /// Some rank could not begin, which is why, or a peer ended it; no kernel was launched.
    Unready(Result<Error>),
    /// Kernels may be under way for ever.
    Fails(Error),
}

/// Try the ways. The error is a peer's that ended it.
pub fn run(
    p2p_processes: &mut P2pProcesses,
    device: &Arc<Device>,
    talk: &mut PeerValues,
) -> Result<Tried> {
    let (rank, nranks) = (talk.links.rank, talk.links.nranks);
    let made = ProcessTrials::new(device, rank, nranks).and_then(|bench| {
        // Nothing is freed while these kernels run.
        Ok((bench, SpinKernelsActive::begin(p2p_processes.timeout() / 2)?))
    });
    let (bench, interlocked) = match agreed(made, talk) {
        Ok(Ok(made)) => made,
        Ok(Err(error)) => return Ok(Tried::Unready(Ok(error))),
        Err(error) => return Ok(Tried::Unready(Err(error))),
    };
    let tried = bench.all(p2p_processes, talk);
    if let Ok(Ok(pace)) = tried {
        bench.release();
        return Ok(Tried::Works(pace));
    }
    p2p_processes.station().control().stop();
    // To free anything would wait for what is under way.
    std::mem::forget((bench, interlocked));
    tried.map(|tried| Tried::Fails(tried.expect_err("it has no pace")))
}

impl ProcessTrials {
    fn new(device: &Arc<Device>, rank: usize, nranks: usize) -> Result<ProcessTrials> {
        let host = DeferredFree::<Pinned>::of(device, 4 * LARGE)?;
        let event = || Event::new(device, Recording::Time);
        let bench = ProcessTrials {
            device: device.clone(),
            rank,
            nranks,
            stream: OwnedStream::new(device)?,
            host,
            input: DeferredFree::of(device, 4 * LARGE)?,
            output: DeferredFree::of(device, 4 * LARGE)?,
            around: [event()?, event()?],
        };
        let place = bench.host.pointer().cast::<u32>();
        for index in 0..LARGE {
            // SAFETY: fresh memory of as many elements, which nobody else uses yet.
            unsafe { place.add(index).write(element(index + SHIFT * rank)) };
        }
        {
            let _current = device.enter()?;
            let (to, from) = (bench.input.pointer(), bench.host.pointer());
            // SAFETY: both have the bytes, and stay until the stream has passed.
            unsafe { copy(device, to, from, 4 * LARGE, bench.stream.raw())? };
        }
        wait_stream(device, &bench.stream)?;
        Ok(bench)
    }

    /// Nothing of it is under way.
    fn release(self) {
        self.host.release();
        self.input.release();
        self.output.release();
    }

    fn all(
        &self,
        p2p_processes: &mut P2pProcesses,
        talk: &mut PeerValues,
    ) -> Result<Result<LinkCosts>> {
        let ring = KernelPath::Plan(Algorithm::Ring);
        // With more messages it is crossings that are measured, of which a small budget needs many.
        let large = LARGE.min(p2p_processes.geometry.bytes_at_once() / 4);
        let mut whats = vec![(KernelPath::OneShot, SMALL), (ring, SMALL)];
        if large >= LEAST_LARGE {
            whats.push((ring, large));
        }
        let mut times = [None; 3];
        for (time, what) in times.iter_mut().zip(whats) {
            match self.time(p2p_processes, what, talk)? {
                Ok(found) => *time = found,
                Err(error) => return Ok(Err(error)),
            }
        }
        let [one_shot_us, small_us, large_us] = times;
        let bytes = (small_us, large_us, large.max(LEAST_LARGE));
        Ok(Ok(kernel_calibration::pace(self.nranks, (one_shot_us, small_us), bytes)))
    }

    /// Microseconds of a sum of so many elements; `None` where it is not done so.
    fn time(
        &self,
        p2p_processes: &mut P2pProcesses,
        (way, count): (KernelPath, usize),
        talk: &mut PeerValues,
    ) -> Result<Result<Option<f64>>> {
        let call = P2pCall {
            collective: Collective::AllReduce,
            root: 0,
            count,
            data_type: DataType::Uint32,
            op: ReduceOp::Sum,
            is_plain: false,
        };
        match p2p_processes.does(&call, way) {
            Ok(true) => {}
            does => return Ok(does.map(|_| None)),
        }
        let mut best_ms = f32::MAX;
        for turn in 0..=TIMES {
            let took = self.turn(p2p_processes, &call, way);
            // No time is 0 here.
            let word = took.as_ref().map_or(0, |ms| 1 + u64::from(ms.max(0.0).to_bits()));
            let all = talk.exchange(word, 0..self.nranks)?;
            if let Err(error) = took {
                return Ok(Err(error));
            }
            if let Some(rank) = all.iter().position(|word| *word == 0) {
                let text = format!("rank {rank} could not do its part of a trial ({way:?})");
                return Ok(Err(Error::Cuda(text)));
            }
            if turn > 0 {
                let times = all.iter().map(|word| f32::from_bits((word - 1) as u32));
                best_ms = times.fold(best_ms, f32::min);
            }
        }
        let right = agreed(self.compare(way, count), talk)?;
        Ok(right.map(|()| Some(f64::from(best_ms) * 1e3)))
    }

    /// One sum; its milliseconds here.
    fn turn(
        &self,
        p2p_processes: &mut P2pProcesses,
        call: &P2pCall,
        way: KernelPath,
    ) -> Result<f32> {
        let on = (self.stream.raw(), Capture::No);
        let address =
            |memory: &DeferredFree<DeviceMemory>| memory.pointer().expose_provenance() as u64;
        let place = RankBuffers { input: address(&self.input), output: address(&self.output) };
        {
            let _current = self.device.enter()?;
            // What the way before has left must not pass for this one's.
            // SAFETY: the buffer's own bytes, which stay until the stream has passed.
            unsafe { fill(&self.device, self.output.pointer(), POISON, 4 * call.count, on.0)? };
        }
        let prepared = p2p_processes.prepare(call, way, on)?;
        wait_stream(&self.device, &self.stream)?;
        let record = |moment: usize| {
            let _current = self.device.enter()?;
            self.around[moment].record(on.0)
        };
        record(0)?;
        // SAFETY: the trial's own buffers, which stay until the stream has passed.
        unsafe { p2p_processes.launch(call, prepared, Own { place, scalar: 1.0 }, on)? };
        record(1)?;
        wait_stream(&self.device, &self.stream)?;
        self.around[1].since(&self.around[0])
    }

    /// Look at the sums that this rank has.
    fn compare(&self, way: KernelPath, count: usize) -> Result<()> {
        {
            let _current = self.device.enter()?;
            let (to, from) = (self.host.pointer(), self.output.pointer());
            // SAFETY: both have the bytes, and stay until the stream has passed.
            unsafe { copy(&self.device, to, from, 4 * count, self.stream.raw())? };
        }
        wait_stream(&self.device, &self.stream)?;
        // SAFETY: as many elements, all written; nothing of the device uses them now.
        let got: &[u32] = unsafe { std::slice::from_raw_parts(self.host.pointer().cast(), count) };
        kernel_calibration::check(got, self.nranks, self.rank, way)
    }
}
