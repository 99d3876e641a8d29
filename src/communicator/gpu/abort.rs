//! Kernels that ended before their time, and what a rank is told of them.

use super::Gpu;
use super::staging::{Guard, NAP};
use crate::communicator::health::watchdog::{OperationWatch, Watched};
use crate::error::{Error, Operation, Result};
use crate::executor::device_p2p::Ending;
use std::time::{Duration, Instant};

impl Gpu {
    /// Where and why a kernel of this rank has ended before its time, if it was not told to: the
    /// rank that it waited for, for how long, and what it waited for.
    pub fn lateness(&self) -> Option<Ending> {
        self.ending().filter(Ending::is_late)
    }

    /// Where and why a kernel of this rank has ended before its time.
    fn ending(&self) -> Option<Ending> {
        match &self.desk {
            Some(desk) => desk.ending(self.rank),
            None => self.stopper.ending(),
        }
    }

    /// The kernels of a call that is through have come to their end, or why not.
    pub(super) fn check_whole(&self, watch: &OperationWatch) -> Result<()> {
        /// Whoever stops kernels says why in a moment.
        const LONGEST: Duration = Duration::from_secs(1);
        watch.watched.lateness(Some(self)).map_or(Ok(()), Err)?;
        if self.ending().is_none() {
            return Ok(());
        }
        let started = Instant::now();
        while started.elapsed() < LONGEST {
            watch.look(Duration::ZERO)?;
            // Also what this rank's own page says of others.
            watch.watched.trouble().map_or(Ok(()), Err)?;
            std::thread::sleep(NAP);
        }
        Err(Error::Aborted { rank: self.rank, operation: Some(watch.operation()) })
    }
}

impl Watched {
    /// The error of a kernel of this rank's that waited too long.
    #[inline]
    pub(in super::super) fn lateness(&self, gpu: Option<&Gpu>) -> Option<Error> {
        gpu.and_then(|gpu| self.lateness_on(gpu))
    }

    fn lateness_on(&self, gpu: &Gpu) -> Option<Error> {
        let ending = gpu.lateness()?;
        Some(Error::Timeout {
            rank: gpu.rank,
            peer: self.who(ending.peer()),
            operation: Operation::aside(&format!("on CUDA device {}", gpu.device.ordinal)),
            waited_ms: self.timeout.as_millis() as u64,
            peer_state: ending.to_string().into(),
        })
    }
}
