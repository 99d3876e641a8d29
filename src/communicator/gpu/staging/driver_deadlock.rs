//! Calls of a communicator's ranks in this process that are inside the CUDA driver, and since when.
//!
//! A program's `cudaFree` waits for all that a device has, and may let no other thread into the
//! driver meanwhile. Where a stream waits for another rank's call, and this call waits to be let
//! in, nothing gets on. The rank of the stream looks here while it waits for its peers, and ends
//! its call before the deadline.

use super::super::Gpu;
use crate::error::Error;
use crate::fork::ForkSafeMutex;
use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Those of all communicators of this process, by their names.
static ALL: ForkSafeMutex<BTreeMap<Vec<u8>, Weak<DriverCallers>>> =
    ForkSafeMutex::new(BTreeMap::new());

/// How long a call may be inside the driver before this is taken for a thread that waits for
/// itself. What the driver does for a call takes milliseconds, and seconds where it is the first;
/// a stream that is full of the program's own work, or a free behind it, may take tens of seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The ranks that are inside, and since when.
#[derive(Default)]
pub struct DriverCallers(Mutex<Vec<(usize, Instant)>>);

impl DriverCallers {
    /// Those of a communicator: the same for all its ranks.
    pub fn of(name: &[u8]) -> Arc<DriverCallers> {
        let mut all = ALL.lock();
        all.retain(|_, callers| callers.strong_count() > 0);
        let callers = all.entry(name.to_vec()).or_default();
        let one = callers.upgrade().unwrap_or_default();
        *callers = Arc::downgrade(&one);
        one
    }

    /// A call of a rank is inside the driver until the value goes.
    pub fn enter(&self, rank: usize) -> InsideDriver<'_> {
        self.0.lock().push((rank, Instant::now()));
        InsideDriver { callers: self, rank }
    }

    /// The other rank that has been inside for so long, and how long.
    fn held_up(&self, rank: usize, longest: Duration) -> Option<(usize, Duration)> {
        let all = self.0.lock();
        let mut others = all.iter().filter(|(other, _)| *other != rank);
        others
            .find_map(|(other, since)| Some((*other, since.elapsed())).filter(|it| it.1 >= longest))
    }
}

/// A call is inside the driver.
pub struct InsideDriver<'a> {
    callers: &'a DriverCallers,
    rank: usize,
}

impl Drop for InsideDriver<'_> {
    fn drop(&mut self) {
        let mut all = self.callers.0.lock();
        if let Some(index) = all.iter().position(|(rank, _)| *rank == self.rank) {
            all.swap_remove(index);
        }
    }
}

impl Gpu {
    /// The error of what this rank's stream has and waits for the host with, where it waits for a
    /// call that its own wait keeps from the driver. `what` is its name.
    pub fn jam(&self, what: &str) -> Option<Error> {
        let patience = PATIENCE.min(self.asked.timeout / 2);
        let waited = (*self.on_host_since.lock())?.elapsed();
        if waited < patience {
            return None;
        }
        let (other, inside) = self.callers.held_up(self.rank, patience)?;
        let rank = self.rank;
        Some(Error::Cuda(format!(
            "rank {rank} waited {} ms in {what} for the call of rank {other}, which has been \
             inside the CUDA driver for {} ms: another thread holds the driver (cudaFree waits for \
             the stream of rank {rank}, which waits for the call of rank {other}); free memory \
             before the call or after a synchronization, or use one process per device",
            waited.as_millis(),
            inside.as_millis()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_ranks_call_that_does_not_come_out_is_found() {
        let callers = DriverCallers::of(b"callers");
        let theirs = DriverCallers::of(b"callers");
        assert!(
            Arc::ptr_eq(&callers, &theirs) && !Arc::ptr_eq(&callers, &DriverCallers::of(b"others"))
        );
        assert_eq!(callers.held_up(0, Duration::ZERO), None);
        let inside = theirs.enter(1);
        assert_eq!(callers.held_up(0, Duration::ZERO).map(|(rank, _)| rank), Some(1));
        assert_eq!(callers.held_up(1, Duration::ZERO), None);
        assert_eq!(callers.held_up(0, Duration::from_secs(60)), None);
        drop(inside);
        assert_eq!(callers.held_up(0, Duration::ZERO), None);
    }
}
