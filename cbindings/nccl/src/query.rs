//! Questions that need no other rank.
#![allow(unsafe_code)]

use crate::comm::{COMMS, answer, ask, for_c, last_text, refuse};
use crate::types::*;
use ringcomm::config::DEFAULT_BUFF_SIZE;
use ringcomm::error::Error;
use ringcomm::ffi::convert;
use ringcomm::ffi::object;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::mem::offset_of;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetVersion(version: *mut c_int) -> ncclResult_t {
    answer(|| {
        convert::out(version, "ncclGetVersion: version")?.set(NCCL_VERSION_CODE);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pncclGetErrorString(result: ncclResult_t) -> *const c_char {
    let text = match result {
        ncclSuccess => c"no error",
        ncclUnhandledCudaError => c"unhandled cuda error (ncclGetLastError has the details)",
        ncclSystemError => c"unhandled system error (ncclGetLastError has the details)",
        ncclInternalError => c"internal error, or an abort (ncclGetLastError has the details)",
        ncclInvalidArgument => c"invalid argument (ncclGetLastError has the details)",
        ncclInvalidUsage => c"invalid usage (ncclGetLastError has the details)",
        ncclRemoteError => c"remote process exited or failed (ncclGetLastError has the details)",
        ncclInProgress => c"operation in progress",
        ncclTimeout => c"timeout while waiting for a rank (ncclGetLastError has the details)",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

thread_local! {
    /// The text that this thread was handed last.
    static HANDED_OUT: RefCell<CString> = RefCell::default();
}

/// Of the communicator, where it names one; else of this thread's last failed call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetLastError(comm: ncclComm_t) -> *const c_char {
    let text = COMMS.enter(comm.cast()).map_or_else(last_text, |inside| inside.last_text());
    hand_out(text)
}

fn hand_out(text: CString) -> *const c_char {
    let keep = |slot: &RefCell<CString>| {
        *slot.borrow_mut() = text;
        slot.borrow().as_ptr()
    };
    HANDED_OUT.try_with(keep).unwrap_or(c"".as_ptr())
}

fn number(
    function: &'static str,
    comm: ncclComm_t,
    out: *mut c_int,
    of: fn(&object::Comm) -> c_int,
) -> ncclResult_t {
    ask(function, comm, |_, ring| {
        convert::out(out, "the place of the result")?.set(of(ring));
        Ok(())
    })
}

fn device_of(ring: &object::Comm) -> c_int {
    ring.communicator.device().unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    number("ncclCommCount", comm, count, |ring| ring.communicator.nranks() as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    number("ncclCommUserRank", comm, rank, |ring| ring.communicator.rank() as c_int)
}

/// -1 on the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    number("ncclCommCuDevice", comm, device, device_of)
}

/// What a communicator can do. It has nothing for kernels compiled against NCCL's headers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommQueryProperties(
    comm: ncclComm_t,
    props: *mut ncclCommProperties_t,
) -> ncclResult_t {
    ask("ncclCommQueryProperties", comm, |_, ring| {
        if props.is_null() {
            return Err(Error::argument("props is NULL"));
        }
        // SAFETY: every structure has its head, whatever its size.
        let (size, magic, version) = unsafe {
            (
                props.cast::<usize>().read_unaligned(),
                (&raw const (*props).magic).read_unaligned(),
                (&raw const (*props).version).read_unaligned(),
            )
        };
        if magic != NCCL_API_MAGIC || size < offset_of!(ncclCommProperties_t, deviceApiSupport) {
            return Err(Error::argument(
                "props was not initialized; begin with NCCL_COMM_PROPERTIES_INITIALIZER",
            ));
        }
        let communicator = &ring.communicator;
        let answer = ncclCommProperties_t {
            size,
            magic,
            version,
            rank: communicator.rank() as c_int,
            nRanks: communicator.nranks() as c_int,
            cudaDev: device_of(ring),
            nvmlDev: device_of(ring),
            deviceApiSupport: false,
            multimemSupport: false,
            ginType: 0,
            nLsaTeams: communicator.nranks() as c_int,
            hostRmaSupport: communicator.device().is_none(),
            railedGinType: 0,
            commHash: u64::from(communicator.number()),
            ginMinStride: 0,
            ginConnectionType: 0,
            ginSupport: [false; 64],
            devCommRuntimeVersionSize: 0,
            cftSupport: false,
            cftMulticastSupport: false,
            cftCountedSupport: false,
        };
        let bytes = size.min(size_of::<ncclCommProperties_t>());
        // SAFETY: the program's structure has so many bytes, by its size.
        unsafe {
            let answer = (&raw const answer).cast::<u8>();
            std::ptr::copy_nonoverlapping(answer, props.cast::<u8>(), bytes);
        }
        Ok(())
    })
}

/// Bytes of this rank's connection buffers, all of which stay; they are host memory on the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommMemStats(
    comm: ncclComm_t,
    stat: ncclCommMemStat_t,
    value: *mut u64,
) -> ncclResult_t {
    ask("ncclCommMemStats", comm, |own, ring| {
        let out = convert::out(value, "value")?;
        out.set(match stat {
            ncclStatGpuMemSuspend => 0,
            ncclStatGpuMemSuspended => u64::from(own.is(crate::comm::SUSPENDED)),
            ncclStatGpuMemPersist | ncclStatGpuMemTotal => {
                ring.communicator.config().buff_size.unwrap_or(DEFAULT_BUFF_SIZE) as u64
            }
            other => return Err(Error::argument(format!("{other} is no statistic of memory"))),
        });
        Ok(())
    })
}

/// Read the variables of NCCL's log anew.
#[unsafe(no_mangle)]
pub extern "C" fn pncclResetDebugInit() {
    crate::environment::log::reset();
}

/// As `ncclResetDebugInit`: in no header, but NVIDIA's library exports it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInitInternal() {
    pncclResetDebugInit();
}

/// A pre-shared key is the job's secret, which all connections between hosts are made by.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    const NAME: &str = "ncclSetEncryption";
    let wrong = |why: &str| refuse(ncclInvalidArgument, format!("{NAME}: {why}"));
    if config.is_null() {
        return wrong("config is NULL");
    }
    // SAFETY: every structure has its head, whatever its size.
    let (size, magic) = unsafe {
        (config.cast::<usize>().read_unaligned(), (&raw const (*config).magic).read_unaligned())
    };
    if magic != NCCL_API_MAGIC || size < size_of::<ncclEncryptionConfig_t>() {
        return wrong("config was not initialized; begin with NCCL_ENCRYPTION_CONFIG_INITIALIZER");
    }
    // SAFETY: the structure has both fields, by its size.
    let (mode, psk) = unsafe {
        ((&raw const (*config).mode).read_unaligned(), (&raw const (*config).psk).read_unaligned())
    };
    match (mode, crate::comm::text_at(psk)) {
        (NCCL_ENCRYPTION_MODE_NONE, _) => ncclSuccess,
        (NCCL_ENCRYPTION_MODE_PSK, Some(key)) if key.len() >= 16 => {
            crate::environment::set_secret(key);
            ncclSuccess
        }
        (NCCL_ENCRYPTION_MODE_PSK, _) => wrong("the key has less than 16 characters"),
        (other, _) => wrong(&format!("{other} is no mode of encryption")),
    }
}

/// A text for the caller, kept for the thread.
pub fn text_for_caller(text: &str) -> *const c_char {
    hand_out(for_c(text))
}
