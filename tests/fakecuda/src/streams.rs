//! Contexts and streams.

use crate::capture::Capture;
use crate::memory::LAUNCHES;
use crate::queue::{Queue, Work, queue};
use crate::{Answer, INVALID_CONTEXT, INVALID_HANDLE, lock, ndevices};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, LazyLock, Mutex};

/// A context is its device's number, moved to where no address is.
const CONTEXTS: usize = 0xC0DA_0000;

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub fn context_of(ordinal: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(CONTEXTS + 16 * ordinal)
}

pub fn ordinal_of(context: *mut c_void) -> Answer<usize> {
    let ordinal = context.addr().wrapping_sub(CONTEXTS) / 16;
    if ordinal < ndevices() && context == context_of(ordinal) {
        Ok(ordinal)
    } else {
        Err(INVALID_CONTEXT)
    }
}

pub fn push(ordinal: usize) {
    CURRENT.with_borrow_mut(|stack| stack.push(ordinal));
}

pub fn pop() -> Answer<usize> {
    CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)
}

/// The device whose context is current on this thread.
pub fn current() -> Answer<usize> {
    CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)
}

/// A stream: its work in its queue, in order.
pub struct Stream {
    pub ordinal: usize,
    queue: Arc<Queue>,
    /// Things given, and things done.
    progress: Mutex<(u64, u64)>,
    done: Condvar,
    pub capture: Mutex<Option<Arc<Capture>>>,
}

impl Stream {
    fn new(ordinal: usize) -> Arc<Stream> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let queue = queue(ordinal, NEXT.fetch_add(1, SeqCst));
        let (progress, done, capture) = (Mutex::default(), Condvar::new(), Mutex::default());
        Arc::new(Stream { ordinal, queue, progress, done, capture })
    }

    /// Do `work` after what the stream was given before; record it where the stream is captured.
    /// Whoever has the driver to itself is through then.
    pub fn submit(self: &Arc<Stream>, work: Work) {
        if let Some(capture) = &*lock(&self.capture) {
            return capture.add(Arc::as_ptr(self).addr(), work);
        }
        let _let_in = LAUNCHES.read();
        lock(&self.progress).0 += 1;
        let stream = Arc::clone(self);
        self.queue.push(Arc::new(move || {
            work();
            lock(&stream.progress).1 += 1;
            stream.done.notify_all();
        }));
    }

    pub fn is_idle(&self) -> bool {
        let progress = lock(&self.progress);
        progress.1 == progress.0
    }

    pub fn synchronize(&self) {
        let mut progress = lock(&self.progress);
        let target = progress.0;
        while progress.1 < target {
            progress = self.done.wait(progress).expect("no queue panics");
        }
    }
}

#[derive(Default)]
struct Streams {
    made: HashMap<usize, Arc<Stream>>,
    defaults: HashMap<usize, Arc<Stream>>,
    /// Destroyed, perhaps with work that is still to be done.
    destroyed: Vec<Arc<Stream>>,
}

static STREAMS: LazyLock<Mutex<Streams>> = LazyLock::new(Mutex::default);

thread_local! {
    static OWN: RefCell<HashMap<usize, Arc<Stream>>> = RefCell::default();
}

/// Handles begin behind the driver's own small numbers.
static NEXT: AtomicU64 = AtomicU64::new(0x1000);

pub fn make() -> Answer<*mut c_void> {
    let stream = Stream::new(current()?);
    let handle = NEXT.fetch_add(16, SeqCst) as usize;
    lock(&STREAMS).made.insert(handle, stream);
    Ok(std::ptr::without_provenance_mut(handle))
}

/// The stream of a handle: made, the default one of the current device, or this thread's own.
pub fn find(handle: *mut c_void) -> Answer<Arc<Stream>> {
    let ordinal = current()?;
    match handle.addr() {
        0 | 1 => {
            let mut streams = lock(&STREAMS);
            let default = streams.defaults.entry(ordinal).or_insert_with(|| Stream::new(ordinal));
            Ok(Arc::clone(default))
        }
        2 => Ok(OWN.with_borrow_mut(|own| {
            Arc::clone(own.entry(ordinal).or_insert_with(|| Stream::new(ordinal)))
        })),
        handle => lock(&STREAMS).made.get(&handle).cloned().ok_or(INVALID_HANDLE),
    }
}

pub fn destroy(handle: *mut c_void) -> Answer {
    let mut streams = lock(&STREAMS);
    let stream = streams.made.remove(&handle.addr()).ok_or(INVALID_HANDLE)?;
    streams.destroyed.push(stream);
    Ok(())
}

/// Wait for everything that was given to any stream but those captured.
pub fn synchronize_all() {
    let all: Vec<Arc<Stream>> = {
        let mut streams = lock(&STREAMS);
        let destroyed = std::mem::take(&mut streams.destroyed);
        let others = streams.made.values().chain(streams.defaults.values()).cloned();
        others.chain(destroyed).collect()
    };
    all.iter().for_each(|stream| stream.synchronize());
}

/// Streams that belong to a capture that has ended go on as before it.
pub fn release(capture: &Arc<Capture>) {
    let streams = lock(&STREAMS);
    for stream in streams.made.values().chain(streams.defaults.values()) {
        let mut own = lock(&stream.capture);
        if own.as_ref().is_some_and(|own| Arc::ptr_eq(own, capture)) {
            *own = None;
        }
    }
}
