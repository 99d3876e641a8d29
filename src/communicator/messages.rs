//! Point-to-point messages of a communicator: batches that complete in any order, and, for callers
//! that have a queue of messages of their own, such as torch's tags, what waits for nobody.
#![allow(unsafe_code)]

use super::exec::Engine;
use super::failure::Unwinding;
use super::health::wait_check::CancelCheck;
use super::{Communicator, Message, OrderedMessage};
use crate::error::{Error, Result};
use crate::types::DataType;
use std::time::Duration;

impl Communicator {
    /// Run sends and receives together; they complete in any order.
    ///
    /// # Safety
    /// Every buffer is valid for its count.
    #[inline]
    #[doc(hidden)]
    pub unsafe fn exchange(&self, messages: &[Message]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.exchange_unless(messages, None) }
    }

    /// As [`Communicator::exchange`], ended soon with an error once it is called off.
    ///
    /// # Safety
    /// As for [`Communicator::exchange`].
    #[inline]
    pub(super) unsafe fn exchange_unless(
        &self,
        messages: &[Message],
        cancel: CancelCheck,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        self.exchanged(|engine| unsafe { engine.exchange(messages, &self.health, cancel, None) })
    }

    /// As [`Communicator::exchange`], for messages of the user's, each ordered by its stream.
    ///
    /// # Safety
    /// Every buffer is valid for its count, until its stream is past the messages.
    #[doc(hidden)]
    pub unsafe fn post(&self, posted: &[OrderedMessage]) -> Result<()> {
        self.exchanged(|engine| {
            let Some(gpu) = &self.gpu else {
                // SAFETY: the caller's promise.
                return unsafe { engine.exchange(posted, &self.health, None, None) };
            };
            engine.check_messages(posted)?;
            gpu.exchange(posted, &self.health, &mut |messages, bounce_buffers| {
                // SAFETY: the caller's promise, or pinned memory of the same lengths, or bounce
                // buffers.
                unsafe { engine.exchange(messages, &self.health, None, bounce_buffers) }
            })
        })
    }

    /// Whether a message of `peer` comes within `patience`: to receive it does not wait for its
    /// beginning.
    pub fn probe(&self, peer: usize, patience: Duration) -> Result<bool> {
        self.check_on_processor("ringProbe")?;
        self.exchanged(|engine| {
            let (buffer, data_type) = (std::ptr::null_mut(), DataType::Uint8);
            engine.check_messages(&[Message::Recv { buffer, count: 0, data_type, peer }])?;
            engine.probe(peer, patience, &self.health)
        })
    }

    /// Send a message if that waits for nobody; whether it was sent.
    ///
    /// # Safety
    /// The buffer is valid for its count.
    #[doc(hidden)]
    pub unsafe fn try_send(&self, message: Message) -> Result<bool> {
        self.check_process()?;
        self.check_on_processor("ringTrySend")?;
        let Some(mut engine) = self.engine.try_guard() else { return Ok(false) };
        let (_, peer, _, count, data_type) = message.parts();
        self.in_turn(&mut engine, |engine| {
            engine.check_messages(&[message])?;
            if !engine.has_room(peer, count * data_type.size()) {
                return Ok(false);
            }
            // SAFETY: the caller's promise.
            unsafe { engine.exchange(&[message], &self.health, None, None) }.map(|()| true)
        })
    }

    fn check_on_processor(&self, function: &str) -> Result<()> {
        match self.device() {
            None => Ok(()),
            Some(_) => Err(Error::usage(format!(
                "{function} asks for messages in host memory, and this rank has a CUDA device: use \
                 ringSend and ringRecv, which are in the order of a stream"
            ))),
        }
    }

    /// Run an exchange in this rank's turn.
    #[inline]
    pub(super) fn exchanged<T>(&self, run: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        self.check_process()?;
        self.follow();
        self.in_turn(&mut self.engine.take(), run)
    }

    /// Run messages in a turn that was taken.
    #[inline]
    fn in_turn<T>(
        &self,
        engine: &mut Engine,
        run: impl FnOnce(&mut Engine) -> Result<T>,
    ) -> Result<T> {
        let _whole = self.on_network();
        self.check()?;
        let guard = Unwinding(self);
        let outcome = run(engine);
        std::mem::forget(guard);
        outcome.map_err(|error| self.record_failure(error))
    }
}
