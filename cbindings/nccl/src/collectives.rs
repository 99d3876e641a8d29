//! Collectives, messages, reductions with a factor.
#![allow(unsafe_code)]

use crate::comm::{ask, call, spoil};
use crate::environment::log;
use crate::memory::device_scalars::{FIRST_MADE, create, forget, is_on_device, refresh};
use crate::types::*;
use ringcomm::error::Error;
use ringcomm::ffi::calls::collective::*;
use ringcomm::ffi::calls::red_op::{ringRedOpCreatePreMulSum, ringRedOpDestroy};
use ringcomm::ffi::types::{RawDataType, RawRedOp, RawScalarResidence};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclAllReduce", comm, (sendbuff, recvbuff, count));
    if op >= FIRST_MADE
        && let Err(code) = refresh(op, comm, stream)
    {
        return spoil(code);
    }
    call("ncclAllReduce", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe {
            ringAllReduce(
                sendbuff,
                recvbuff,
                count,
                RawDataType(datatype),
                RawRedOp(op),
                ring,
                stream,
            )
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclBroadcast", comm, (sendbuff, recvbuff, count));
    call("ncclBroadcast", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe {
            ringBroadcast(sendbuff, recvbuff, count, RawDataType(datatype), root, ring, stream)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclReduce", comm, (sendbuff, recvbuff, count));
    if op >= FIRST_MADE
        && let Err(code) = refresh(op, comm, stream)
    {
        return spoil(code);
    }
    call("ncclReduce", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe {
            ringReduce(
                sendbuff,
                recvbuff,
                count,
                RawDataType(datatype),
                RawRedOp(op),
                root,
                ring,
                stream,
            )
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclAllGather", comm, (sendbuff, recvbuff, sendcount));
    call("ncclAllGather", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe { ringAllGather(sendbuff, recvbuff, sendcount, RawDataType(datatype), ring, stream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclReduceScatter", comm, (sendbuff, recvbuff, recvcount));
    if op >= FIRST_MADE
        && let Err(code) = refresh(op, comm, stream)
    {
        return spoil(code);
    }
    call("ncclReduceScatter", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe {
            ringReduceScatter(
                sendbuff,
                recvbuff,
                recvcount,
                RawDataType(datatype),
                RawRedOp(op),
                ring,
                stream,
            )
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclAlltoAll", comm, (sendbuff, recvbuff, count));
    call("ncclAlltoAll", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe { ringAllToAll(sendbuff, recvbuff, count, RawDataType(datatype), ring, stream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclGather", comm, (sendbuff, recvbuff, count));
    call("ncclGather", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe { ringGather(sendbuff, recvbuff, count, RawDataType(datatype), root, ring, stream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclScatter", comm, (sendbuff, recvbuff, count));
    call("ncclScatter", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe { ringScatter(sendbuff, recvbuff, count, RawDataType(datatype), root, ring, stream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { pncclBroadcast(buff, buff, count, datatype, root, comm, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclSend", comm, (sendbuff, null_mut(), count));
    call("ncclSend", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe { ringSend(sendbuff, count, RawDataType(datatype), peer, ring, stream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    log::collective("ncclRecv", comm, (null(), recvbuff, count));
    call("ncclRecv", comm, stream, |ring, stream| {
        // SAFETY: the caller's promise.
        unsafe { ringRecv(recvbuff, count, RawDataType(datatype), peer, ring, stream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    if residence == ncclScalarDevice && is_on_device(scalar, comm) {
        return create(op, scalar, datatype, comm);
    }
    call("ncclRedOpCreatePreMulSum", comm, null_mut(), |ring, _| {
        let residence = RawScalarResidence(residence);
        // SAFETY: the caller's promise; an operation is a number on both sides.
        unsafe {
            ringRedOpCreatePreMulSum(op.cast(), scalar, RawDataType(datatype), residence, ring)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    if (0..=ncclAvg).contains(&op) {
        return ask("ncclRedOpDestroy", comm, |_, _| {
            Err(Error::argument("a built-in operation is not destroyed"))
        });
    }
    forget(op, comm);
    call("ncclRedOpDestroy", comm, null_mut(), |ring, _| {
        // SAFETY: safe for any arguments.
        unsafe { ringRedOpDestroy(RawRedOp(op), ring) }
    })
}
