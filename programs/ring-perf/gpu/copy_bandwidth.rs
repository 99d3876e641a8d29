//! How fast the device copies within its own memory: the figure that others are held against.
#![allow(unsafe_code)]

use ringcomm::device::cuda::copy;
use ringcomm::device::cuda::{Device, DeviceMemory, Event, Fused, Kernels, OwnedStream, Recording};
use ringcomm::error::Result;
use ringcomm::types::DataType;
use std::sync::Arc;

/// Bytes that are copied at a time: several times the largest cache of today's devices.
const BYTES: usize = 256 << 20;

/// Copies that are timed together, and how often: the fastest counts.
const COPIES: usize = 10;
const ROUNDS: usize = 3;

/// Copies before that, a tenth of a second at 4 TB/s: a device that was idle is slow at first, and
/// what is held against a slow copy looks fast.
const WARMING: usize = 800;

/// GB/s, read plus written.
pub struct Bandwidth {
    pub driver: f64,
    pub kernel: f64,
}

impl Bandwidth {
    pub fn measure(device: &Arc<Device>) -> Result<Bandwidth> {
        let (bytes, warming) = amounts(device);
        let (from, to) = (DeviceMemory::new(device, bytes)?, DeviceMemory::new(device, bytes)?);
        let stream = OwnedStream::new(device)?;
        let (source, target) = (from.pointer(), to.pointer());
        // SAFETY: both have the bytes, until the stream is synchronized.
        let by_driver = || unsafe { copy(device, target, source, bytes, stream.raw()) };
        let driver = timed(device, &stream, (bytes, warming), &by_driver)?;
        let Ok(kernels) = Kernels::of(device)? else {
            return Ok(Bandwidth { driver, kernel: f64::NAN });
        };
        let (source, target) =
            (source.expose_provenance() as u64, target.expose_provenance() as u64);
        let by_cma = || {
            let mut copying = Fused::copying(&kernels, stream.raw(), DataType::Uint8, bytes);
            copying.add(&[source], &[target], bytes)?;
            copying.launch()
        };
        let kernel = timed(device, &stream, (bytes, warming), &by_cma)?;
        Ok(Bandwidth { driver, kernel })
    }

    /// The larger of the two.
    pub fn best(&self) -> f64 {
        self.driver.max(self.kernel)
    }
}

/// Bytes of a copy, and copies before any is timed. The tests' driver, of eight multiprocessors,
/// copies at the pace of the processor; the smallest device that the kernels are compiled for has
/// more.
fn amounts(device: &Device) -> (usize, usize) {
    if device.multiprocessors <= 8 { (BYTES >> 6, 0) } else { (BYTES, WARMING) }
}

/// GB/s that cross from the first device to the second; `None` where this process sees no second
/// one, or the first does not reach it.
pub fn between(first: &Arc<Device>) -> Result<Option<f64>> {
    let Ok(second) = Device::of_ordinal(1) else { return Ok(None) };
    if !first.reach(&second)? {
        return Ok(None);
    }
    let (bytes, warming) = amounts(first);
    let (from, to) = (DeviceMemory::new(first, bytes)?, DeviceMemory::new(&second, bytes)?);
    let stream = OwnedStream::new(first)?;
    // SAFETY: both have the bytes, until the stream is synchronized.
    let work = || unsafe { copy(first, to.pointer(), from.pointer(), bytes, stream.raw()) };
    // A copy's bytes count twice there, as they are read and written.
    timed(first, &stream, (bytes, warming), &work).map(|both| Some(both / 2.0))
}

fn timed(
    device: &Arc<Device>,
    stream: &OwnedStream,
    (bytes, warming): (usize, usize),
    work: &dyn Fn() -> Result<()>,
) -> Result<f64> {
    let event = || Event::new(device, Recording::Time);
    let (begin, end) = (event()?, event()?);
    let mut best = 0f64;
    {
        let _current = device.enter()?;
        (0..warming).try_for_each(|_| work())?;
    }
    for _ in 0..=ROUNDS {
        {
            let _current = device.enter()?;
            begin.record(stream.raw())?;
            (0..COPIES).try_for_each(|_| work())?;
            end.record(stream.raw())?;
        }
        stream.synchronize()?;
        let seconds = f64::from(end.since(&begin)?).max(1e-6) / 1e3;
        best = best.max(2.0 * (bytes * COPIES) as f64 / seconds / 1e9);
    }
    Ok(best)
}
