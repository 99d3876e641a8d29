//! Memory: allocated, registered, and windows into it.
#![allow(unsafe_code)]

pub mod device_scalars;
pub mod windows;

use crate::comm::{answer, ask, enter};
use crate::types::*;
use ringcomm::device::cuda::{Device, DeviceMemory};
use ringcomm::error::{Error, Result};
use ringcomm::ffi::convert;
use ringcomm::ffi::memory::{ringCommDeregister, ringCommRegister, ringMemFree};
use ringcomm::ffi::types::{ringComm_t, ringResult_t};
use ringcomm::sync::Mutex;
use ringcomm::transport::shm_export;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Memory of devices that was allocated here, by its address.
static ON_DEVICES: Mutex<Option<HashMap<usize, DeviceMemory>>> = Mutex::new(None);

/// Handles of registrations of memory for which nothing is done: odd, as no other handle is.
static NEXT_NOTHING: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);

/// Memory of the current device; on the host where the thread has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    answer(|| {
        let out = convert::out(ptr, "ncclMemAlloc: ptr")?;
        out.set(match Device::current() {
            Some(context) => on_device(context, size)?,
            None => shared(size)?,
        });
        Ok(())
    })
}

fn on_device(context: u64, size: usize) -> Result<*mut c_void> {
    let memory = DeviceMemory::new(&Device::of_context(context)?, size)?;
    let address = memory.pointer();
    ON_DEVICES.lock().get_or_insert_default().insert(address.addr(), memory);
    Ok(address.cast())
}

/// Host memory that ranks of other processes reach.
pub fn shared(size: usize) -> Result<*mut c_void> {
    Ok(shm_export::allocate(size)?.cast())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    if ptr.is_null() {
        return ncclSuccess;
    }
    let on_device = ON_DEVICES.lock().as_mut().and_then(|all| all.remove(&ptr.addr()));
    match on_device {
        Some(memory) => {
            drop(memory);
            ncclSuccess
        }
        // SAFETY: the caller's promise.
        None => crate::comm::answer_of(unsafe { ringMemFree(ptr) }),
    }
}

/// Tell of a buffer that is used again and again. A range that is not whole pages, or a device's,
/// is taken as it is: registering never was needed for a right result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    ask("ncclCommRegister", comm, |own, ring| {
        let out = convert::out(handle, "handle")?;
        if buff.is_null() || size == 0 {
            return Err(Error::argument("the buffer is NULL or empty"));
        }
        let on_host = ring.communicator.check_on_host(buff.cast(), "buff").is_ok();
        let registered = on_host.then(|| register(own.ring(), buff, size)).flatten();
        out.set(registered.unwrap_or_else(nothing));
        Ok(())
    })
}

fn register(ring: ringComm_t, buff: *mut c_void, size: usize) -> Option<*mut c_void> {
    let mut handle = null_mut();
    // SAFETY: the caller's promise, and the place is a local.
    let registered = unsafe { ringCommRegister(ring, buff, size, &mut handle) };
    (registered == ringResult_t::ringSuccess).then_some(handle)
}

/// The handle of a registration for which nothing was done.
fn nothing() -> *mut c_void {
    let number = NEXT_NOTHING.fetch_add(2, std::sync::atomic::Ordering::Relaxed);
    std::ptr::without_provenance_mut(number)
}

/// Whether a handle is one of [`nothing`]: small and odd, where the library's have their kind
/// above.
fn is_nothing(handle: *mut c_void) -> bool {
    let given = NEXT_NOTHING.load(std::sync::atomic::Ordering::Relaxed);
    handle.addr() % 2 == 1 && handle.addr() < given
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommDeregister(
    comm: ncclComm_t,
    handle: *mut c_void,
) -> ncclResult_t {
    const NAME: &str = "ncclCommDeregister";
    let inside = match enter(NAME, comm) {
        Ok(inside) => inside,
        Err(code) => return code,
    };
    if is_nothing(handle) {
        return ncclSuccess;
    }
    // SAFETY: safe for any arguments.
    match unsafe { ringCommDeregister(inside.ring(), handle) } {
        ringResult_t::ringSuccess => ncclSuccess,
        failed => inside.failed(NAME, failed),
    }
}
