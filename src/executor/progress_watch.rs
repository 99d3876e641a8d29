//! How far an operation has come: counted on its rank's own stack, and told to those who look on
//! once a wait has become long.
//!
//! A step is whatever the operation counts: steps of a plan, peers met, bytes moved.

use crate::error::{Error, Result};
use crate::transport::fifo::Stamp;
use crate::transport::wait::WaitCheck;
use std::cell::Cell;
use std::time::Duration;

/// The watch of an operation that counts.
pub struct ProgressWatch<'a> {
    watch: &'a dyn WaitCheck,
    /// All steps; asked for in a long wait only.
    of: &'a dyn Fn() -> usize,
    done: Cell<usize>,
}

impl<'a> ProgressWatch<'a> {
    pub fn new(watch: &'a dyn WaitCheck, of: &'a dyn Fn() -> usize) -> ProgressWatch<'a> {
        ProgressWatch { watch, of, done: Cell::new(0) }
    }

    /// One more step is done.
    #[inline]
    pub fn step(&self) {
        self.at(self.done.get() + 1);
    }

    /// So many steps are done.
    #[inline]
    pub fn at(&self, done: usize) {
        self.done.set(done);
    }
}

impl WaitCheck for ProgressWatch<'_> {
    fn check(&self, peer: usize, waited: Duration) -> Result<()> {
        self.watch.progress(self.done.get(), (self.of)());
        self.watch.check(peer, waited)
    }

    fn broken(&self, peer: usize, why: &str) -> Error {
        self.watch.broken(peer, why)
    }

    fn unexpected(&self, peer: usize, expected: &Stamp, come: &Stamp) -> Option<Error> {
        self.watch.unexpected(peer, expected, come)
    }
}
