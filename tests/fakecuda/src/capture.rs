//! Capture: the work of one or several streams, recorded in the order in which it was given.
//!
//! That order is one that the streams and events allow, so doing it again in that order is right. A
//! stream comes in by waiting for an event of the capture, and must come back: the stream that
//! began must have waited, perhaps through others, for all that the others were given.

use crate::queue::Work;
use crate::streams::{Stream, find, release};
use crate::{
    Answer, CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNSUPPORTED, INVALID_HANDLE, lock,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};

pub struct Capture {
    pub id: u64,
    /// The stream that began, by its address.
    origin: usize,
    /// Something that no graph can hold was asked of a stream in it.
    pub is_broken: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    work: Vec<Work>,
    /// Of each stream: how much it was given, and how much of that others have waited for.
    given: HashMap<usize, (u64, u64)>,
}

/// A moment in a captured stream.
#[derive(Clone)]
pub struct Moment {
    pub capture: Arc<Capture>,
    stream: usize,
    at: u64,
}

impl Capture {
    pub fn add(&self, stream: usize, work: Work) {
        let mut state = lock(&self.state);
        state.work.push(work);
        state.given.entry(stream).or_default().0 += 1;
    }

    pub fn moment(self: &Arc<Capture>, stream: usize) -> Moment {
        let at = lock(&self.state).given.entry(stream).or_default().0;
        Moment { capture: Arc::clone(self), stream, at }
    }

    /// `stream` waits for a moment of the capture: it has something more to be waited for itself.
    pub fn wait(&self, stream: usize, moment: &Moment) {
        let mut state = lock(&self.state);
        if stream != moment.stream {
            let waited = &mut state.given.entry(moment.stream).or_default().1;
            *waited = moment.at.max(*waited);
        }
        state.given.entry(stream).or_default().0 += 1;
    }
}

type Graph = Arc<Vec<Work>>;

static GRAPHS: LazyLock<Mutex<HashMap<usize, Graph>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicUsize = AtomicUsize::new(1);

fn address(stream: &Arc<Stream>) -> usize {
    Arc::as_ptr(stream).addr()
}

pub fn begin(handle: *mut c_void) -> Answer {
    let stream = find(handle)?;
    if handle.addr() < 2 {
        return Err(CAPTURE_UNSUPPORTED);
    }
    let mut own = lock(&stream.capture);
    if own.is_some() {
        return Err(CAPTURE_UNSUPPORTED);
    }
    let id = NEXT.fetch_add(1, SeqCst) as u64;
    let (origin, is_broken) = (address(&stream), AtomicBool::new(false));
    *own = Some(Arc::new(Capture { id, origin, is_broken, state: Mutex::default() }));
    Ok(())
}

pub fn end(handle: *mut c_void) -> Answer<*mut c_void> {
    let stream = find(handle)?;
    let capture = lock(&stream.capture).clone().ok_or(CAPTURE_UNSUPPORTED)?;
    release(&capture);
    if capture.is_broken.load(SeqCst) {
        return Err(CAPTURE_INVALIDATED);
    }
    let state = lock(&capture.state);
    let is_loose =
        |stream: &usize, (given, waited): &(u64, u64)| *stream != capture.origin && waited < given;
    if state.given.iter().any(|(stream, counts)| is_loose(stream, counts)) {
        return Err(CAPTURE_UNJOINED);
    }
    Ok(keep(Arc::new(state.work.clone())))
}

fn keep(graph: Graph) -> *mut c_void {
    let handle = 16 * NEXT.fetch_add(1, SeqCst);
    lock(&GRAPHS).insert(handle, graph);
    std::ptr::without_provenance_mut(handle)
}

fn graph(handle: *mut c_void) -> Answer<Graph> {
    lock(&GRAPHS).get(&handle.addr()).cloned().ok_or(INVALID_HANDLE)
}

pub fn instantiate(handle: *mut c_void) -> Answer<*mut c_void> {
    Ok(keep(graph(handle)?))
}

pub fn launch(handle: *mut c_void, stream: *mut c_void) -> Answer {
    let graph = graph(handle)?;
    find(stream)?.submit(Arc::new(move || graph.iter().for_each(|work| work())));
    Ok(())
}

pub fn destroy(handle: *mut c_void) -> Answer {
    lock(&GRAPHS).remove(&handle.addr()).map(|_| ()).ok_or(INVALID_HANDLE)
}
