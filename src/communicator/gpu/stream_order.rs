//! One operation of a communicator at a time on its devices, whatever streams they come from.
//!
//! A stream does its operations one after another. Where a rank gives another stream than the time
//! before, that stream waits for what every kind of operation leaves behind: so nothing is added
//! for who stays on a stream, and the order is that of the calls for who does not. Calls of one
//! graph are ordered among themselves; between graphs and other calls the order is that of the
//! graphs' launches.

use super::super::call::Call;
use super::{BufferKinds, Gpu, Sharing};
use crate::device::cuda::{Capture, RawStream, wait};
use crate::error::Result;

impl Gpu {
    /// What the call's stream is given next comes after this rank's last operation.
    pub fn follow(&self, call: &Call, found: &BufferKinds) -> Result<()> {
        // A capture that has failed takes nothing any more.
        match found.is_ordered && found.capture != Capture::Broken {
            true => self.follow_on(call.order.stream, found.capture),
            false => Ok(()),
        }
    }

    /// What `stream` is given next comes after this rank's last operation.
    pub(super) fn follow_on(&self, stream: RawStream, capture: Capture) -> Result<()> {
        let mut trail = self.trail.lock();
        if trail.has_moved(stream, capture) {
            let _current = self.device.enter()?;
            if capture == Capture::No {
                self.staging.lock().follow(stream)?;
                if let Sharing::Works(shared) = &*self.sharing.lock() {
                    wait(stream, &shared.last)?;
                }
            }
            if let Some(launch_barrier) = &self.launch_barrier {
                launch_barrier.follow(self.rank, stream, capture)?;
            }
        }
        if capture == Capture::No {
            // Also where the call is refused: the stream is after all that there was.
            trail.mark(stream, capture);
        }
        Ok(())
    }

    /// A call of a capture was given to its stream: the moments after it are the capture's.
    pub(super) fn mark_captured(&self, stream: RawStream, capture: Capture) {
        if capture != Capture::No {
            self.trail.lock().mark(stream, capture);
        }
    }
}
