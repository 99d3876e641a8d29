//! Collectives with a configuration of their own, as NCCL 2.32 has them.
#![allow(unsafe_code)]

use crate::collectives::*;
use crate::comm::{ask, spoil};
use crate::types::*;
use ringcomm::error::Error;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

/// Make a call if its configuration is one. It has no setting that changes a result, so none goes
/// further: the library itself chooses algorithm and channels.
unsafe fn check(
    function: &'static str,
    comm: ncclComm_t,
    config: *const ncclCollConfig_t,
    body: impl FnOnce() -> ncclResult_t,
) -> ncclResult_t {
    if config.is_null() {
        return body();
    }
    // SAFETY: every structure has its head, whatever its size.
    let (size, magic) = unsafe {
        (config.cast::<usize>().read_unaligned(), (&raw const (*config).magic).read_unaligned())
    };
    if magic == NCCL_API_MAGIC && size >= offset_of!(ncclCollConfig_t, ext) {
        return body();
    }
    spoil(ask(function, comm, |_, _| {
        Err(Error::argument(
            "the configuration was not initialized; begin with NCCL_COLLCONFIG_INITIALIZER",
        ))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAllReduceConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe {
        check("ncclAllReduceConfig", comm, config, || {
            pncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclBroadcastConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe {
        check("ncclBroadcastConfig", comm, config, || {
            pncclBroadcast(sendbuff, recvbuff, count, datatype, root, comm, stream)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclReduceConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe {
        check("ncclReduceConfig", comm, config, || {
            pncclReduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAllGatherConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe {
        check("ncclAllGatherConfig", comm, config, || {
            pncclAllGather(sendbuff, recvbuff, sendcount, datatype, comm, stream)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclReduceScatterConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe {
        check("ncclReduceScatterConfig", comm, config, || {
            pncclReduceScatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAlltoAllConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe {
        check("ncclAlltoAllConfig", comm, config, || {
            pncclAlltoAll(sendbuff, recvbuff, count, datatype, comm, stream)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGatherConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe {
        check("ncclGatherConfig", comm, config, || {
            pncclGather(sendbuff, recvbuff, count, datatype, root, comm, stream)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclScatterConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe {
        check("ncclScatterConfig", comm, config, || {
            pncclScatter(sendbuff, recvbuff, count, datatype, root, comm, stream)
        })
    }
}
