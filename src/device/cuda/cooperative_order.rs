//! Cooperative launches of a device take turns, whatever communicators and streams they are of.
//!
//! All blocks of a cooperative grid wait for each other. The driver promises that a grid fits its
//! device, not that none of its blocks starts before there is room for all. Two grids that do not
//! fit together might each be there in part, and wait for ever. So the stream of a launch waits for
//! the last launch of another communicator, whose streams its own knows nothing of.
//!
//! This costs nothing where there is one communicator. What holds a stream up before its launch
//! holds up the next communicator's, too. In a capture a launch follows those of the same capture
//! only, as no graph waits for what is outside of it: graphs that are replayed on several streams
//! at once are left to the device.

use super::driver::RawStream;
use super::event::{Capture, Event, wait};
use crate::error::Result;
use crate::sync::Mutex;
use std::sync::Arc;

/// The last launches of a device: the moments after them, each of which is one communicator's.
#[derive(Default)]
struct Last {
    eager: Option<Arc<Event>>,
    captured: Option<(Arc<Event>, Capture)>,
}

impl Last {
    fn of(&self, capture: Capture) -> Option<&Arc<Event>> {
        if capture == Capture::No {
            return self.eager.as_ref();
        }
        self.captured.as_ref().filter(|(_, of)| *of == capture).map(|(event, _)| event)
    }
}

/// The turns of a device.
#[derive(Default)]
pub struct CooperativeOrder(Mutex<Last>);

impl CooperativeOrder {
    /// Give `stream` a launch after the last one of another communicator. `launch` records `after`,
    /// which is this communicator's moment in or outside of captures. The context is current.
    pub fn take(
        &self,
        (stream, capture): (RawStream, Capture),
        after: &Arc<Event>,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Held until the moment is recorded: the next launch is after this one.
        let mut last = self.0.lock();
        let is_other = |before: &&Arc<Event>| !Arc::ptr_eq(before, after);
        last.of(capture).filter(is_other).map_or(Ok(()), |before| wait(stream, before))?;
        launch()?;
        match capture {
            Capture::No => last.eager = Some(after.clone()),
            capture => last.captured = Some((after.clone(), capture)),
        }
        Ok(())
    }
}
