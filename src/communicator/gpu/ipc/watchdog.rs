//! Watchdog thread for dead processes: it releases the streams that wait for a rank that is gone.
//!
//! A call has returned when its stream still waits for the streams of other processes. If one of
//! them dies, its part never comes, and no call is there to see it. This thread sleeps until a
//! process ends, and then does in the dead rank's place what streams wait for: their next work is
//! done, the buffers of the call hold whatever they hold, and the communicator's error says so.
//! Kernels that wait for another process's are ended when it dies or fails.
//! What the device of a rank that has failed, but lives, was given comes by itself, however late;
//! nobody is let go from it, as buffers would be the caller's again while kernels use them.

use crate::communicator::gpu::abort::Stopper;
use crate::error::{Error, Result};
use crate::executor::control_block::Life;
use crate::executor::links::{DevicePages, Pages};
use crate::os::poll::{self, EventFd};
use crate::os::thread_signals;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks: at ranks whose processes live but whose device may not, and at the words of
/// those that are gone, which a late write of a device may have brought back.
const LOOK: Duration = Duration::from_millis(500);

/// Watches the ranks of a communicator; ends when it is dropped.
pub struct DeadProcessWatchdog {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl DeadProcessWatchdog {
    /// Watch these processes, by rank.
    pub fn start(
        processes: Vec<Option<OwnedFd>>,
        pages: Pages,
        devices: DevicePages,
        stopper: Arc<Stopper>,
    ) -> Result<DeadProcessWatchdog> {
        let stop = Arc::new(EventFd::new()?);
        let theirs = stop.clone();
        let work = move || guard(&theirs, processes, (&pages, &devices), &stopper);
        let thread = thread_signals::spawn_deaf("ringcomm-guardian", work).map_err(|error| {
            Error::System {
                what: "starting the thread that watches ranks on devices".into(),
                errno: error.raw_os_error().unwrap_or(0),
            }
        })?;
        Ok(DeadProcessWatchdog { stop, thread: Some(thread) })
    }
}

impl Drop for DeadProcessWatchdog {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}

fn guard(
    stop: &EventFd,
    mut processes: Vec<Option<OwnedFd>>,
    (pages, devices): (&Pages, &DevicePages),
    stopper: &Stopper,
) {
    let mut is_gone = vec![false; pages.nranks()];
    loop {
        let entry = |fd| poll::entry(fd, libc::POLLIN);
        let raw = |process: &Option<OwnedFd>| process.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let mut entries = vec![entry(stop.raw())];
        // The kernel skips negative descriptors.
        entries.extend(processes.iter().map(|process| entry(raw(process))));
        // An error ends the sleep early.
        let _ = poll::poll_for(&mut entries, LOOK);
        if entries[0].revents != 0 {
            return;
        }
        for rank in 0..pages.nranks() {
            if entries[rank + 1].revents != 0 {
                // A process that has ended would be told again and again.
                processes[rank] = None;
                is_gone[rank] = true;
                devices.of(rank).close();
            }
            let page = devices.of(rank);
            let is_undone = (is_gone[rank] || page.is_lost()) && page.release_when_idle();
            let is_missed = is_gone[rank] && (is_undone || pages.of(rank).life() != Life::Left);
            // Of others the error is seen; this one has said that all is well.
            if is_undone && pages.of(rank).life() == Life::Left && rank != pages.rank {
                let text =
                    format!("rank {rank} left and ended before its device had done its part");
                pages.of(pages.rank).fail(rank, &text);
            }
            if is_missed || pages.of(rank).life() == Life::Failed {
                // Nobody is left to launch what this rank's kernels wait for. Who sees them
                // ended finds the reason.
                stopper.stop();
            }
        }
    }
}
