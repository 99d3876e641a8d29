//! Calls on device memory that return at once: the stream has all of a call but the host's part,
//! which this communicator's thread runs.
#![allow(unsafe_code)]

use super::group::{GroupAction, GroupMember, StreamJob};
use super::{Deferred, GivenMessages, OwnedCall};
use crate::communicator::Communicator;
use crate::communicator::call::{Call, Order, StreamTicket, message};
use crate::communicator::gpu::staging::EnqueuedCall;
use crate::communicator::gpu::staging::async_calls::{MOST_ENTRIES, Outstanding, entries};
use crate::communicator::gpu::{Gpu, OrderedMessage};
use crate::error::Result;
use crate::sync::atomic::Ordering::*;
use std::sync::Arc;

impl Communicator {
    /// Give a call to its stream, and the host's part of it to this communicator's thread, where
    /// the call goes through the host; whether it does.
    ///
    /// # Safety
    /// The buffers of `call` stay valid until its stream has passed it.
    #[inline]
    pub unsafe fn try_enqueue(self: &Arc<Communicator>, call: &Call) -> Result<bool> {
        match &self.gpu {
            None => Ok(false),
            // SAFETY: the caller's promise.
            Some(gpu) => unsafe { self.give_to(gpu, call) },
        }
    }

    /// # Safety
    /// As for `try_enqueue`.
    unsafe fn give_to(self: &Arc<Communicator>, gpu: &Gpu, call: &Call) -> Result<bool> {
        self.check_process()?;
        self.check()?;
        let extents = call.extents(self.rank, self.nranks)?;
        extents.check(call, self.rank)?;
        let inside = gpu.launch_barrier.is_none().then(|| gpu.callers.enter(self.rank));
        let found = gpu.inspect(call, &extents)?;
        if !gpu.is_ahead(&found, &extents) {
            return Ok(false);
        }
        let portions = self.plan_context().portions(call, &extents, &self.config)?;
        let worker = self.worker()?;
        // The stream's order is the thread's.
        let mut giving = gpu.giving.lock();
        // Relaxed: it only counts.
        let outstanding = giving.of(gpu.words.done().load(Relaxed));
        let entries = portions.map_or(0, |portions| entries(call, &portions));
        if entries > 0 && outstanding.saturating_add(entries) > MOST_ENTRIES {
            return Ok(false);
        }
        let mut staging = gpu.staging.lock();
        let base = staging.base(0)?;
        let given = staging.ticket(portions.map_or(1, |portions| portions.number));
        let last = given.ticket();
        if entries > 0 {
            *giving = Outstanding { entries: outstanding + entries, last };
        }
        let staged = match &portions {
            // Its buffers are the call's, which its portions are parts of.
            Some(portions) => staging.give_portions(call, portions, last).map(|()| call.clone()),
            None => staging.give(call, &found, &extents, last),
        };
        drop((staging, inside));
        let moved = match staged {
            Ok(moved) => moved,
            Err(error) => {
                let error = self.record_failure(error);
                // Calls before this one have their results before their streams go on.
                self.follow();
                drop::<EnqueuedCall>(given);
                return Err(error);
            }
        };
        let order = Order { ticket: Some(StreamTicket { last, base }), ..Order::default() };
        let moved = Call { order, ..moved };
        // SAFETY: pinned memory, which is the stream's and the thread's until both are through.
        let owned = unsafe { OwnedCall::given(&moved, given) };
        let owned = GroupAction::Collective(Deferred::Collective(owned));
        worker.submit(StreamJob::one(Arc::clone(self), owned))?;
        Ok(true)
    }

    /// Give messages to their stream, and the host's part of them to this communicator's thread,
    /// where they have one stream, all of them are of device memory, and the pinned memory has room
    /// for them; whether that is so.
    ///
    /// # Safety
    /// Every buffer is valid for its count until the stream has passed the messages.
    pub(in crate::communicator) unsafe fn try_enqueue_messages(
        self: &Arc<Communicator>,
        posted: &[OrderedMessage],
    ) -> Result<bool> {
        let Some((gpu, first)) = self.gpu.as_ref().zip(posted.first()) else { return Ok(false) };
        let is_one =
            |one: &OrderedMessage| one.order.stream == first.order.stream && !one.order.settles;
        if !posted.iter().all(is_one) || !gpu.may_go_ahead() {
            return Ok(false);
        }
        self.check_process()?;
        self.check()?;
        message::check(posted, self.rank, self.nranks)?;
        let inside = gpu.launch_barrier.is_none().then(|| gpu.callers.enter(self.rank));
        let found = gpu.look_at(posted)?;
        if !found.is_away || found.bytes > 2 * gpu.portion_bytes {
            return Ok(false);
        }
        let worker = self.worker()?;
        // The stream's order is the thread's.
        let mut giving = gpu.giving.lock();
        // Relaxed: it only counts.
        let outstanding = giving.of(gpu.words.done().load(Relaxed));
        // A copy for each, a word to write, one to wait for, and two events.
        let entries = outstanding + posted.len() + 4;
        if entries > MOST_ENTRIES {
            return Ok(false);
        }
        let mut staging = gpu.staging.lock();
        // Memory that was given up comes anew, if it can.
        staging.base(found.bytes)?;
        let given = staging.ticket(1);
        *giving = Outstanding { entries, last: given.ticket() };
        // SAFETY: the caller's promise.
        let staged = unsafe { staging.give_messages(posted, found.bytes, given.ticket()) };
        drop((staging, inside));
        let messages = match staged {
            Ok(messages) => messages,
            Err(error) => {
                let error = self.record_failure(error);
                // Calls before these have their results before their streams go on.
                self.follow();
                drop::<EnqueuedCall>(given);
                return Err(error);
            }
        };
        let given = Deferred::Messages(GivenMessages { messages, given });
        worker.submit(StreamJob::one(Arc::clone(self), GroupAction::Collective(given)))?;
        Ok(true)
    }

    /// The host's part of messages that their stream has.
    ///
    /// # Safety
    /// The memory of the messages is theirs until the stream is told that they are through.
    pub(super) unsafe fn exchange_given(&self, given: &GivenMessages) -> Result<()> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        self.exchanged(|engine| {
            gpu.wait_for_input(given.given.ticket(), &self.health)?;
            let cancel = || gpu.jam("its messages");
            // SAFETY: the caller's promise.
            unsafe { engine.exchange(&given.messages, &self.health, Some(&cancel), None) }
        })
    }
}
