//! Whether one device's kernels really read and write another's memory: tried, not believed.
//!
//! Drivers have been seen to promise peer access where a bridge or an IOMMU between the devices
//! drops or changes what passes. A pattern goes through each way once, before the first call relies
//! on it.
#![allow(unsafe_code)]

use super::rank_device::RankDevice;
use crate::communicator::gpu::staging::NAP;
use crate::device::cuda::{
    DeferredFree, Device, DeviceMemory, Event, Fused, Kernels, OwnedStream, Pinned, Recording, copy,
};
use crate::error::{Error, Result};
use crate::types::DataType;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are sent: several lines and pages, and not a multiple of either.
const BYTES: usize = 20_011;

/// A probe that has not come back by then never will: it takes microseconds.
const LONGEST: Duration = Duration::from_secs(5);

/// What a probe works with: two streams and three pieces of memory of [`BYTES`].
struct PeerProbe {
    near: OwnedStream,
    far: OwnedStream,
    theirs: DeferredFree<DeviceMemory>,
    out: DeferredFree<Pinned>,
    back: DeferredFree<Pinned>,
}

/// What came of a probe.
pub enum Probed {
    Works,
    Fails(Error),
}

/// Whether the kernels of `from` read and write the memory of `to`'s device.
pub fn probe_peer_access(from: &RankDevice, to: &RankDevice) -> Result<Probed> {
    let fails = |what: &str| {
        let (from, to) = (from.device.ordinal, to.device.ordinal);
        Probed::Fails(Error::Cuda(format!("CUDA devices {from} and {to}: {what}")))
    };
    let Some(kernels) = &from.kernels else { return Ok(fails("there are no kernels")) };
    if !from.device.reach(&to.device)? {
        return Ok(fails("the driver gives the one no access to the other's memory"));
    }
    let bench = PeerProbe::new(&from.device, &to.device)?;
    match both_ways(from, to, kernels, &bench) {
        Ok(came) => {
            bench.release();
            Ok(match came {
                true => Probed::Works,
                false => fails("what the one writes in the other's memory is not what arrives"),
            })
        }
        Err(error) => {
            // Something may be under way for ever, and to free the memory would wait for it.
            std::mem::forget(bench);
            Err(error)
        }
    }
}

impl PeerProbe {
    fn new(from: &Arc<Device>, to: &Arc<Device>) -> Result<PeerProbe> {
        Ok(PeerProbe {
            near: OwnedStream::new(from)?,
            far: OwnedStream::new(to)?,
            theirs: DeferredFree::of(to, BYTES)?,
            out: DeferredFree::of(from, BYTES)?,
            back: DeferredFree::of(from, BYTES)?,
        })
    }

    /// Nothing of it is under way.
    fn release(self) {
        self.theirs.release();
        self.out.release();
        self.back.release();
    }
}

/// Send a pattern each way; whether it came as it was.
fn both_ways(
    from: &RankDevice,
    to: &RankDevice,
    kernels: &Kernels,
    bench: &PeerProbe,
) -> Result<bool> {
    let PeerProbe { near, far, theirs, out, back } = bench;
    for reads in [true, false] {
        // SAFETY: the memory of both is ours, and nothing of the other way is under way.
        let (sent, came) = unsafe {
            let slice = |pinned: &Pinned| std::slice::from_raw_parts_mut(pinned.pointer(), BYTES);
            (slice(out), slice(back))
        };
        sent.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8 ^ u8::from(reads));
        came.fill(0xee);
        // Its own copies put the pattern there and fetch it; the kernel of the other does the rest.
        let by_cma = |source: *const u8, target: *mut u8| {
            let _current = from.device.enter()?;
            let mut copying = Fused::copying(kernels, near.raw(), DataType::Uint8, BYTES);
            let ends = (source.expose_provenance() as u64, target.expose_provenance() as u64);
            copying.add(&[ends.0], &[ends.1], BYTES)?;
            copying.launch()?;
            wait_stream(&from.device, near)
        };
        let by_itself = |source: *const u8, target: *mut u8| {
            {
                let _current = to.device.enter()?;
                // SAFETY: all buffers have the bytes, and stay until the stream has passed.
                unsafe { copy(&to.device, target, source, BYTES, far.raw())? };
            }
            wait_stream(&to.device, far)
        };
        if reads {
            by_itself(out.pointer(), theirs.pointer())?;
            by_cma(theirs.pointer(), back.pointer())?;
        } else {
            by_cma(out.pointer(), theirs.pointer())?;
            by_itself(theirs.pointer(), back.pointer())?;
        }
        if sent != came {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Wait until a stream is through.
pub fn wait_stream(device: &Arc<Device>, stream: &OwnedStream) -> Result<()> {
    let event = Event::new(device, Recording::Moment)?;
    let _current = device.enter()?;
    event.record(stream.raw())?;
    let started = Instant::now();
    while !event.has_passed()? {
        if started.elapsed() > LONGEST {
            return Err(Error::Cuda(format!(
                "a probe on CUDA device {} did not come back",
                device.ordinal
            )));
        }
        std::thread::sleep(NAP);
    }
    Ok(())
}
