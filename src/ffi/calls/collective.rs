//! The collectives on equal blocks, and the messages between two ranks.
//!
//! What holds for all of them is said once, in the header's introduction.
#![allow(unsafe_code)]

use super::arg_check::CollectiveRequest;
use super::dispatch::{RequestedWork, submit};
use crate::communicator::{Call, Message};
use crate::error::Result;
use crate::ffi::boundary::{run_call, run_on};
use crate::ffi::convert;
use crate::ffi::object::Comm;
use crate::ffi::types::*;
use crate::plan::Collective;
use crate::types::DataType;
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// Reduce `count` elements of every rank; every rank gets the result.
///
/// `sendbuff` and `recvbuff` hold `count` elements. In place: `sendbuff == recvbuff`.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: RawDataType,
    op: RawRedOp,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    let buffers = (sendbuff, recvbuff);
    let request = CollectiveRequest::new(Collective::AllReduce, buffers, count, datatype);
    request.op(op).run(comm, stream)
}

/// Reduce the blocks of every rank; rank r gets block r of the result.
///
/// `sendbuff` holds `nranks * recvcount` elements, `recvbuff` `recvcount`. In place:
/// `recvbuff == sendbuff + rank * recvcount` elements.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: RawDataType,
    op: RawRedOp,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    let buffers = (sendbuff, recvbuff);
    let request = CollectiveRequest::new(Collective::ReduceScatter, buffers, recvcount, datatype);
    request.op(op).run(comm, stream)
}

/// Every rank gets the blocks of all ranks, in the order of ranks.
///
/// `sendbuff` holds `sendcount` elements, `recvbuff` `nranks * sendcount`. In place:
/// `sendbuff == recvbuff + rank * sendcount` elements.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: RawDataType,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    let buffers = (sendbuff, recvbuff);
    let request = CollectiveRequest::new(Collective::AllGather, buffers, sendcount, datatype);
    request.run(comm, stream)
}

/// Every rank gets the root's elements.
///
/// `sendbuff` holds `count` elements and is used on `root` only; `recvbuff` holds `count`. In
/// place: `sendbuff == recvbuff` on the root.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: RawDataType,
    root: c_int,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    let buffers = (sendbuff, recvbuff);
    let request = CollectiveRequest::new(Collective::Broadcast, buffers, count, datatype);
    request.root(root).run(comm, stream)
}

/// Reduce `count` elements of every rank; the root gets the result.
///
/// `sendbuff` holds `count` elements; `recvbuff` holds `count` and is used on `root` only. In
/// place: `sendbuff == recvbuff` on the root.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: RawDataType,
    op: RawRedOp,
    root: c_int,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    let buffers = (sendbuff, recvbuff);
    let request = CollectiveRequest::new(Collective::Reduce, buffers, count, datatype);
    request.op(op).root(root).run(comm, stream)
}

/// Every rank sends block d of its buffer to rank d and gets the block from rank s as its block s.
///
/// Both buffers hold `nranks * count` elements. In place: `sendbuff == recvbuff`.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringAllToAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: RawDataType,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    let buffers = (sendbuff, recvbuff);
    let request = CollectiveRequest::new(Collective::AllToAll, buffers, count, datatype);
    request.run(comm, stream)
}

/// The root gets the blocks of all ranks, in the order of ranks.
///
/// `sendbuff` holds `count` elements; `recvbuff` holds `nranks * count` and is used on `root` only.
/// In place: `sendbuff == recvbuff + root * count` elements on the root.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: RawDataType,
    root: c_int,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    let buffers = (sendbuff, recvbuff);
    let request = CollectiveRequest::new(Collective::Gather, buffers, count, datatype);
    request.root(root).run(comm, stream)
}

/// Rank r gets block r of the root's buffer.
///
/// `sendbuff` holds `nranks * count` elements and is used on `root` only; `recvbuff` holds `count`.
/// In place: `recvbuff == sendbuff + root * count` elements on the root.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: RawDataType,
    root: c_int,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    let buffers = (sendbuff, recvbuff);
    let request = CollectiveRequest::new(Collective::Scatter, buffers, count, datatype);
    request.root(root).run(comm, stream)
}

/// Return on every rank after every rank has called.
///
/// # Safety
/// Safe for any arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringBarrier(comm: ringComm_t, stream: ringStream_t) -> ringResult_t {
    run_call(comm, |comm| {
        let call = Call::new(Collective::Barrier, DataType::Int8);
        submit(comm, stream, RequestedWork::Collective(call))
    })
}

/// Send `count` elements to `peer`, which receives them with `ringRecv`.
///
/// Returns when the buffer may be used again: for a short message (a slot at most, 64 KiB or less
/// with many ranks) soon, for a longer one, or in a group that also receives, once the peer has it.
/// Messages between two ranks arrive in the order
/// sent. Sends and receives that wait for each other belong in one group, in which what is received
/// overlaps no other buffer. On a rank with a CUDA device messages of its memory are in the order
/// of `stream`, and the call, or the group's end, may return before the stream has come to them.
///
/// # Safety
/// The buffer is valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: RawDataType,
    peer: c_int,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    run_call(comm, |comm| {
        let (data_type, peer) = message(comm, count, datatype, peer)?;
        let message = Message::Send { buffer: sendbuff.cast(), count, data_type, peer };
        submit(comm, stream, RequestedWork::Message(message))
    })
}

/// Receive `count` elements from `peer`, which sends them with `ringSend`, of the same count and
/// type.
///
/// # Safety
/// The buffer is valid for the elements named, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: RawDataType,
    peer: c_int,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    run_call(comm, |comm| {
        let (data_type, peer) = message(comm, count, datatype, peer)?;
        let message = Message::Recv { buffer: recvbuff.cast(), count, data_type, peer };
        submit(comm, stream, RequestedWork::Message(message))
    })
}

/// Wait until a message of `peer` has come, at most about `timeoutMs` milliseconds and the
/// communicator's deadline; less than 0 is that deadline, 0 does not wait.
///
/// Returns `ringInProgress` where none has, else `ringSuccess`: the next `ringRecv` from `peer`
/// finds its message there, the beginning at the least. What a collective sends counts as a
/// message, so probe while `peer` makes none. An error is what a receive would return,
/// and ends the communicator as that does. It is for ranks without a CUDA device.
///
/// # Safety
/// Safe for any arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringProbe(peer: c_int, timeoutMs: i64, comm: ringComm_t) -> ringResult_t {
    answered(comm, |comm| {
        let patience = u64::try_from(timeoutMs).map_or(Duration::MAX, Duration::from_millis);
        let peer = convert::rank(peer, comm.communicator.nranks(), "peer")?;
        comm.communicator.probe(peer, patience)
    })
}

/// As `ringSend`, if the message leaves at once: `ringInProgress`, and nothing is sent, where the
/// send would wait for `peer` or for another call on the communicator.
///
/// A message leaves at once to a rank on this machine, up to the length of a slot (see `ringSend`),
/// while a slot is free. It is never part of a group, and for ranks without a CUDA device.
///
/// # Safety
/// The buffer is valid for the elements named.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringTrySend(
    sendbuff: *const c_void,
    count: usize,
    datatype: RawDataType,
    peer: c_int,
    comm: ringComm_t,
) -> ringResult_t {
    answered(comm, |comm| {
        let (data_type, peer) = message(comm, count, datatype, peer)?;
        let message = Message::Send { buffer: sendbuff.cast(), count, data_type, peer };
        // SAFETY: the C caller promises the buffer until this returns.
        unsafe { comm.communicator.try_send(message) }
    })
}

/// A yes or no of a communicator as a code.
fn answered(comm: ringComm_t, body: impl FnOnce(&Comm) -> Result<bool>) -> ringResult_t {
    let mut yes = false;
    let result = run_on(comm, |comm| {
        yes = body(comm)?;
        Ok(())
    });
    match result {
        ringResult_t::ringSuccess if !yes => ringResult_t::ringInProgress,
        result => result,
    }
}

/// What a message has besides its buffer, checked.
#[inline]
fn message(
    comm: &Comm,
    count: usize,
    datatype: RawDataType,
    peer: c_int,
) -> Result<(DataType, usize)> {
    let data_type = convert::data_type(datatype)?;
    convert::bytes(count, data_type)?;
    Ok((data_type, convert::rank(peer, comm.communicator.nranks(), "peer")?))
}
