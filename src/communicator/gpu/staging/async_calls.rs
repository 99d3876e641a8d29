//! Calls through the host that return at once: the stream has all of a call but the host's part.
//!
//! The stream is given the copy to pinned memory, a word to write when that has come, a wait for
//! another word, and the copy back. The communicator's thread waits for the first word, runs the
//! collective of the processor, and writes the second, whatever became of the call: with an error,
//! an abort or at the deadline, the stream goes on. A call in portions is given so portion by
//! portion, each with the copy of the next before its wait; the messages of a group are given as
//! one call.
//!
//! A stream that waits holds up what is behind it in its hardware queue. So a rank that shares its
//! device with another one of its communicator, in its process, does not do this: the other one's
//! copy, for which all wait, may be behind.
#![allow(unsafe_code)]

use super::portions;
use super::{StreamWaitCheck, wait_until};
use crate::communicator::call::portions::{CallExtent, Portions, RunOnHost, Side};
use crate::communicator::call::{Call, Extents, StreamTicket};
use crate::communicator::gpu::{BufferKinds, Gpu, Sharing};
use crate::communicator::health::wait_check::OpWaitCheck;
use crate::device::cuda::{DeferredFree, Device, Pinned};
use crate::error::Result;
use crate::fork::ForkSafeMutex;
use crate::sync::atomic::{AtomicU32, Ordering::*};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// From one word to the next: a line of the widest cache, as one is polled by the processor.
const LINE: usize = 128;

/// What streams write and wait for, in pinned memory, which devices address as this process does.
pub struct StreamWords(Option<DeferredFree<Pinned>>);

// SAFETY: the words are atomics.
unsafe impl Sync for StreamWords {}

impl StreamWords {
    /// Two for calls, and so many for places that copies come to.
    pub fn new(device: &Arc<Device>, places: usize) -> Result<StreamWords> {
        let bytes = 2 * LINE + places * size_of::<AtomicU32>();
        let memory = DeferredFree::<Pinned>::of(device, bytes)?;
        // SAFETY: as many bytes, which nobody else has.
        unsafe { memory.pointer().write_bytes(0, bytes) };
        Ok(StreamWords(Some(memory)))
    }

    /// The last call whose input has come to the host.
    pub fn come(&self) -> &AtomicU32 {
        // SAFETY: aligned to a page, and zeroed.
        unsafe { &*self.start().cast() }
    }

    /// The last call whose result the host has.
    pub fn done(&self) -> &AtomicU32 {
        // SAFETY: as above, one line further.
        unsafe { &*self.start().add(LINE).cast() }
    }

    /// The last copy of a place that is through.
    pub fn place(&self, place: usize) -> &AtomicU32 {
        // SAFETY: as above; there are as many words as places.
        unsafe { &*self.start().add(2 * LINE).cast::<AtomicU32>().add(place) }
    }

    /// The host is through with what has this number, whatever became of it.
    pub fn finish(&self, ticket: u32) {
        // Release: pairs with the stream's wait, whose copy comes after it.
        let _: Result<u32, u32> =
            self.done().fetch_update(Release, Relaxed, |done| forward(done, ticket));
    }

    fn start(&self) -> *mut u8 {
        self.0.as_ref().expect("there until this is dropped").pointer()
    }

    /// Wait until the input of a call has come.
    pub(in crate::communicator) fn wait(
        &self,
        ticket: u32,
        watch: &dyn StreamWaitCheck,
    ) -> Result<()> {
        // Acquire: pairs with the stream's write, which comes after its copy.
        wait_until(|| Ok(self.come().load(Acquire).wrapping_sub(ticket) as i32 >= 0), watch)?;
        // An abort before the input came ends the call, too.
        watch.look(Duration::ZERO)
    }
}

impl Drop for StreamWords {
    /// No stream waits for them any more: who leaves one that does keeps them for good.
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(DeferredFree::release);
    }
}

/// What the word of what is done becomes when a call ends. A refused call may end before those that
/// were given before it: their streams wait for less, so the word never goes back. It wraps, as the
/// streams' comparison does.
fn forward(done: u32, ticket: u32) -> Option<u32> {
    (ticket.wrapping_sub(done) as i32 > 0).then_some(ticket)
}

/// The devices of this process that ranks of communicators are on: all ranks of one hold the same.
static SEATS: ForkSafeMutex<BTreeMap<HoldKey, Weak<()>>> = ForkSafeMutex::new(BTreeMap::new());

/// A communicator's name, and the number of a device.
type HoldKey = (Vec<u8>, i32);

/// A rank's hold of its communicator's place on a device.
pub struct DeviceHold(Arc<()>);

impl DeviceHold {
    pub fn of(name: &[u8], ordinal: i32) -> DeviceHold {
        let mut seats = SEATS.lock();
        seats.retain(|_, seat| seat.strong_count() > 0);
        let seat = seats.entry((name.to_vec(), ordinal)).or_default();
        let place = seat.upgrade().unwrap_or_default();
        *seat = Arc::downgrade(&place);
        DeviceHold(place)
    }

    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// The most that streams are given of messages and of calls in portions that return before they are
/// done. A driver takes some 1,000 entries of a stream before it makes the caller wait for the
/// first of them, which may wait for a call that the same caller is yet to make.
pub(in crate::communicator) const MOST_ENTRIES: usize = 512;

/// What streams have been given of these and the host may not have done yet.
#[derive(Default)]
pub struct Outstanding {
    pub(in crate::communicator) entries: usize,
    /// The last of these calls.
    pub(in crate::communicator) last: u32,
}

impl Outstanding {
    /// Entries, once the host has `done` what has this number.
    pub(in crate::communicator) fn of(&self, done: u32) -> usize {
        if done.wrapping_sub(self.last) as i32 >= 0 { 0 } else { self.entries }
    }
}

/// Entries of a stream for a call in portions.
pub(in crate::communicator) fn entries(call: &Call, portions: &Portions) -> usize {
    let blocks = portions.blocks(call, Side::Input) + portions.blocks(call, Side::Output);
    portions.number.saturating_mul(blocks + 2)
}

impl Gpu {
    /// Whether a call returns before the host has done its part.
    pub(in crate::communicator) fn is_ahead(&self, found: &BufferKinds, extents: &Extents) -> bool {
        // What is in host memory is the caller's again when the call returns.
        let is_all_here =
            found.sends == (extents.input > 0) && found.receives == (extents.output > 0);
        is_all_here && (found.sends || found.receives) && self.may_go_ahead()
    }

    /// Whether calls of this rank go through the host, and its streams may wait for that.
    pub(in crate::communicator) fn may_go_ahead(&self) -> bool {
        let goes_through_host =
            self.launch_barrier.is_none() && !matches!(*self.sharing.lock(), Sharing::Works(_));
        goes_through_host && !self.place.is_shared()
    }

    /// Wait until a stream has come to what it was given; from then on it waits for the host.
    pub(in crate::communicator) fn wait_for_input(
        &self,
        ticket: u32,
        watch: &dyn StreamWaitCheck,
    ) -> Result<()> {
        *self.on_host_since.lock() = None;
        self.words.wait(ticket, watch)?;
        *self.on_host_since.lock() = Some(Instant::now());
        Ok(())
    }

    /// The host's part of a call that a stream has already; whether this was one.
    pub(in crate::communicator::gpu) fn run_given(
        &self,
        call: &Call,
        portions: Option<&Portions>,
        watch: &OpWaitCheck,
        on_host: &mut RunOnHost,
    ) -> Option<Result<()>> {
        let StreamTicket { last, base } = call.order.ticket?;
        let Some(cut) = portions else {
            let come = self.wait_for_input(last, watch);
            return Some(come.and_then(|()| on_host(call, CallExtent::Whole)));
        };
        Some((0..cut.number).try_for_each(|index| {
            let ticket = last.wrapping_sub((cut.number - 1 - index) as u32);
            self.wait_for_input(ticket, watch)?;
            let place = portions::at(base, index, self.portion_bytes);
            let buffers = portions::packed(call, cut, index, place);
            let lists = cut.lists(call, index);
            on_host(&cut.call(call, index, buffers, lists.as_ref()), CallExtent::Portion(index))?;
            self.words.finish(ticket);
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::forward;

    #[test]
    fn the_word_of_what_is_done_never_goes_back() {
        for first in [0, 1, u32::MAX - 1, u32::MAX] {
            let next = first.wrapping_add(1);
            assert_eq!(forward(first, next), Some(next));
            assert_eq!(forward(next, first), None);
            assert_eq!(forward(next, next), None);
        }
    }
}
