//! The calls of the user's, which may name device memory and a stream.
#![allow(unsafe_code)]

use super::super::{Call, Communicator};
use super::Posted;
use crate::device::cuda::Kind;
use crate::error::{Error, Result};

impl Communicator {
    /// Where the ranks of a call meet that wait for each other nowhere else, as far as can be said
    /// before they have come, and how many they are.
    pub fn meets(&self, call: &Call) -> Option<(usize, usize)> {
        let desk = self.gpu.as_ref().and_then(|gpu| gpu.desk.as_ref())?;
        let is_it = desk.is_all_there_is() && !super::is_apart(call);
        is_it.then(|| (std::sync::Arc::as_ptr(desk).addr(), self.nranks))
    }

    /// As [`Communicator::run`], for a call of the user's: its buffers may be this rank's device's,
    /// and it is ordered by the call's stream.
    ///
    /// # Safety
    /// As for `run`, until the stream is past the call.
    #[inline]
    #[allow(unsafe_code)]
    pub unsafe fn call(&self, call: &Call) -> Result<()> {
        let Some(gpu) = self.gpu.as_ref().filter(|_| call.order.ticket.is_some()) else {
            // SAFETY: the caller's promise.
            return unsafe { self.run_on(call, self.gpu.as_ref(), None) };
        };
        let unless = || gpu.jam(call.collective.name());
        // SAFETY: the caller's promise.
        unsafe { self.run_on(call, Some(gpu), Some(&unless)) }
    }

    /// As [`Communicator::exchange`], for messages of the user's, each ordered by its stream.
    ///
    /// # Safety
    /// Every buffer is valid for its count, until its stream is past the messages.
    #[allow(unsafe_code)]
    pub unsafe fn post(&self, posted: &[Posted]) -> Result<()> {
        self.exchanged(|engine| {
            let Some(gpu) = &self.gpu else {
                // SAFETY: the caller's promise.
                return unsafe { engine.exchange(posted, &self.watched, None, None) };
            };
            engine.check_messages(posted)?;
            gpu.exchange(posted, &self.watched, &mut |messages, bays| {
                // SAFETY: the caller's promise, or pinned memory of the same lengths, or bays.
                unsafe { engine.exchange(messages, &self.watched, None, bays) }
            })
        })
    }

    /// Refuse memory that only the device reads; `what` is its name.
    pub fn check_on_host(&self, pointer: *const u8, what: &str) -> Result<()> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        let _current = gpu.device.enter()?;
        match gpu.device.kind(pointer)? {
            Kind::Host => Ok(()),
            Kind::Device { .. } => Err(Error::argument(format!(
                "{what} is in the memory of a CUDA device; it is read on the host"
            ))),
        }
    }

    /// The number of the CUDA device that this rank is on, if it is on one.
    #[inline]
    pub fn device(&self) -> Option<i32> {
        self.gpu.as_ref().map(|gpu| gpu.device.ordinal)
    }
}
