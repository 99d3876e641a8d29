//! The thread that lets streams go which wait for a rank that is no more.
//!
//! A call has returned when its stream still waits for the streams of other processes. If one of
//! them dies, its part never comes, and no call is there to see it. This thread sleeps until a
//! process ends, and then does in the dead rank's place what streams wait for: their next work is
//! done, the buffers of the call hold whatever they hold, and the communicator's error says so.

use super::super::network::descriptor::{Event, block_signals, poll};
use crate::error::{Error, Result};
use crate::executor::control::Life;
use crate::executor::links::{DevicePages, Pages};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks at the lives of ranks whose processes live: an error of their device, say.
const LOOK: Duration = Duration::from_millis(500);

/// How long the streams of a rank that has failed are waited for: what they were given before goes
/// on, and takes as long as it takes, but for ever it must not be waited for.
const GRACE: Duration = Duration::from_secs(2);

/// Watches the ranks of a communicator; ends when it is dropped.
pub struct Guardian {
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Guardian {
    /// Watch these processes, by rank.
    pub fn start(
        processes: Vec<Option<OwnedFd>>,
        pages: Pages,
        devices: DevicePages,
    ) -> Result<Guardian> {
        let stop = Arc::new(Event::new()?);
        let theirs = stop.clone();
        let thread = std::thread::Builder::new()
            .name("ringcomm-guardian".into())
            .spawn(move || guard(&theirs, processes, &pages, &devices))
            .map_err(|error| Error::System {
                what: "starting the thread that watches ranks on devices".into(),
                errno: error.raw_os_error().unwrap_or(0),
            })?;
        Ok(Guardian { stop, thread: Some(thread) })
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}

fn guard(stop: &Event, mut processes: Vec<Option<OwnedFd>>, pages: &Pages, devices: &DevicePages) {
    block_signals();
    // By rank: since when it is known to have failed; none that is let go already.
    let mut failures: Vec<Option<Instant>> = vec![None; pages.nranks()];
    let mut is_let_go = vec![false; pages.nranks()];
    loop {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let raw = |process: &Option<OwnedFd>| process.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let mut entries = vec![entry(stop.raw())];
        // The kernel skips negative descriptors.
        entries.extend(processes.iter().map(|process| entry(raw(process))));
        poll(&mut entries, Instant::now() + LOOK);
        if entries[0].revents != 0 {
            return;
        }
        for rank in 0..pages.nranks() {
            let is_dead = entries[rank + 1].revents != 0;
            let has_failed = pages.of(rank).life() == Life::Failed;
            let since = has_failed.then(|| *failures[rank].get_or_insert_with(Instant::now));
            let is_late = since.is_some_and(|since| since.elapsed() > GRACE);
            if !is_let_go[rank] && (is_dead || is_late) {
                let number = devices.of(pages.rank).begun();
                devices.of(rank).before.let_go(number);
                devices.of(rank).after.let_go(number);
                // A process that has ended would be told again and again.
                processes[rank] = None;
                is_let_go[rank] = true;
            }
        }
    }
}
