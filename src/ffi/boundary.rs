//! The way back to C: result codes, the texts that explain them, and panics that stop here.
//!
//! Every exported function is one call of [`run`], [`run_on`] or [`run_call`]: its body returns a
//! `Result`, and this file turns it into a code and keeps the text, for the thread and, where there
//! is one, for the communicator.

use crate::communicator::enqueue;
use crate::config::level;
use crate::error::{Error, Result};
use crate::ffi::object::{self, Comm};
use crate::ffi::types::{ringComm_t, ringResult_t};
use crate::os::environment::variable;
use crate::os::thread_signals::{NoCancel, say};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// The text of this thread's last failed call.
    static LAST: RefCell<CString> = RefCell::default();
    /// The text that this thread's last `ringGetLastError` handed out, kept alive for the caller.
    static HANDED_OUT: RefCell<CString> = RefCell::default();
}

/// The code of an error.
fn code(error: &Error) -> ringResult_t {
    match error {
        Error::InvalidArgument(_) => ringResult_t::ringInvalidArgument,
        Error::InvalidUsage(_) | Error::Mismatch { .. } => ringResult_t::ringInvalidUsage,
        Error::System { .. } => ringResult_t::ringSystemError,
        Error::Cuda(_) => ringResult_t::ringUnhandledCudaError,
        Error::Internal(_) => ringResult_t::ringInternalError,
        Error::PeerDied { .. }
        | Error::Unreached { .. }
        | Error::Remote { .. }
        | Error::Disconnected { .. } => ringResult_t::ringRemoteError,
        Error::Timeout { .. }
        | Error::Missing { .. }
        | Error::Apart { .. }
        | Error::NotMet { .. } => ringResult_t::ringTimeout,
        Error::Aborted { .. } => ringResult_t::ringAborted,
    }
}

/// Run the body; a panic becomes an error.
#[inline]
pub fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // A body that panicked leaves no state behind that is used again unlocked: what it shared is
    // behind locks and atomics of its own.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

#[cold]
fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Internal(text.unwrap_or_else(|| "a panic without a text".into()))
}

/// Run a function that has no communicator.
#[inline]
pub fn run<F: FnOnce() -> Result<()>>(body: F) -> ringResult_t {
    let _whole = NoCancel::begin();
    match caught(body) {
        Ok(()) => ringResult_t::ringSuccess,
        Err(error) => failed(&named::<F>(error), None),
    }
}

/// Run a function whose answer on success is a code of its own.
pub fn run_for<F: FnOnce() -> Result<ringResult_t>>(body: F) -> ringResult_t {
    let _whole = NoCancel::begin();
    caught(body).unwrap_or_else(|error| failed(&named::<F>(error), None))
}

/// Run a function of a communicator that asks or changes something here and now.
#[inline]
pub fn run_on(comm: ringComm_t, body: impl FnOnce(&Comm) -> Result<()>) -> ringResult_t {
    let _whole = NoCancel::begin();
    run_noting(comm, body, |error| error)
}

/// Run a function of a communicator that a group may keep for later: a refusal fails the group.
#[inline]
pub fn run_call(comm: ringComm_t, body: impl FnOnce(&Comm) -> Result<()>) -> ringResult_t {
    run_noting(comm, body, enqueue::refuse)
}

#[inline]
fn run_noting<F: FnOnce(&Comm) -> Result<()>>(
    comm: ringComm_t,
    body: F,
    note: impl FnOnce(Error) -> Error,
) -> ringResult_t {
    let inside = match object::enter(comm) {
        Ok(inside) => inside,
        Err(error) => return failed(&note(named::<F>(error)), None),
    };
    // Boxed, an error is one word: a success is not moved about in as much room as an error has.
    match catch_unwind(AssertUnwindSafe(|| body(&inside).map_err(Box::new))) {
        Ok(Ok(())) => ringResult_t::ringSuccess,
        Ok(Err(error)) => failed(&note(named::<F>(*error)), Some(&inside)),
        Err(panic) => failed(&note(named::<F>(panicked(&*panic))), Some(&inside)),
    }
}

/// A refused argument with the name of the C function, in whose body the closure `F` stands. Texts
/// that begin with the operation's name have it already.
#[cold]
fn named<F>(error: Error) -> Error {
    let of_c = |part: &&str| part.starts_with("ring") && *part != "ringcomm";
    let function = std::any::type_name::<F>().split("::").find(of_c);
    match (error, function) {
        (Error::InvalidArgument(text), Some(function))
            if !text.starts_with(function.trim_start_matches("ring")) =>
        {
            Error::InvalidArgument(format!("{function}: {text}"))
        }
        (error, _) => error,
    }
}

/// Keep the error's text and give its code.
#[cold]
pub fn failed(error: &Error, comm: Option<&Comm>) -> ringResult_t {
    let text = error.to_string();
    // What broke a communicator, it has printed itself.
    let printed = comm.is_some() && !matches!(error, Error::InvalidArgument(_));
    if !printed && comm.map_or_else(debug_of_environment, |comm| comm.debug) > 0 {
        match comm {
            Some(comm) => say(&format!("ringcomm: rank {}: {text}", comm.communicator.rank())),
            None => say(&format!("ringcomm: {text}")),
        }
    }
    if let Some(comm) = comm {
        comm.communicator.note(error);
    }
    // A thread that is ending has lost its storage and asks no more questions.
    let _ = LAST.try_with(|last| *last.borrow_mut() = for_c(&text));
    code(error)
}

/// A text with a NUL cannot reach C whole; none is made from anything but C strings and numbers.
fn for_c(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// `RINGCOMM_DEBUG`, where no communicator's configuration says it. Read at every failure, which
/// is rare, so that it needs no state.
fn debug_of_environment() -> u32 {
    variable("RINGCOMM_DEBUG").and_then(|text| level(&text).ok()).unwrap_or(0)
}

/// The communicator's last text, or the thread's where the handle names none (any more). Valid
/// until the thread asks again.
pub fn last_error(comm: ringComm_t) -> *const c_char {
    let of_communicator = |comm: &Comm| {
        comm.communicator.last_error().map(|error| for_c(&error.to_string())).unwrap_or_default()
    };
    let text = object::enter(comm)
        .ok()
        .map(|comm| of_communicator(&comm))
        .or_else(|| LAST.try_with(|last| last.borrow().clone()).ok())
        .unwrap_or_default();
    let keep = |slot: &RefCell<CString>| {
        *slot.borrow_mut() = text;
        slot.borrow().as_ptr()
    };
    HANDED_OUT.try_with(keep).unwrap_or(c"".as_ptr())
}

/// What a code means, in one line.
pub fn meaning(code: i32) -> &'static CStr {
    match code {
        0 => c"no error",
        1 => c"unhandled CUDA error",
        2 => c"system error (ringGetLastError has the details)",
        3 => c"internal error: a defect of ringcomm, please report it",
        4 => c"invalid argument (ringGetLastError has the details)",
        5 => c"invalid usage (ringGetLastError has the details)",
        6 => c"remote rank died or failed (ringGetLastError has the details)",
        7 => c"operation in progress",
        8 => c"timeout while waiting for a rank (ringGetLastError has the details)",
        64 => c"the communicator was aborted",
        _ => c"unknown result code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    fn text() -> String {
        // SAFETY: last_error returns a C string that lives until this thread asks again.
        #[allow(unsafe_code)]
        let text = unsafe { CStr::from_ptr(last_error(null_mut())) };
        text.to_str().unwrap().to_string()
    }

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_text() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = run(|| panic!("the {} broke", "invariant"));
        std::panic::set_hook(hook);
        assert_eq!(result, ringResult_t::ringInternalError);
        assert!(text().contains("the invariant broke"), "{}", text());
    }

    #[test]
    fn each_thread_has_its_own_last_error() {
        assert_eq!(run(|| Err(Error::argument("mine"))), ringResult_t::ringInvalidArgument);
        std::thread::spawn(|| {
            assert_eq!(text(), "");
            assert_eq!(run(|| Err(Error::usage("theirs"))), ringResult_t::ringInvalidUsage);
            assert_eq!(text(), "invalid usage: theirs");
        })
        .join()
        .unwrap();
        assert_eq!(text(), "invalid argument: mine");
    }

    #[test]
    fn a_success_keeps_the_last_text() {
        run(|| Err(Error::argument("kept")));
        assert_eq!(run(|| Ok(())), ringResult_t::ringSuccess);
        assert_eq!(text(), "invalid argument: kept");
    }

    #[test]
    fn every_code_has_a_meaning_of_its_own() {
        let codes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 64];
        let texts: std::collections::HashSet<_> = codes.map(meaning).into_iter().collect();
        assert_eq!(texts.len(), codes.len());
        assert_eq!(meaning(9), meaning(-1));
    }
}
