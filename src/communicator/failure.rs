//! How a communicator fails: once and for all, and its peers learn of it at once.

use super::exec::Engine;
use super::gpu::Gpu;
use super::{Communicator, WARNINGS};
use crate::error::{Error, Result};
use crate::executor::control_block::Life;
use crate::executor::links::{Pages, Reach};
use crate::os::thread_signals::{NoCancel, say};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::*;
use crate::transport::wait;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the error of a communicator's last call that failed is kept for whoever asks; it may
/// outlive the communicator.
pub type LastError = Arc<Mutex<Option<Error>>>;

/// A visitor that has not left in this time is stopped: a slow core that copies 5 GB/s has moved
/// ten gigabytes in it.
const STOPPED: Duration = Duration::from_secs(2);

/// What a rank that says goodbye gives others to come to its last call.
const MOMENT: Duration = Duration::from_secs(1);

/// A panic in the middle of an operation breaks the communicator: its connections are half used.
pub(super) struct Unwinding<'a>(pub(super) &'a Communicator);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.0.record_failure(Error::Internal(format!(
            "rank {} panicked in an operation",
            self.0.rank
        )));
    }
}
impl Communicator {
    /// Keep the error and tell the peers, unless the call never started.
    #[cold]
    pub(super) fn record_failure(&self, error: Error) -> Error {
        if matches!(error, Error::InvalidArgument(_)) {
            return error;
        }
        if self.config.debug >= WARNINGS {
            self.log(&error.to_string());
        }
        self.failure.lock().get_or_insert_with(|| error.clone());
        self.publish_failure(&error);
        // Release: pairs with the Acquire in `check`, so that the failure is seen with the flag.
        self.health.aborted.store(true, Release);
        self.wait_remote_idle();
        error
    }

    /// Wait until no peer uses this rank's buffers any more: they are about to be the caller's
    /// again.
    ///
    /// A visit is a copy and waits for nobody; a visitor that died has ended it, and one that is
    /// stopped is given up on.
    fn wait_remote_idle(&self) {
        let started = Instant::now();
        for peer in (0..self.nranks).filter(|peer| *peer != self.rank) {
            while self.health.pages.of(peer).is_visiting() && started.elapsed() < STOPPED {
                if self.health.dead().contains(&peer) {
                    break;
                }
                std::thread::yield_now();
            }
        }
        self.gpu.iter().for_each(|gpu| gpu.wait_peer_launches(STOPPED));
    }

    /// Print to standard error, where `RINGCOMM_DEBUG` asks for it.
    #[cold]
    pub(super) fn log(&self, text: &str) {
        say(&format!("ringcomm: rank {} of {}: {text}", self.rank, self.nranks));
    }

    /// Say why a call has gone through the host, where that is news.
    #[cold]
    pub(super) fn say_detour(&self, gpu: Option<&Gpu>) {
        if let Some(why) = gpu.and_then(Gpu::detour) {
            self.log(&format!("a call on devices went through the host: {why}"));
        }
    }

    /// Publish why this rank cannot go on; what another rank told it is passed on as it was.
    pub(super) fn publish_failure(&self, error: &Error) {
        let pages = &self.health.pages;
        self.gpu.iter().for_each(Gpu::stop);
        publish(pages, self.rank, error);
        for peer in (0..self.nranks).filter(|peer| *peer != self.rank) {
            wait::ring_bell(&pages.of(peer).bell);
        }
        self.health.publish();
    }

    /// Nobody is cancelled between two system calls of a message. Calls without any wait first.
    pub(super) fn on_network(&self) -> Option<NoCancel> {
        self.outside.as_ref().map(|_| NoCancel::begin())
    }

    /// End the call that the calling thread is in, where this is a signal handler that interrupted
    /// it, by what such a handler may do; whether that was so. That call tells the peers, or the
    /// next one does.
    #[doc(hidden)]
    pub fn abort_interrupted(&self) -> bool {
        let is_interrupted = self.is_of_this_process() && self.engine.is_mine();
        if is_interrupted {
            self.aborts.fetch_add(1, Release);
            // Release: as in `abort`.
            self.health.aborted.store(true, Release);
        }
        is_interrupted
    }

    /// Tell the others that this rank takes part no more.
    pub(super) fn leave(&self) {
        self.health.pages.mine().leave();
        self.health.publish();
    }

    /// A peer whose last calls are others than this rank's. Those of the machine get a moment to
    /// come to the last.
    pub(super) fn check_last_calls(&self, engine: &Engine) -> Result<()> {
        let pages = &self.health.pages;
        let Some(last) = pages.mine().completed().checked_sub(1) else { return Ok(()) };
        let started = Instant::now();
        for other in (0..self.nranks).filter(|other| *other != self.rank) {
            let page = pages.of(other);
            let is_here = || {
                let is_near = engine.links.reach(other) != Reach::Network;
                is_near && page.life() == Life::Working && !page.is_gone() && !self.is_broken()
            };
            let has_come = || page.completed() > last || page.record(last).is_some();
            while !has_come() && is_here() && started.elapsed() < MOMENT {
                std::thread::sleep(Duration::from_micros(50));
            }
            self.health.check_calls(other, last)?;
        }
        Ok(())
    }

    /// Fail everything running on this rank and tell the peers. From any thread.
    pub fn abort(&self) {
        if !self.is_of_this_process() {
            return;
        }
        let aborted = self.aborted();
        self.aborts.fetch_add(1, Release);
        self.failure.lock().get_or_insert_with(|| aborted.clone());
        // Release: pairs with the Acquire in `check` and in the watch.
        self.health.aborted.store(true, Release);
        self.publish_failure(&aborted);
        wait::ring_bell(&self.health.pages.mine().bell);
    }

    pub(super) fn aborted(&self) -> Error {
        Error::Aborted { rank: self.rank, operation: None }
    }

    pub(super) fn aborts(&self) -> u64 {
        self.aborts.load(Acquire)
    }

    /// The error of the last call that failed here: one that the caller [noted](Self::note), or
    /// that of a group or of a call on a stream.
    pub fn last_error(&self) -> Option<Error> {
        self.last_error.lock().clone()
    }

    /// Keep an error for [`Communicator::last_error`].
    #[doc(hidden)]
    pub fn note(&self, error: &Error) {
        *self.last_error.lock() = Some(error.clone());
    }

    /// The error that broke the communicator, if one has: this rank's own, or a peer's failure or
    /// death that the next call would run into.
    pub fn async_error(&self) -> Option<Error> {
        let failure = self.failure.lock().clone();
        let late = || self.health.lateness(self.gpu.as_ref());
        failure.or_else(late).or_else(|| self.health.peer_error())
    }
}

/// Write on this rank's page why it cannot go on; what another rank told it is passed on as it was.
pub(super) fn publish(pages: &Pages, rank: usize, error: &Error) {
    match error {
        Error::Remote { peer, text, .. } => pages.mine().fail(peer.rank, text),
        error => pages.mine().fail(rank, &error.to_string()),
    }
}
