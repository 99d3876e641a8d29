//! Ranks as threads, each with a communicator of NCCL's interface.

use ringcomm_nccl::init::*;
use ringcomm_nccl::lifecycle::*;
use ringcomm_nccl::query::*;
use ringcomm_nccl::types::*;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

/// A handle that goes from thread to thread.
#[derive(Clone, Copy)]
pub struct Handle(pub ncclComm_t);

// SAFETY: a handle is a number to the library, which any thread may use.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

#[track_caller]
pub fn ok(result: ncclResult_t) {
    assert_eq!(result, ncclSuccess, "{}", last_error(null_mut()));
}

pub fn last_error(comm: ncclComm_t) -> String {
    // SAFETY: never NULL, and valid until this thread asks again.
    unsafe { CStr::from_ptr(pncclGetLastError(comm)) }.to_str().unwrap().to_string()
}

/// The call is refused with this code, for a reason that says this.
#[track_caller]
pub fn refused(result: ncclResult_t, code: ncclResult_t, why: &str) {
    let text = last_error(null_mut());
    assert_eq!(result, code, "{text}");
    assert!(text.contains(why), "{text:?} does not say {why:?}");
}

pub fn new_id() -> ncclUniqueId {
    let mut id = ncclUniqueId { internal: [0; NCCL_UNIQUE_ID_BYTES] };
    // SAFETY: the place is a local.
    ok(unsafe { pncclGetUniqueId(&mut id) });
    id
}

/// A configuration of which this is set.
pub fn config(blocking: i32) -> ncclConfig_t {
    let mut fields = [NCCL_CONFIG_UNDEF_INT; size_of::<ncclConfig_t>() / 4];
    // SAFETY: the structure is numbers and pointers, and any bytes are such.
    let mut config: ncclConfig_t = unsafe { std::mem::transmute_copy(&fields) };
    fields.fill(0);
    config.size = size_of::<ncclConfig_t>();
    config.magic = NCCL_API_MAGIC;
    config.version = NCCL_VERSION_CODE as u32;
    config.blocking = blocking;
    (config.netName, config.commName) = (null(), null());
    config
}

/// Run `body` on every rank, each a thread with its communicator, which is destroyed afterwards.
pub fn with_ranks(nranks: i32, body: impl Fn(i32, ncclComm_t) + Sync) {
    with_ranks_until(pncclCommDestroy, nranks, body);
}

/// As [`with_ranks`], with an end of its own: a communicator that may have failed is aborted.
pub fn with_ranks_until(
    end: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t,
    nranks: i32,
    body: impl Fn(i32, ncclComm_t) + Sync,
) {
    let id = new_id();
    std::thread::scope(|scope| {
        for rank in 0..nranks {
            let body = &body;
            scope.spawn(move || {
                let mut comm = null_mut();
                // SAFETY: the place is a local.
                ok(unsafe { pncclCommInitRank(&mut comm, nranks, id, rank) });
                body(rank, comm);
                // SAFETY: safe for any argument.
                ok(unsafe { end(comm) });
            });
        }
    });
}

/// Ask a communicator until nothing goes on in the background; what it says then.
pub fn poll(comm: ncclComm_t) -> ncclResult_t {
    let started = std::time::Instant::now();
    loop {
        let mut state = ncclInProgress;
        // SAFETY: the place is a local.
        ok(unsafe { pncclCommGetAsyncError(comm, &mut state) });
        if state != ncclInProgress {
            return state;
        }
        assert!(started.elapsed().as_secs() < 60, "it is in progress for ever");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

pub fn rank_of(comm: ncclComm_t) -> (i32, i32) {
    let (mut rank, mut count) = (-2, -2);
    // SAFETY: the places are locals.
    unsafe {
        ok(pncclCommUserRank(comm, &mut rank));
        ok(pncclCommCount(comm, &mut count));
    }
    (rank, count)
}
