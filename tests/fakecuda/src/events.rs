//! Events: moments in streams.

use crate::capture::Moment;
use crate::streams::find;
use crate::{Answer, CAPTURE_ISOLATION, CAPTURED_EVENT, INVALID_HANDLE, NOT_READY, lock};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Instant;

#[derive(Default)]
struct State {
    /// Recordings given to streams, and the last that has come to pass.
    recorded: u64,
    passed: u64,
    at: Option<Instant>,
    /// The last recording was into a capture.
    captured: Option<Moment>,
}

struct Event {
    ordinal: usize,
    state: Mutex<State>,
    changed: Condvar,
}

static EVENTS: LazyLock<Mutex<HashMap<usize, Arc<Event>>>> = LazyLock::new(Mutex::default);

pub fn make() -> Answer<*mut c_void> {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    let ordinal = crate::streams::current()?;
    let event = Event { ordinal, state: Mutex::default(), changed: Condvar::new() };
    let handle = NEXT.fetch_add(16, SeqCst);
    lock(&EVENTS).insert(handle, Arc::new(event));
    Ok(std::ptr::without_provenance_mut(handle))
}

fn event(handle: *mut c_void) -> Answer<Arc<Event>> {
    lock(&EVENTS).get(&handle.addr()).cloned().ok_or(INVALID_HANDLE)
}

pub fn destroy(handle: *mut c_void) -> Answer {
    lock(&EVENTS).remove(&handle.addr()).map(|_| ()).ok_or(INVALID_HANDLE)
}

pub fn record(handle: *mut c_void, stream: *mut c_void) -> Answer {
    let (event, stream) = (event(handle)?, find(stream)?);
    if event.ordinal != stream.ordinal {
        return Err(INVALID_HANDLE);
    }
    let capture = lock(&stream.capture).clone();
    if let Some(capture) = capture {
        lock(&event.state).captured = Some(capture.moment(Arc::as_ptr(&stream).addr()));
        return Ok(());
    }
    let number = {
        let mut state = lock(&event.state);
        state.captured = None;
        state.recorded += 1;
        state.recorded
    };
    stream.submit(Arc::new(move || {
        let mut state = lock(&event.state);
        state.passed = state.passed.max(number);
        state.at = Some(Instant::now());
        event.changed.notify_all();
    }));
    Ok(())
}

/// What `stream` is given from here on waits for the last recording so far.
pub fn wait(stream: *mut c_void, handle: *mut c_void) -> Answer {
    let (event, stream) = (event(handle)?, find(stream)?);
    let (captured, recorded) = {
        let state = lock(&event.state);
        (state.captured.clone(), state.recorded)
    };
    let mut own = lock(&stream.capture);
    match (captured, &*own) {
        (Some(moment), None) => {
            moment.capture.wait(Arc::as_ptr(&stream).addr(), &moment);
            *own = Some(moment.capture);
            return Ok(());
        }
        (Some(moment), Some(capture)) if Arc::ptr_eq(&moment.capture, capture) => {
            capture.wait(Arc::as_ptr(&stream).addr(), &moment);
            return Ok(());
        }
        (_, Some(capture)) => {
            capture.is_broken.store(true, SeqCst);
            return Err(CAPTURE_ISOLATION);
        }
        (None, None) => {}
    }
    drop(own);
    if recorded > 0 {
        stream.submit(Arc::new(move || {
            let mut state = lock(&event.state);
            while state.passed < recorded {
                state = event.changed.wait(state).expect("no queue panics");
            }
        }));
    }
    Ok(())
}

pub fn query(handle: *mut c_void) -> Answer {
    let event = event(handle)?;
    let state = lock(&event.state);
    match (&state.captured, state.passed == state.recorded) {
        (Some(_), _) => Err(CAPTURED_EVENT),
        (None, true) => Ok(()),
        (None, false) => Err(NOT_READY),
    }
}

pub fn elapsed(start: *mut c_void, end: *mut c_void) -> Answer<f32> {
    let at = |handle| -> Answer<Instant> {
        query(handle)?;
        lock(&event(handle)?.state).at.ok_or(INVALID_HANDLE)
    };
    let (start, end) = (at(start)?, at(end)?);
    Ok(end.saturating_duration_since(start).as_secs_f32() * 1e3)
}
