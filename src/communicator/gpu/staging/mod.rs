//! Calls on device memory through pinned host memory and the collectives of the processor.
//!
//! The input is copied to the host in the stream's order; when it has come the collective runs as
//! any other; the result is copied back in the stream's order. Either the caller waits for the
//! input and runs the collective, and no stream waits for another rank; or the stream is given
//! both copies, with a wait for the host between them ([`async_calls`]).
//!
//! Pinned memory comes with the communicator, and holds two portions of a call; what is longer goes
//! through it in turns ([`portions`]), or, as the batches of two ranks need not be
//! alike and cannot be cut alike, message by message ([`send_recv_pipeline`]). Memory is freed with
//! the communicator only: to free it waits for every stream of the device, whatever other libraries
//! have on them.
#![allow(unsafe_code)]

pub(in crate::communicator) mod async_calls;
pub(super) mod driver_deadlock;
mod portions;
pub(super) mod send_recv;
mod send_recv_pipeline;

use super::super::call::{Call, Extents};
use super::BufferKinds;
use async_calls::StreamWords;

use crate::communicator::call::portions::{CallExtent, LINE, RunOnHost};
use crate::communicator::health::wait_check::{CommHealth, OpWaitCheck};
use crate::device::cuda::{
    DeferredFree, Device, Event, Pinned, RawStream, Recording, copy, wait, wait_value, write_value,
};
use crate::error::{Error, Result};
pub use crate::executor::bounced_send_recv::NAP;
use crate::plan::Collective;
use crate::sync::atomic::{AtomicU32, Ordering::*};
use crate::transport::wait::WaitCheck;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks at an event before the processor is given to others: a few microseconds, as long as a
/// short copy takes.
const SPINS: u32 = 200;

/// A copy takes milliseconds; what is before it on a stream may take longer, or for ever.
const SOON: Duration = Duration::from_secs(2);

/// One rank's pinned memory and the moments that guard it.
pub struct Staging {
    pub(super) device: Arc<Device>,
    /// `None` once it was given up.
    pinned: Option<DeferredFree<Pinned>>,
    /// Bytes of a portion, of which there is always room for two.
    pub(super) portion_bytes: usize,
    /// What was copied to the host has come; by the portion's place, and of other calls the first.
    pub(super) arrived: [Event; 2],
    /// What was copied from the host has left.
    pub(super) left: Event,
    /// Copies may have been given to streams that no event stands for.
    pub(super) is_loose: bool,
    pub(super) words: Arc<StreamWords>,
    /// By place of a bounce buffer, the last copy's number.
    pub(super) numbers: Vec<u32>,
    /// The last call that was given to a stream whole.
    last: u32,
}

/// A call whose stream waits for the host until this is dropped.
pub struct EnqueuedCall {
    words: Arc<StreamWords>,
    last: u32,
}

impl EnqueuedCall {
    /// Of the call, or of its last portion.
    pub fn ticket(&self) -> u32 {
        self.last
    }
}

impl Drop for EnqueuedCall {
    fn drop(&mut self) {
        self.words.finish(self.last);
    }
}

impl Staging {
    pub fn new(device: &Arc<Device>, portion_bytes: usize, nranks: usize) -> Result<Staging> {
        let event = || Event::new(device, Recording::Moment);
        let (arrived, left) = ([event()?, event()?], event()?);
        let numbers = vec![0; send_recv_pipeline::places(nranks)];
        let words = Arc::new(StreamWords::new(device, numbers.len())?);
        let pinned = Some(DeferredFree::of(device, 2 * portion_bytes)?);
        let (device, is_loose, last) = (device.clone(), false, 0);
        Ok(Staging { device, pinned, portion_bytes, arrived, left, is_loose, words, numbers, last })
    }

    pub fn words(&self) -> Arc<StreamWords> {
        self.words.clone()
    }

    /// The next call that a stream is given whole, in so many portions.
    pub fn ticket(&mut self, number: usize) -> EnqueuedCall {
        self.last = self.last.wrapping_add(number as u32);
        EnqueuedCall { words: self.words.clone(), last: self.last }
    }

    /// Give a call's stream all of it but the host's part, which is the call that is returned.
    pub fn give<'a>(
        &mut self,
        call: &Call<'a>,
        found: &BufferKinds,
        extents: &Extents,
        ticket: u32,
    ) -> Result<Call<'a>> {
        let stream = call.order.stream;
        let input = if found.sends { extents.input } else { 0 };
        let output = if found.receives { extents.output } else { 0 };
        let start = input.next_multiple_of(LINE);
        let base = self.base(start + output)?;
        let device = self.device.clone();
        let _current = device.enter()?;
        // The calls before this one have the memory until their results have left it.
        wait(stream, &self.left)?;
        self.is_loose = true;
        self.copy_in(base, call.send, input, stream)?;
        self.ask_host(stream, ticket)?;
        self.await_host(stream, ticket)?;
        let result = base.wrapping_add(start);
        if found.receives {
            self.copy_out(call, result, output)?;
        }
        self.left.record(stream)?;
        self.is_loose = false;
        let send = if found.sends { base.cast_const() } else { call.send };
        let recv = if found.receives { result } else { call.recv };
        Ok(Call { send, recv, ..call.clone() })
    }

    /// The stream says that what it copied has come. The context is current.
    pub(super) fn ask_host(&self, stream: RawStream, ticket: u32) -> Result<()> {
        // SAFETY: the words stay until `left` has passed.
        unsafe { write_value(&self.device, stream, address(self.words.come()), ticket) }
    }

    /// The stream waits until the host is through with something. The context is current.
    pub(super) fn await_host(&self, stream: RawStream, ticket: u32) -> Result<()> {
        // SAFETY: as above.
        unsafe { wait_value(&self.device, stream, address(self.words.done()), ticket) }
    }

    /// Run `call` on the host: `on_host` is the collective there.
    pub fn run(
        &mut self,
        call: &Call,
        found: &BufferKinds,
        extents: &Extents,
        watch: &OpWaitCheck,
        on_host: &mut RunOnHost,
    ) -> Result<()> {
        if !found.sends && !found.receives && call.order.stream.is_null() {
            // Host memory, and nothing to wait for: a call of the processor.
            return on_host(call, CallExtent::Whole);
        }
        let staged = |is_device: bool, bytes: usize| if is_device { bytes } else { 0 };
        let input = staged(found.sends, extents.input);
        let output = staged(found.receives, extents.output);
        // The output begins at a line of its own.
        let start = input.next_multiple_of(LINE);
        let base = self.room(start + output, watch)?;
        let mut on_cpu = call.clone();
        {
            let _current = self.device.enter()?;
            let mut copied = Ok(());
            if found.sends {
                on_cpu.send = base;
                copied = self.copy_in(base, call.send, input, call.order.stream);
            }
            let recorded = self.arrived[0].record(call.order.stream);
            self.is_loose = recorded.is_err();
            copied.and(recorded)?;
        }
        wait_for(&self.arrived[0], watch)?;
        if found.receives {
            on_cpu.recv = base.wrapping_add(start);
        }
        on_host(&on_cpu, CallExtent::Whole)?;
        if found.receives {
            let _current = self.device.enter()?;
            // The first of several copies may be under way where a later one is refused.
            let copied = self.copy_out(call, on_cpu.recv, output);
            let recorded = self.left.record(call.order.stream);
            self.is_loose = recorded.is_err();
            copied.and(recorded)?;
        }
        Ok(())
    }

    /// What `stream` is given next comes after the results that copies have left. The context is
    /// current.
    pub fn follow(&self, stream: RawStream) -> Result<()> {
        wait(stream, &self.left)
    }

    /// Memory of so many bytes that no copy uses any more.
    pub fn room(&mut self, bytes: usize, watch: &dyn StreamWaitCheck) -> Result<*mut u8> {
        self.arrived.iter().try_for_each(|arrived| wait_for(arrived, watch))?;
        wait_for(&self.left, watch)?;
        self.base(bytes)
    }

    /// Memory of so many bytes, which copies that were given before may still use.
    pub(in crate::communicator) fn base(&mut self, bytes: usize) -> Result<*mut u8> {
        self.forsake();
        self.memory(bytes)
    }

    /// Give up the memory of copies that nothing stands for.
    fn forsake(&mut self) {
        if std::mem::take(&mut self.is_loose) {
            self.leak();
        }
    }

    fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.pinned));
        std::mem::forget(self.words.clone());
    }

    /// The memory, which holds so many bytes; anew where it was given up.
    fn memory(&mut self, bytes: usize) -> Result<*mut u8> {
        let all = 2 * self.portion_bytes;
        assert!(bytes <= all, "what is longer than two portions goes in turns");
        if self.pinned.is_none() {
            self.pinned = Some(DeferredFree::of(&self.device, all)?);
        }
        Ok(self.pinned.as_ref().map_or(std::ptr::null_mut(), |pinned| pinned.pointer()))
    }

    fn copy_in(&self, to: *mut u8, from: *const u8, bytes: usize, stream: RawStream) -> Result<()> {
        // SAFETY: the pinned memory has room; the buffer is the caller's promise until the call is
        // done, which waits for this copy.
        unsafe { copy(&self.device, to, from, bytes, stream) }
    }

    /// Copy the result to where the call wants it: only what the collective writes.
    fn copy_out(&self, call: &Call, from: *const u8, bytes: usize) -> Result<()> {
        let copied = |offset: usize, bytes: usize| {
            let (to, from) = (call.recv.wrapping_add(offset), from.wrapping_add(offset));
            // SAFETY: the block lies in both buffers; the pinned one stays until `left` has passed,
            // the other is the caller's promise.
            unsafe { copy(&self.device, to, from, bytes, call.order.stream) }
        };
        let Some(vector) = call.vector else { return copied(0, bytes) };
        if matches!(call.collective, Collective::ReduceScatter | Collective::Scatter) {
            return copied(0, bytes);
        }
        let size = call.data_type.size();
        let blocks = vector.recv_counts.iter().zip(&vector.recv_displacements);
        blocks
            .filter(|(count, _)| **count > 0)
            .try_for_each(|(count, displacement)| copied(displacement * size, count * size))
    }

    /// Copies to the host were given to streams; wait until all have come.
    pub fn arrive(&mut self, streams: &[RawStream], watch: &dyn StreamWaitCheck) -> Result<()> {
        for (index, stream) in streams.iter().enumerate() {
            self.is_loose = true;
            {
                let _current = self.device.enter()?;
                self.arrived[0].record(*stream)?;
            }
            self.is_loose = index + 1 < streams.len();
            wait_for(&self.arrived[0], watch)?;
        }
        Ok(())
    }

    /// Copies from the host were given to streams: the memory is theirs until they are through.
    pub fn leave(&mut self, streams: &[RawStream], watch: &dyn StreamWaitCheck) -> Result<()> {
        for (index, stream) in streams.iter().enumerate() {
            self.is_loose = true;
            {
                let _current = self.device.enter()?;
                self.left.record(*stream)?;
            }
            if index + 1 < streams.len() {
                wait_for(&self.left, watch)?;
            } else {
                self.is_loose = false;
            }
        }
        Ok(())
    }

    /// Whether all copies that were ever given are through, or are so soon.
    fn is_at_rest(&self) -> bool {
        let started = Instant::now();
        if self.is_loose {
            return false;
        }
        loop {
            let mut events = self.arrived.iter().chain([&self.left]);
            match events.try_fold(true, |all, event| event.has_passed().map(|passed| all && passed))
            {
                Ok(true) => return true,
                Ok(false) if started.elapsed() < SOON => std::thread::sleep(NAP),
                _ => return false,
            }
        }
    }
}

impl Drop for Staging {
    /// The pinned memory is given up, not freed, where a copy may still use it: a call that was
    /// aborted has left one on its stream. To free it would wait for that stream, however long.
    fn drop(&mut self) {
        if self.pinned.is_some() && !self.is_at_rest() {
            self.leak();
        }
        self.pinned.take().into_iter().for_each(DeferredFree::release);
    }
}

fn address(word: &AtomicU32) -> u64 {
    std::ptr::from_ref(word).expose_provenance() as u64
}

/// What ends a wait for the device: an abort, a peer's failure, the deadline.
pub trait StreamWaitCheck {
    /// The error that ends a wait of so long.
    fn look(&self, waited: Duration) -> Result<()>;
}

impl StreamWaitCheck for OpWaitCheck<'_> {
    fn look(&self, waited: Duration) -> Result<()> {
        let rank = self.health.pages.rank;
        // Acquire: pairs with the Release in `Communicator::abort`.
        if self.health.aborted.load(Acquire) {
            return Err(Error::Aborted { rank, operation: Some(self.operation()) });
        }
        if waited > self.health.timeout {
            return Err(Error::Cuda(format!(
                "rank {rank} waited {} ms in {} for earlier work on its own stream; raise \
                 RINGCOMM_TIMEOUT_MS if that work takes so long",
                waited.as_millis(),
                self.operation()
            )));
        }
        self.check_peers()
    }
}

impl StreamWaitCheck for CommHealth {
    fn look(&self, waited: Duration) -> Result<()> {
        let rank = self.pages.rank;
        // Acquire: pairs with the Release in `Communicator::abort`.
        if self.aborted.load(Acquire) {
            return Err(Error::Aborted { rank, operation: None });
        }
        if waited > self.timeout {
            return Err(Error::Cuda(format!(
                "rank {rank} waited {} ms for earlier work on its own stream; raise \
                 RINGCOMM_TIMEOUT_MS if that work takes so long",
                waited.as_millis()
            )));
        }
        self.peer_error().map_or(Ok(()), Err)
    }
}

impl OpWaitCheck<'_> {
    /// A peer that has failed meanwhile, or is gone.
    fn check_peers(&self) -> Result<()> {
        let nranks = self.health.pages.nranks();
        let other = (self.health.pages.rank + 1) % nranks;
        if nranks == 1 { Ok(()) } else { self.check(other, Duration::ZERO) }
    }
}

/// Wait until an event's moment has passed.
pub fn wait_for(event: &Event, watch: &dyn StreamWaitCheck) -> Result<()> {
    wait_until(|| event.has_passed(), watch)
}

/// Wait until something is so.
pub fn wait_until(is_so: impl Fn() -> Result<bool>, watch: &dyn StreamWaitCheck) -> Result<()> {
    let started = Instant::now();
    let mut looks = 0;
    while !is_so()? {
        looks += 1;
        if looks < SPINS {
            std::hint::spin_loop();
        } else if looks < 2 * SPINS {
            std::thread::yield_now();
        } else {
            watch.look(started.elapsed())?;
            std::thread::sleep(NAP);
        }
    }
    Ok(())
}
