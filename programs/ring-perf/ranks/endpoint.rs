//! One rank's way to the others, as far as a measurement needs it.
//!
//! The library's communicator is the endpoint that is measured. Tests of what is asked of it have
//! one that writes the calls down.
#![allow(unsafe_code)]

use ringcomm::communicator::{
    Call, Communicator, Explanation, Message, Order, OrderedMessage, enqueue,
};
use ringcomm::error::Result;
use std::sync::Arc;

/// The calls of a communicator that are measured or reported.
pub trait Endpoint: Send {
    /// # Safety
    /// As [`Communicator::run`].
    unsafe fn run(&self, call: &Call) -> Result<()>;

    /// # Safety
    /// As [`Communicator::exchange`].
    unsafe fn exchange(&self, messages: &[Message]) -> Result<()>;

    /// What is deferred from here to [`Endpoint::end_group`] runs there.
    fn start_group(&self);

    fn end_group(&self) -> Result<()>;

    /// # Safety
    /// As [`Endpoint::run`], with buffers that stay valid until the group's end.
    unsafe fn defer(&self, call: &Call) -> Result<()>;

    /// # Safety
    /// As [`Endpoint::exchange`], with buffers that stay valid until the group's end.
    unsafe fn defer_messages(&self, messages: &[Message]) -> Result<()>;

    fn explain(&self, call: &Call) -> Result<Explanation>;

    /// Whether floats are summed in host order, where nothing else is asked for.
    fn has_host_order(&self) -> bool;

    fn register(&self, address: *mut u8, bytes: usize) -> Result<()>;

    fn finalize(&self) -> Result<()>;
}

impl Endpoint for Arc<Communicator> {
    unsafe fn run(&self, call: &Call) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { Communicator::run(self, call) }
    }

    unsafe fn exchange(&self, messages: &[Message]) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { Communicator::exchange(self, messages) }
    }

    fn start_group(&self) {
        enqueue::start();
    }

    fn end_group(&self) -> Result<()> {
        enqueue::end()
    }

    unsafe fn defer(&self, call: &Call) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { enqueue::collective(self, call, None) }
    }

    unsafe fn defer_messages(&self, messages: &[Message]) -> Result<()> {
        messages.iter().try_for_each(|message| {
            let posted = OrderedMessage { message: *message, order: Order::default() };
            // SAFETY: the caller's promise is the same.
            unsafe { enqueue::message(self, posted, None) }
        })
    }

    fn explain(&self, call: &Call) -> Result<Explanation> {
        Communicator::explain(self, call)
    }

    fn has_host_order(&self) -> bool {
        Communicator::has_host_order(self)
    }

    fn register(&self, address: *mut u8, bytes: usize) -> Result<()> {
        Communicator::register(self, address, bytes).map(|_| ())
    }

    fn finalize(&self) -> Result<()> {
        Communicator::finalize(self)
    }
}
