//! The end of communicators, and what stops and resumes them.
#![allow(unsafe_code)]

use crate::comm::{BUSY, COMMS, Comm, FAILED, REVOKED, SUSPENDED, ask, enter, refuse};
use crate::memory::windows;
use crate::types::*;
use ringcomm::communicator::enqueue;
use ringcomm::error::Error;
use ringcomm::ffi::calls::stream::ringStreamDestroy;
use ringcomm::ffi::comm::lifecycle::*;
use ringcomm::ffi::convert;
use ringcomm::ffi::object;
use ringcomm::ffi::types::ringResult_t;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::Builder;
use std::time::Duration;

/// How long calls may take to leave a communicator that is given up.
const ENDING: Duration = Duration::from_secs(30);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    const NAME: &str = "ncclCommFinalize";
    if comm.is_null() {
        return ncclSuccess;
    }
    let inside = match enter(NAME, comm) {
        Ok(inside) => Arc::clone(&inside),
        Err(code) => return code,
    };
    if let Err(code) = inside.check(NAME) {
        return code;
    }
    if inside.is_blocking() {
        return finalize(NAME, &inside);
    }
    inside.begin();
    let own = Arc::clone(&inside);
    let job = move || {
        own.wait_for_calls();
        let result = finalize(NAME, &own);
        own.over(result);
    };
    match Builder::new().name("ringcomm end".into()).spawn(job) {
        Ok(_) => ncclInProgress,
        Err(error) => {
            inside.over(ncclSuccess);
            let what = format!("{NAME}: no thread for it: {error}");
            inside.refuse(ncclSystemError, what)
        }
    }
}

fn finalize(function: &str, own: &Comm) -> ncclResult_t {
    // SAFETY: safe for any argument.
    match unsafe { ringCommFinalize(own.ring()) } {
        ringResult_t::ringSuccess => ncclSuccess,
        failed => own.failed(function, failed),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    const NAME: &str = "ncclCommDestroy";
    if comm.is_null() {
        return ncclSuccess;
    }
    let own = match enter(NAME, comm) {
        Ok(inside) => Arc::clone(&inside),
        Err(code) => return code,
    };
    if own.ring().is_null() || own.is(REVOKED) {
        return end(comm, own);
    }
    // What goes on in the background ends by its deadline; the library waits for it.
    own.wait_for_calls();
    // SAFETY: safe for any argument.
    let ended = unsafe { ringCommDestroy(own.ring()) };
    // A group that holds calls of it keeps it as it was.
    if ended == ringResult_t::ringInvalidUsage && enqueue::is_open() {
        return own.failed(NAME, ended);
    }
    let code = match ended {
        ringResult_t::ringSuccess => ncclSuccess,
        failed => own.failed(NAME, failed),
    };
    close(comm, &own);
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    if comm.is_null() {
        return ncclSuccess;
    }
    // Not held: the end waits for whoever is inside.
    let own = COMMS.enter_alive(comm.cast()).map(|inside| Arc::clone(&inside));
    match own {
        Some(own) => end(comm, own),
        None => refuse(
            ncclInvalidArgument,
            format!("ncclCommAbort: {comm:p} is no communicator: never made, or already gone"),
        ),
    }
}

/// Give a communicator up, made or not.
fn end(comm: ncclComm_t, own: Arc<Comm>) -> ncclResult_t {
    // SeqCst: as in `set_ring`.
    own.aborted.store(true, SeqCst);
    let ring = own.ring();
    if !ring.is_null() {
        // SAFETY: safe for any argument.
        unsafe { ringCommAbort(ring) };
        // In a signal handler that interrupted a call the library leaves its handle: that call
        // returns first, and who waited for it here would wait for itself.
        if object::enter(ring).is_ok() {
            return ncclSuccess;
        }
    }
    close(comm, &own);
    ncclSuccess
}

/// Take the handle back, and what is this layer's.
fn close(comm: ncclComm_t, own: &Comm) {
    end_stream(own);
    windows::close_all(own);
    // A call of another thread leaves soon.
    drop(COMMS.bar(comm.cast()).and_then(|closing| closing.take_within(ENDING)));
}

/// End the stream of calls that return early: they are done, or fail at once.
fn end_stream(own: &Comm) {
    let stream = own.take_stream();
    if !stream.is_null() {
        // SAFETY: safe for any argument.
        unsafe { ringStreamDestroy(stream) };
    }
}

/// End what runs. It can be split, shrunk and destroyed then; its peers' calls end, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t {
    ask("ncclCommRevoke", comm, |own, ring| {
        if revokeFlags != NCCL_REVOKE_DEFAULT {
            return Err(Error::argument(format!("{revokeFlags} is no flag of a revocation")));
        }
        own.mark(REVOKED);
        ring.communicator.abort();
        ring.communicator.settle();
        end_stream(own);
        Ok(())
    })
}

/// The memory of a communicator on the host is its peers', too: it stays, and calls are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    ask("ncclCommSuspend", comm, |own, _| match (flags, own.is(SUSPENDED)) {
        (_, true) => Err(Error::usage("ncclCommSuspend: it is suspended already")),
        (NCCL_SUSPEND_MEM, false) => {
            own.wait_for_calls();
            own.mark(SUSPENDED);
            Ok(())
        }
        _ => Err(Error::argument(format!("{flags} is no flag of it; give NCCL_SUSPEND_MEM"))),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommResume(comm: ncclComm_t) -> ncclResult_t {
    ask("ncclCommResume", comm, |own, _| match own.is(SUSPENDED) {
        true => {
            own.clear(SUSPENDED);
            Ok(())
        }
        false => Err(Error::usage("ncclCommResume: it is not suspended")),
    })
}

/// What became of calls that returned early, else the error that broke the communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    const NAME: &str = "ncclCommGetAsyncError";
    let inside = match enter(NAME, comm) {
        Ok(inside) => inside,
        Err(code) => return code,
    };
    let Ok(out) = convert::out(asyncError, "asyncError") else {
        return inside.refuse(ncclInvalidArgument, format!("{NAME}: asyncError is NULL"));
    };
    let progress = match inside.progress() {
        ncclSuccess if !inside.is(BUSY | FAILED | REVOKED) => {
            let mut broken = ringResult_t::ringSuccess;
            // SAFETY: the place is a local.
            match unsafe { ringCommGetAsyncError(inside.ring(), &mut broken) } {
                ringResult_t::ringSuccess if broken != ringResult_t::ringSuccess => {
                    inside.remember(broken)
                }
                ringResult_t::ringSuccess => ncclSuccess,
                failed => return inside.failed(NAME, failed),
            }
        }
        progress => progress,
    };
    out.set(progress);
    ncclSuccess
}
