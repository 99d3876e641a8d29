//! One rank's way to the others, as far as a measurement needs it.
//!
//! The library's communicator is the endpoint that is measured. The other one, [`Naive`], does the
//! same through a lock and a plain loop between threads; it stands in where the checks themselves
//! are tested.
#![allow(unsafe_code)]

use ringcomm::communicator::{Call, Communicator, Explanation, Message};
use ringcomm::error::Result;

pub use crate::naive::Naive;

/// The calls of a communicator that are measured or reported.
pub trait Endpoint: Send {
    /// # Safety
    /// As [`Communicator::run`].
    unsafe fn run(&self, call: &Call) -> Result<()>;

    /// # Safety
    /// As [`Communicator::exchange`].
    unsafe fn exchange(&self, messages: &[Message]) -> Result<()>;

    fn explain(&self, call: &Call) -> Result<Explanation>;

    fn register(&self, address: *mut u8, bytes: usize) -> Result<()>;

    fn finalize(&self) -> Result<()>;
}

impl Endpoint for Communicator {
    unsafe fn run(&self, call: &Call) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { Communicator::run(self, call) }
    }

    unsafe fn exchange(&self, messages: &[Message]) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { Communicator::exchange(self, messages) }
    }

    fn explain(&self, call: &Call) -> Result<Explanation> {
        Communicator::explain(self, call)
    }

    fn register(&self, address: *mut u8, bytes: usize) -> Result<()> {
        Communicator::register(self, address, bytes).map(|_| ())
    }

    fn finalize(&self) -> Result<()> {
        Communicator::finalize(self)
    }
}
