//! Memory that other ranks reach directly.
#![allow(unsafe_code)]

use crate::error::Error;
use crate::ffi::boundary::{run, run_on};
use crate::ffi::convert;
use crate::ffi::object::{self, Comm, REGISTRATIONS, Registration};
use crate::ffi::types::*;
use crate::sync::MutexGuard;
use crate::transport::shm_export;
use std::collections::HashSet;
use std::ffi::c_void;

/// Allocate memory that other ranks reach directly.
///
/// Where all ranks' buffers of a call are such memory, or all ranks are threads of one process, a
/// collective of more than a few KiB moves its data from buffer to buffer, without staging (the
/// cost model decides from where on; `ringCommExplain` says how). Of `ringSend`, `ringAllToAllv`,
/// `ringGatherv` and `ringScatterv` a block that is longer than a slot (64 KiB at most), and a
/// shorter one where the rank receives in the same call or group and that is faster, is copied
/// once, from the send buffer, where that is such memory, whatever the receiver's is. What
/// goes through slots at any length: `ringAllToAll` in place, algorithms of `RINGCOMM_ALGO` in
/// which ranks pass on what they got (rings, trees, halving), and everything between hosts.
///
/// `*ptr` is written on success, aligned to a page; zero bytes give a pointer that can be freed. A
/// child made by `fork` shares the memory with its parent: what one writes, the other reads, and
/// when the parent has freed it the child reads zeros.
///
/// A rank that gives up waits for peers that are writing here. One that is stopped (SIGSTOP) in the
/// middle of that is waited for two seconds, and finishes its write when it goes on.
///
/// Errors: `ringInvalidArgument` for NULL; `ringSystemError` where there is not enough memory.
///
/// # Safety
/// `ptr` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringMemAlloc(ptr: *mut *mut c_void, size: usize) -> ringResult_t {
    run(|| {
        let out = convert::out(ptr, "ptr")?;
        out.set(shm_export::allocate(size)?.cast());
        Ok(())
    })
}

/// Free memory of `ringMemAlloc`.
///
/// Errors: `ringInvalidArgument` where `ptr` is not one of its pointers, or was freed.
///
/// # Safety
/// No call uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringMemFree(ptr: *mut c_void) -> ringResult_t {
    run(|| shm_export::release(ptr.cast()))
}

/// Tell the communicator about a buffer that will be used again and again, so that other ranks
/// reach it directly.
///
/// Never needed for a right result. Where short calls of one collective, count, type, operation and
/// root have run in memory that is not shared, up to fifteen more may pass before one finds that
/// all ranks' buffers now are. `*handle` is written on success, for `ringCommDeregister`. The
/// buffer stays allocated until then. Destroying or aborting the communicator takes back what is
/// left; the handle is gone then. Of a peer that is stopped in the middle of a write, see
/// `ringMemAlloc`. While this runs no thread writes to the buffer, which is moved: what is written
/// meanwhile may be lost. While it is registered, a child made by `fork` shares it with its
/// parent; see `ringCommDeregister` for what it has afterwards.
///
/// Errors: `ringInvalidArgument` for NULL, and a range that is not whole pages or not private,
/// writable memory throughout (not mapped, mapped from a shared file, partly registered already).
///
/// # Safety
/// `buff` is valid for `size` bytes; `handle` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommRegister(
    comm: ringComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ringResult_t {
    run_on(comm, |comm| {
        let out = convert::out(handle, "handle")?;
        if buff.is_null() {
            return Err(Error::argument("buff is NULL"));
        }
        let key = comm.communicator.register(buff.cast(), size)?;
        match REGISTRATIONS.insert(Registration { key }) {
            Ok(registration) => {
                registrations(comm).insert(registration.addr());
                out.set(registration);
                Ok(())
            }
            Err(error) => {
                comm.communicator.deregister(key)?;
                Err(error)
            }
        }
    })
}

/// Undo `ringCommRegister`.
///
/// After the last registration of a buffer it is private again, with its content; other threads may
/// go on reading and writing it meanwhile, and while a communicator is destroyed or aborted.
///
/// A child that was forked while the buffer was registered keeps it with the content of this
/// moment, and shares it no more. The parent's buffer then takes its memory twice until it is
/// unmapped, also after the child has ended, and `madvise(MADV_DONTNEED)` there brings that content
/// back, and no zeros: who hands such a buffer back to an allocator that counts on zeros registers
/// it after the last fork, or uses `ringMemAlloc`.
///
/// Errors: `ringInvalidArgument` where `handle` is none of this communicator, or was deregistered.
///
/// # Safety
/// No call uses the buffer any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommDeregister(comm: ringComm_t, handle: *mut c_void) -> ringResult_t {
    run_on(comm, |comm| {
        let none = || object::not_a("registration of this communicator", handle);
        if !registrations(comm).remove(&handle.addr()) {
            return Err(none());
        }
        let registration = REGISTRATIONS.close(handle).ok_or_else(none)?;
        comm.communicator.deregister(registration.key)
    })
}

fn registrations(comm: &Comm) -> MutexGuard<'_, HashSet<usize>> {
    comm.registrations.lock()
}
