//! Capture: the work of one or several streams, recorded in the order in which it was given.
//!
//! That order is one that the streams and events allow, so doing it again in that order is right. A
//! stream comes in by waiting for an event of the capture, and must come back: the stream that
//! began must have waited, perhaps through others, for all that the others were given.
//!
//! While a capture is under way calls that it might see are forbidden: its own thread, and in the
//! mode `GLOBAL` every thread, but those that have exchanged their mode for `RELAXED`. Who makes
//! one all the same is refused, and the capture has failed.

use crate::queue::Work;
use crate::streams::{Stream, find, release};
use crate::{
    Answer, CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNSUPPORTED, INVALID_HANDLE,
    INVALID_VALUE, lock,
};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::ThreadId;

pub struct Capture {
    pub id: u64,
    /// The stream that began, by its address.
    origin: usize,
    mode: i32,
    /// The thread that began.
    thread: ThreadId,
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

/// The driver's numbers of modes; between them is the one for the capture's own thread.
const GLOBAL: i32 = 0;
const RELAXED: i32 = 2;

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

/// Captures under way.
static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

/// Take another mode on this thread; the one that it had.
pub fn exchange(mode: i32) -> Answer<i32> {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(INVALID_VALUE);
    }
    Ok(MODE.replace(mode))
}

/// A call that captures might see: whether this thread may make it.
pub fn forbid() -> Answer {
    let (mode, thread) = (MODE.get(), std::thread::current().id());
    let sees = |capture: &&Arc<Capture>| {
        let is_own = capture.thread == thread && capture.mode != RELAXED;
        mode != RELAXED && (is_own || mode == GLOBAL && capture.mode == GLOBAL)
    };
    let mut answer = Ok(());
    for capture in lock(&ACTIVE).iter().filter(sees) {
        capture.is_broken.store(true, SeqCst);
        answer = Err(CAPTURE_UNSUPPORTED);
    }
    answer
}

pub fn begin(handle: *mut c_void, mode: i32) -> Answer {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(INVALID_VALUE);
    }
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
    let (thread, state) = (std::thread::current().id(), Mutex::default());
    let capture = Arc::new(Capture { id, origin, mode, thread, is_broken, state });
    lock(&ACTIVE).push(capture.clone());
    *own = Some(capture);
    Ok(())
}

pub fn end(handle: *mut c_void) -> Answer<*mut c_void> {
    let stream = find(handle)?;
    let capture = lock(&stream.capture).clone().ok_or(CAPTURE_UNSUPPORTED)?;
    release(&capture);
    lock(&ACTIVE).retain(|active| !Arc::ptr_eq(active, &capture));
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
