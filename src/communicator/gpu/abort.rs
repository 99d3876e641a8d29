//! Abort of a rank's kernels: what ends them before their time, from whatever thread, and what the
//! rank is told of those that have ended so.

use super::Gpu;
use super::staging::{NAP, StreamWaitCheck};
use crate::communicator::health::wait_check::{CommHealth, OpWaitCheck};
use crate::error::{Error, Operation, Result};
use crate::executor::device_p2p::{AbortBlock, Ending};
use crate::sync::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What ends a rank's kernels that wait for other processes' in vain. Empty as long as there are no
/// such kernels.
#[derive(Default)]
pub struct Stopper(Mutex<Option<Arc<AbortBlock>>>);

impl Stopper {
    /// From here on there are kernels.
    pub fn set(&self, control: Arc<AbortBlock>) {
        *self.0.lock() = Some(control);
    }

    /// There are none any more, and will be none.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Kernels of the rank end, those that run and those that have not begun.
    pub fn stop(&self) {
        self.0.lock().iter().for_each(|control| control.stop());
    }

    /// Where and why one has ended early, if one has.
    pub fn ending(&self) -> Option<Ending> {
        self.0.lock().as_ref().and_then(|control| control.ending())
    }
}

impl Gpu {
    /// Where and why a kernel of this rank has ended before its time, if it was not told to: the
    /// rank that it waited for, for how long, and what it waited for.
    pub fn kernel_timeout(&self) -> Option<Ending> {
        self.ending().filter(Ending::is_late)
    }

    /// Where and why a kernel of this rank has ended before its time.
    fn ending(&self) -> Option<Ending> {
        match &self.launch_barrier {
            Some(launch_barrier) => launch_barrier.ending(self.rank),
            None => self.stopper.ending(),
        }
    }

    /// The kernels of a call that is through have come to their end, or why not.
    pub(super) fn check_whole(&self, watch: &OpWaitCheck) -> Result<()> {
        /// Whoever stops kernels says why in a moment.
        const LONGEST: Duration = Duration::from_secs(1);
        watch.health.lateness(Some(self)).map_or(Ok(()), Err)?;
        if self.ending().is_none() {
            return Ok(());
        }
        let started = Instant::now();
        while started.elapsed() < LONGEST {
            watch.look(Duration::ZERO)?;
            // Also what this rank's own page says of others.
            watch.health.peer_error().map_or(Ok(()), Err)?;
            std::thread::sleep(NAP);
        }
        Err(Error::Aborted { rank: self.rank, operation: Some(watch.operation()) })
    }
}

impl CommHealth {
    /// The error of a kernel of this rank's that waited too long.
    #[inline]
    pub(in super::super) fn lateness(&self, gpu: Option<&Gpu>) -> Option<Error> {
        gpu.and_then(|gpu| self.kernel_timeout_on(gpu))
    }

    fn kernel_timeout_on(&self, gpu: &Gpu) -> Option<Error> {
        let ending = gpu.kernel_timeout()?;
        Some(Error::Timeout {
            rank: gpu.rank,
            peer: self.who(ending.peer()),
            operation: Operation::aside(&format!("on CUDA device {}", gpu.device.ordinal)),
            waited_ms: self.timeout.as_millis() as u64,
            peer_state: ending.to_string().into(),
        })
    }
}
