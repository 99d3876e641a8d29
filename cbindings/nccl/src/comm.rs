//! What an `ncclComm_t` names: a communicator of the library, or one that is still being made.
//!
//! The ordinary call enters the handle, finds nothing that wants attention, and goes on with the
//! library's own handle. What wants attention is told by bits, looked at in the cold.
#![allow(unsafe_code)]

use crate::environment::{self, log};
use crate::memory::device_scalars::DeviceScalar;
use crate::memory::windows::Signals;
pub use crate::texts::{for_c, last_text, ring_text, text_at};
use crate::texts::{keep, words_of};
use crate::types::*;
use ringcomm::communicator::enqueue;
use ringcomm::error::{Error, Result};
use ringcomm::ffi::boundary;
use ringcomm::ffi::calls::stream::{ringStreamCreate, ringStreamDestroy, ringStreamQuery};
use ringcomm::ffi::handle::{HandleKind, HandleTable, InsideCall};
use ringcomm::ffi::object;
use ringcomm::ffi::types::{ringComm, ringComm_t, ringResult_t, ringStream_t};
use ringcomm::sync::Mutex;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize};
use std::sync::{Arc, OnceLock};

/// It is being made, or something else goes on in the background.
pub const BUSY: u32 = 1;
/// What went on in the background has failed.
pub const FAILED: u32 = 1 << 1;
/// Its calls return before they are done.
pub const NONBLOCKING: u32 = 1 << 2;
pub const SUSPENDED: u32 = 1 << 3;
pub const REVOKED: u32 = 1 << 4;

/// CUDA's names for the default streams; on the host they are no streams.
const LAST_NAMED_STREAM: usize = 2;

pub struct Comm {
    /// NULL until it is made.
    ring: AtomicPtr<ringComm>,
    /// Bits of what a call has to look at first.
    attention: AtomicU32,
    /// The result of what failed in the background.
    outcome: AtomicI32,
    on_host: AtomicBool,
    /// Nobody waits for it any more.
    pub aborted: AtomicBool,
    /// Where calls of a communicator that does not block run, made when first used.
    stream: AtomicPtr<c_void>,
    /// Why the last call on it failed.
    text: Mutex<CString>,
    /// The id of `ncclCommGetUniqueId`, until it is used.
    pub grows_by: Mutex<Option<ncclUniqueId>>,
    pub name: Option<String>,
    /// Factors of reductions in its device's memory.
    pub device_scalars: Mutex<Vec<DeviceScalar>>,
    /// Handles of its windows.
    pub windows: Mutex<Vec<usize>>,
    /// What the program has of it, for the log.
    pub handle: AtomicUsize,
    /// The counters of its signals, once it has windows.
    pub signals: OnceLock<Signals>,
}

pub static COMMS: HandleTable<Arc<Comm>> = HandleTable::new(HandleKind::NcclCommunicator);

impl Comm {
    /// One that is still to be made.
    pub fn new(is_blocking: bool, name: Option<String>) -> Arc<Comm> {
        let attention = if is_blocking { BUSY } else { BUSY | NONBLOCKING };
        Arc::new(Comm {
            ring: AtomicPtr::new(null_mut()),
            attention: AtomicU32::new(attention),
            outcome: AtomicI32::new(ncclSuccess),
            on_host: AtomicBool::new(true),
            aborted: AtomicBool::new(false),
            stream: AtomicPtr::new(null_mut()),
            text: Mutex::new(CString::default()),
            grows_by: Mutex::new(None),
            name,
            device_scalars: Mutex::default(),
            windows: Mutex::default(),
            handle: AtomicUsize::new(0),
            signals: OnceLock::new(),
        })
    }

    /// It is made.
    pub fn set_ring(&self, ring: ringComm_t) {
        let on_host = object::enter(ring).is_ok_and(|made| made.communicator.device().is_none());
        self.on_host.store(on_host, Relaxed);
        // SeqCst: whoever gives it up stores `aborted` and then looks here; whoever made it stores
        // here and then looks there. One of them sees the other.
        self.ring.store(ring, SeqCst);
    }

    pub fn ring(&self) -> ringComm_t {
        self.ring.load(SeqCst)
    }

    pub fn begin(&self) {
        self.attention.fetch_or(BUSY, Release);
    }

    /// What went on in the background is over.
    pub fn over(&self, outcome: ncclResult_t) {
        if outcome != ncclSuccess {
            self.outcome.store(outcome, Relaxed);
            self.attention.fetch_or(FAILED, Release);
        }
        self.attention.fetch_and(!BUSY, Release);
    }

    pub fn mark(&self, bit: u32) {
        self.attention.fetch_or(bit, Release);
    }

    pub fn clear(&self, bit: u32) {
        self.attention.fetch_and(!bit, Release);
    }

    pub fn is(&self, bit: u32) -> bool {
        self.attention.load(Acquire) & bit != 0
    }

    /// Keep why a call failed, for `ncclGetLastError`.
    pub fn note(&self, text: &CStr) {
        *self.text.lock() = text.to_owned();
    }

    pub fn last_text(&self) -> CString {
        let own = self.text.lock().clone();
        let ring = self.ring();
        match own.is_empty() && !ring.is_null() {
            true => words_of(ring),
            false => own,
        }
    }

    /// The stream on which the calls of one that does not block run.
    fn own_stream(&self) -> Result<ringStream_t> {
        let there = self.stream.load(Acquire);
        if !there.is_null() {
            return Ok(there);
        }
        let mut fresh = null_mut();
        // SAFETY: the place is a local.
        if unsafe { ringStreamCreate(&mut fresh) } != ringResult_t::ringSuccess {
            return Err(Error::usage(ring_text()));
        }
        match self.stream.compare_exchange(null_mut(), fresh, AcqRel, Acquire) {
            Ok(_) => Ok(fresh),
            Err(there) => {
                // SAFETY: safe for any argument; nobody else knows it.
                unsafe { ringStreamDestroy(fresh) };
                Ok(there)
            }
        }
    }

    /// Its stream, which the caller ends; NULL where there is none.
    pub fn take_stream(&self) -> ringStream_t {
        self.stream.swap(null_mut(), Acquire)
    }

    pub fn is_blocking(&self) -> bool {
        !self.is(NONBLOCKING)
    }

    /// Refuse what cannot be done with it now.
    pub fn check(&self, function: &str) -> Result<(), ncclResult_t> {
        match self.is(BUSY | FAILED | SUSPENDED | REVOKED) {
            true => self.admit(function, null_mut()).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Wait until the calls that returned early are done. Their errors are told where it is asked
    /// for them.
    pub fn wait_for_calls(&self) {
        let stream = self.stream.load(Acquire);
        if let Ok(stream) = object::enter_stream(stream) {
            let _: Result<bool> = stream.mark().and_then(|mark| stream.reached(mark, None));
        }
    }

    /// What the calls that return early have come to.
    pub fn progress(&self) -> ncclResult_t {
        if self.is(BUSY) {
            return ncclInProgress;
        }
        if self.is(FAILED) {
            keep(self.last_text());
            return self.outcome.load(Relaxed);
        }
        let stream = self.stream.load(Acquire);
        if stream.is_null() {
            return ncclSuccess;
        }
        // SAFETY: safe for any argument.
        match unsafe { ringStreamQuery(stream) } {
            ringResult_t::ringSuccess => ncclSuccess,
            ringResult_t::ringInProgress => ncclInProgress,
            failed => self.remember(failed),
        }
    }

    /// Keep the text of a call of the library's that has just failed on this thread; its code.
    pub fn remember(&self, code: ringResult_t) -> ncclResult_t {
        // The library's communicator has not seen all of them.
        let text = words_of(null_mut());
        self.note(&text);
        keep(text);
        result_of(code)
    }

    /// Whether a call may begin, and on which stream.
    #[cold]
    fn admit(&self, function: &str, stream: ringStream_t) -> Result<ringStream_t, ncclResult_t> {
        let refuse = |code, why: &str| Err(self.refuse(code, format!("{function}: {why}")));
        let attention = self.attention.load(Acquire);
        if attention & BUSY != 0 {
            return refuse(
                ncclInvalidArgument,
                "what was begun on this communicator is not over; call ncclCommGetAsyncError until \
                 it says something else than ncclInProgress",
            );
        }
        if attention & FAILED != 0 {
            let why = self.text.lock().to_string_lossy().into_owned();
            return refuse(self.outcome.load(Relaxed), &format!("the communicator failed: {why}"));
        }
        if attention & SUSPENDED != 0 {
            return refuse(ncclInvalidUsage, "it is suspended; call ncclCommResume first");
        }
        if attention & REVOKED != 0 {
            let why = "it was revoked; it can be split, shrunk and destroyed";
            return refuse(ncclInvalidUsage, why);
        }
        if attention & NONBLOCKING != 0
            && let Ok(made) = object::enter(self.ring())
            && let Some(error) = made.communicator.async_error()
        {
            return Err(self.refuse_by(&error));
        }
        let on_host = self.on_host.load(Relaxed);
        let is_default = stream.is_null() || (on_host && stream.addr() <= LAST_NAMED_STREAM);
        match (is_default, attention & NONBLOCKING != 0 && on_host) {
            (true, true) => self.own_stream().map_err(|error| self.refuse_by(&error)),
            (true, false) if on_host => Ok(null_mut()),
            _ => Ok(stream),
        }
    }

    /// A call of the library's has failed on it: its code, after the text was kept.
    #[cold]
    pub fn failed(&self, function: &str, code: ringResult_t) -> ncclResult_t {
        let code = self.remember(code);
        log::warn(function, self);
        code
    }

    /// Refuse a call on it: the code, after the text was kept.
    #[cold]
    pub fn refuse(&self, code: ncclResult_t, why: String) -> ncclResult_t {
        let text = for_c(&why);
        self.note(&text);
        let code = refuse(code, why);
        log::warn("", self);
        code
    }

    #[cold]
    pub fn refuse_by(&self, error: &Error) -> ncclResult_t {
        let code = refuse_by(error);
        self.note(&last_text());
        log::warn("", self);
        code
    }
}

/// NCCL's code for the library's. It has none for a call that an abort has ended, and answers such
/// a call as one that cannot go on for a reason of its own.
pub fn result_of(code: ringResult_t) -> ncclResult_t {
    match code {
        ringResult_t::ringAborted => ncclInternalError,
        code => code as ncclResult_t,
    }
}

/// Refuse a call that names no communicator: the code, after the text was kept.
#[cold]
pub fn refuse(code: ncclResult_t, why: String) -> ncclResult_t {
    keep(for_c(&why));
    code
}

/// A call that the open group was to hold was refused: the group fails as a whole.
#[cold]
pub fn spoil(code: ncclResult_t) -> ncclResult_t {
    let why = last_text().to_string_lossy().into_owned();
    enqueue::refuse(match code {
        ncclInvalidUsage => Error::InvalidUsage(why),
        _ => Error::InvalidArgument(why),
    });
    code
}

/// As [`refuse`], for an error of the library's.
#[cold]
pub fn refuse_by(error: &Error) -> ncclResult_t {
    let code = boundary::failed(error, None);
    keep(words_of(null_mut()));
    result_of(code)
}

/// The result of a function that has no communicator.
pub fn answer(body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    environment::begin();
    match boundary::caught(body) {
        Ok(()) => ncclSuccess,
        Err(error) => {
            let code = refuse_by(&error);
            log::warn_alone(&last_text());
            code
        }
    }
}

/// The code of a function of the library's that names no communicator.
pub fn answer_of(code: ringResult_t) -> ncclResult_t {
    if code == ringResult_t::ringSuccess {
        return ncclSuccess;
    }
    keep(words_of(null_mut()));
    log::warn_alone(&last_text());
    result_of(code)
}

#[cold]
fn unknown(function: &str, comm: ncclComm_t) -> ncclResult_t {
    let why = match comm.is_null() {
        true => format!("{function}: the communicator is NULL"),
        false => format!("{function}: {comm:p} is no communicator: never made, or already gone"),
    };
    let code = refuse(ncclInvalidArgument, why);
    log::warn_alone(&last_text());
    code
}

/// Enter a communicator, made or not.
pub fn enter(function: &str, comm: ncclComm_t) -> Result<InsideCall<Arc<Comm>>, ncclResult_t> {
    COMMS.enter(comm.cast()).ok_or_else(|| unknown(function, comm))
}

/// Make a call of the library's on a communicator, with a stream.
#[inline]
pub fn call(
    function: &'static str,
    comm: ncclComm_t,
    stream: cudaStream_t,
    body: impl FnOnce(ringComm_t, ringStream_t) -> ringResult_t,
) -> ncclResult_t {
    let Some(inside) = COMMS.enter(comm.cast()) else { return spoil(unknown(function, comm)) };
    let mut stream: ringStream_t = stream.cast();
    // Acquire: pairs with the Release of whoever made it.
    let wants_attention = inside.attention.load(Acquire) != 0;
    if wants_attention || (stream.addr().wrapping_sub(1) < LAST_NAMED_STREAM) {
        stream = match inside.admit(function, stream) {
            Ok(stream) => stream,
            Err(code) => return spoil(code),
        };
        crate::group::note_nonblocking(inside.is(NONBLOCKING));
    }
    match body(inside.ring.load(Relaxed), stream) {
        ringResult_t::ringSuccess if !wants_attention => ncclSuccess,
        ringResult_t::ringSuccess => in_progress(&inside),
        failed => inside.failed(function, failed),
    }
}

/// What a call that may have returned early says; in a group its end says it.
#[cold]
fn in_progress(comm: &Comm) -> ncclResult_t {
    match comm.is(NONBLOCKING) && !enqueue::is_open() {
        true => comm.progress(),
        false => ncclSuccess,
    }
}

/// Ask something of a communicator that is made.
pub fn ask(
    function: &'static str,
    comm: ncclComm_t,
    body: impl FnOnce(&Arc<Comm>, &object::Comm) -> Result<()>,
) -> ncclResult_t {
    let inside = match enter(function, comm) {
        Ok(inside) => inside,
        Err(code) => return code,
    };
    let ring = inside.ring();
    if ring.is_null() {
        return match inside.admit(function, null_mut()) {
            Err(code) => code,
            Ok(_) => unknown(function, comm),
        };
    }
    let asked = boundary::caught(|| body(&inside, &*object::enter(ring)?));
    match asked {
        Ok(()) => ncclSuccess,
        Err(error) => inside.refuse_by(&error.of_function(function)),
    }
}

/// An error that says in which function.
pub trait OfFunction {
    fn of_function(self, function: &str) -> Error;
}

impl OfFunction for Error {
    fn of_function(self, function: &str) -> Error {
        match self {
            Error::InvalidArgument(text) if !text.starts_with("nccl") => {
                Error::InvalidArgument(format!("{function}: {text}"))
            }
            error => error,
        }
    }
}
