//! Questions that need no other rank.
#![allow(unsafe_code)]

use crate::ffi::boundary::{self, run, run_on};
use crate::ffi::convert;
use crate::ffi::types::*;
use std::ffi::{c_char, c_int};

/// The version of the library that is loaded, as `RING_VERSION_CODE`.
///
/// # Safety
/// `version` has room for an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringGetVersion(version: *mut c_int) -> ringResult_t {
    run(|| {
        convert::out(version, "version")?.set(RING_VERSION_CODE);
        Ok(())
    })
}

/// What a result code means, in one line. Never NULL, never freed.
#[unsafe(no_mangle)]
pub extern "C" fn ringGetErrorString(result: RawResult) -> *const c_char {
    boundary::meaning(result.0).as_ptr()
}

/// What went wrong in the last call that failed on this communicator, by whichever thread: who,
/// what, which rank, which operation, and what to do.
///
/// A group that fails is such a call on each of its communicators, and a stream's call where it
/// runs.
///
/// Where `comm` is NULL or destroyed: in this thread's last call that failed. Never NULL; "" where
/// nothing failed. Valid until the same thread calls this function again.
///
/// # Safety
/// Safe for any argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringGetLastError(comm: ringComm_t) -> *const c_char {
    boundary::last_error(comm)
}

/// The number of ranks.
///
/// `*count` is written on success.
///
/// # Safety
/// `count` has room for an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommCount(comm: ringComm_t, count: *mut c_int) -> ringResult_t {
    run_on(comm, |comm| {
        convert::out(count, "count")?.set(comm.communicator.nranks() as c_int);
        Ok(())
    })
}

/// This rank.
///
/// `*rank` is written on success.
///
/// # Safety
/// `rank` has room for an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommUserRank(comm: ringComm_t, rank: *mut c_int) -> ringResult_t {
    run_on(comm, |comm| {
        convert::out(rank, "rank")?.set(comm.communicator.rank() as c_int);
        Ok(())
    })
}

/// The CUDA device of this rank; -1 on the CPU.
///
/// `*device` is written on success.
///
/// # Safety
/// `device` has room for an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommCuDevice(comm: ringComm_t, device: *mut c_int) -> ringResult_t {
    run_on(comm, |comm| {
        convert::out(device, "device")?.set(comm.communicator.device().unwrap_or(-1));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_package_version() {
        let numbers: Vec<i32> =
            env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap()).collect();
        assert_eq!(numbers, [RING_MAJOR, RING_MINOR, RING_PATCH]);
        assert_eq!(RING_VERSION_CODE, RING_MAJOR * 10000 + RING_MINOR * 100 + RING_PATCH);
    }
}
