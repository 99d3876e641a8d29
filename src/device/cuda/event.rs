//! Streams, the events that order them, and the capture of a stream's work as a graph.
#![allow(unsafe_code)]
// A stream is handed to the driver, which looks it up; nothing here follows it.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use super::context::Device;
use super::driver::{Graph, GraphExec, NOT_READY, RELAXED, RawEvent, RawStream};
use crate::error::{Error, Result};
use std::sync::Arc;

/// A moment in a stream, for other streams to wait for.
pub struct Event {
    device: Arc<Device>,
    event: RawEvent,
}

// SAFETY: an event may be used from any thread; the driver locks it.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// Whether an event keeps the time of its moment, which costs the device a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    Moment,
    Time,
}

impl Event {
    pub fn new(device: &Arc<Device>, recording: Recording) -> Result<Event> {
        /// The driver's flag for an event without a time.
        const DISABLE_TIMING: u32 = 2;
        let flags = if recording == Recording::Time { 0 } else { DISABLE_TIMING };
        let mut event = std::ptr::null_mut();
        let _current = device.enter_aside()?;
        // SAFETY: the place is a local.
        let code = unsafe { (device.driver.event_create)(&mut event, flags) };
        device.driver.check(code, "making a CUDA event")?;
        Ok(Event { device: device.clone(), event })
    }

    /// The moment is the end of what `stream` has been given so far. The context is current.
    pub fn record(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the event lives; the stream is the program's, which promised it for the call.
        let code = unsafe { (self.device.driver.event_record)(self.event, stream) };
        self.device.driver.check(code, "recording an event on the stream of a call")
    }

    /// Whether the moment has passed; true before it was ever recorded. Any context may be current,
    /// or none.
    pub fn has_passed(&self) -> Result<bool> {
        let _current = self.device.enter_aside()?;
        // SAFETY: the event lives.
        match unsafe { (self.device.driver.event_query)(self.event) } {
            NOT_READY => Ok(false),
            code => self.device.driver.check(code, "work on the CUDA device").map(|()| true),
        }
    }

    /// Milliseconds from an earlier event's moment; both keep time and have passed. Any context may
    /// be current, or none.
    pub fn since(&self, earlier: &Event) -> Result<f32> {
        let mut elapsed_ms = 0.0;
        let _current = self.device.enter_aside()?;
        // SAFETY: the place is a local; both events live.
        let code = unsafe {
            (self.device.driver.event_elapsed)(&mut elapsed_ms, earlier.event, self.event)
        };
        self.device.driver.check(code, "asking for the time between two events")?;
        Ok(elapsed_ms)
    }
}

impl Device {
    /// Whether a stream, which nobody captures, has done all that it was given.
    pub fn is_idle(self: &Arc<Device>, stream: RawStream) -> Result<bool> {
        let _current = self.enter_aside()?;
        // SAFETY: the driver looks the handle up.
        match unsafe { (self.driver.stream_query)(stream) } {
            NOT_READY => Ok(false),
            code => self.driver.check(code, "asking for the work of a CUDA stream").map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter_aside() {
            // SAFETY: made by `new`, and this was its owner; the driver waits for what uses it.
            unsafe { (self.device.driver.event_destroy)(self.event) };
        }
    }
}

/// What `stream` is given from here on runs after the event's moment, as recorded last. A context
/// is current.
pub fn wait(stream: RawStream, event: &Event) -> Result<()> {
    let driver = event.device.driver;
    // SAFETY: the event lives; the stream is the program's, which promised it for the call.
    let code = unsafe { (driver.stream_wait)(stream, event.event, 0) };
    driver.check(code, "making a stream wait for another rank's")
}

/// Whether a stream's work is being recorded for a graph instead of done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    No,
    /// By the capture with this number.
    Yes(u64),
    /// By one that has already failed.
    Broken,
}

impl Capture {
    /// Of `stream`. The context is current.
    pub fn of(device: &Device, stream: RawStream) -> Result<Capture> {
        let (mut status, mut id) = (0, 0);
        let none = std::ptr::null_mut;
        // SAFETY: the places are locals; the others may be NULL.
        let code = unsafe {
            let ask = device.driver.stream_capture;
            ask(stream, &mut status, &mut id, none(), none().cast(), none().cast())
        };
        device.driver.check(code, "asking whether the stream is being captured")?;
        Ok(match status {
            0 => Capture::No,
            1 => Capture::Yes(id),
            _ => Capture::Broken,
        })
    }
}

/// The driver's name for a stream that every thread has for itself: another thread cannot mean it.
pub const PER_THREAD_STREAM: usize = 2;

/// The streams that somebody's last work was given to: outside of captures, and in one.
#[derive(Default)]
pub struct Trail {
    eager: Option<usize>,
    captured: Option<(usize, Capture)>,
}

impl Trail {
    /// Whether what `stream` is given next does not follow the last work by itself. Streams are
    /// told apart by their handles: one that is destroyed while its work is under way must not come
    /// again as another's.
    pub fn has_moved(&self, stream: RawStream, capture: Capture) -> bool {
        let is_other = |last: usize| last != stream.addr() || last == PER_THREAD_STREAM;
        match capture {
            Capture::No => self.eager.is_some_and(is_other),
            // Between a capture and what is not of it, the order is that of the graph's launches.
            capture => self.captured.is_some_and(|(last, of)| of == capture && is_other(last)),
        }
    }

    /// The last work was given to `stream`.
    pub fn mark(&mut self, stream: RawStream, capture: Capture) {
        match capture {
            Capture::No => self.eager = Some(stream.addr()),
            capture => self.captured = Some((stream.addr(), capture)),
        }
    }
}

/// A stream of this library's own, for programs that have none.
pub struct OwnedStream {
    device: Arc<Device>,
    stream: RawStream,
}

// SAFETY: a stream may be used from any thread; the driver locks it.
unsafe impl Send for OwnedStream {}
// SAFETY: as above.
unsafe impl Sync for OwnedStream {}

impl OwnedStream {
    pub fn new(device: &Arc<Device>) -> Result<OwnedStream> {
        /// The driver's flag for a stream that does not wait for the default stream.
        const NON_BLOCKING: u32 = 1;
        let mut stream = std::ptr::null_mut();
        let _current = device.enter_aside()?;
        // SAFETY: the place is a local.
        let code = unsafe { (device.driver.stream_create)(&mut stream, NON_BLOCKING) };
        device.driver.check(code, "making a CUDA stream")?;
        Ok(OwnedStream { device: device.clone(), stream })
    }

    pub fn raw(&self) -> RawStream {
        self.stream
    }

    /// Wait until all that the stream was given is done.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.device.enter_aside()?;
        // SAFETY: the stream lives.
        let code = unsafe { (self.device.driver.stream_synchronize)(self.stream) };
        self.device.driver.check(code, "waiting for a CUDA stream")
    }

    /// Record what `work` gives the stream, to be replayed. Other threads do as they like
    /// meanwhile.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Replay> {
        self.capture_in(RELAXED, work)
    }

    /// As [`OwnedStream::capture`], in a mode of the driver's: 0 forbids all threads what a capture
    /// might see, 1 its own.
    pub fn capture_in(&self, mode: i32, work: impl FnOnce() -> Result<()>) -> Result<Replay> {
        let driver = self.device.driver;
        let _current = self.device.enter()?;
        // SAFETY: the stream lives.
        let code = unsafe { (driver.capture_begin)(self.stream, mode) };
        driver.check(code, "beginning to capture a stream")?;
        let worked = work();
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the place is a local; the capture was begun above, and ends whatever came of it.
        let ended = unsafe { (driver.capture_end)(self.stream, &mut graph) };
        worked?;
        driver.check(ended, "ending the capture of a stream")?;
        let _aside = driver.aside();
        // SAFETY: a graph that was just made; it is not needed once it was instantiated.
        let made = unsafe {
            let made = (driver.graph_instantiate)(&mut exec, graph, 0);
            (driver.graph_destroy)(graph as Graph);
            made
        };
        driver.check(made, "making a captured graph ready")?;
        Ok(Replay { device: self.device.clone(), exec })
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter_aside() {
            // SAFETY: made by `new`, and this was its owner; what it was given is still done.
            unsafe { (self.device.driver.stream_destroy)(self.stream) };
        }
    }
}

/// Captured work, to be done as often as one likes.
pub struct Replay {
    device: Arc<Device>,
    exec: GraphExec,
}

impl Replay {
    /// Do it, in the stream's order.
    pub fn launch(&self, stream: &OwnedStream) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: both live; what the graph uses is promised by whoever captured it.
        let code = unsafe { (self.device.driver.graph_launch)(self.exec, stream.stream) };
        self.device.driver.check(code, "launching a captured graph")
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter_aside() {
            // SAFETY: made by `capture`, and this was its owner.
            unsafe { (self.device.driver.graph_exec_destroy)(self.exec) };
        }
    }
}

/// The stream that a C program names by an address or one of the driver's small numbers.
pub fn check_stream(stream: RawStream) -> Result<RawStream> {
    // User space ends far below; a handle of this library or garbage would be followed.
    match stream.addr() >> 48 {
        0 => Ok(stream),
        _ => Err(Error::argument(format!("{stream:?} is no stream"))),
    }
}
