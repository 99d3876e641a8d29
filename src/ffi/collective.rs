//! The collectives on equal blocks, and the messages between two ranks.
//!
//! What holds for all of them is said once, in the header's introduction.
#![allow(unsafe_code)]

use crate::communicator::{Call, Message};
use crate::error::Result;
use crate::ffi::boundary::run_call;
use crate::ffi::convert;
use crate::ffi::enqueue::{Work, submit};
use crate::ffi::object::Comm;
use crate::ffi::types::*;
use crate::plan::Collective;
use crate::types::DataType;
use std::ffi::{c_int, c_void};

/// The two buffers of a call, as C gives them.
pub struct Buffers {
    pub send: *const c_void,
    pub recv: *mut c_void,
}

/// A call with everything that every collective has; `blocks` of `count` elements are the largest
/// buffer.
#[inline]
pub fn call(
    collective: Collective,
    buffers: Buffers,
    (count, blocks): (usize, usize),
    datatype: RawDataType,
) -> Result<Call<'static>> {
    let data_type = convert::data_type(datatype)?;
    convert::bytes(count.saturating_mul(blocks), data_type)?;
    let (send, recv) = (buffers.send.cast(), buffers.recv.cast());
    Ok(Call { send, recv, count, ..Call::new(collective, data_type) })
}

/// The operation and factor of a collective that reduces.
#[inline]
pub fn reduces(comm: &Comm, call: &mut Call, op: RawRedOp) -> Result<()> {
    (call.op, call.scalar) = comm.reductions.resolve(op, call.data_type)?;
    Ok(())
}

/// The root of a collective that has one.
#[inline]
pub fn rooted(comm: &Comm, call: &mut Call, root: c_int) -> Result<()> {
    call.root = convert::rank(root, comm.communicator.nranks(), "root")?;
    Ok(())
}

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
    run_call(comm, |comm| {
        let buffers = Buffers { send: sendbuff, recv: recvbuff };
        let mut call = call(Collective::AllReduce, buffers, (count, 1), datatype)?;
        reduces(comm, &mut call, op)?;
        submit(comm, stream, Work::Collective(&call))
    })
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
    run_call(comm, |comm| {
        let buffers = Buffers { send: sendbuff, recv: recvbuff };
        let extent = (recvcount, comm.communicator.nranks());
        let mut call = call(Collective::ReduceScatter, buffers, extent, datatype)?;
        reduces(comm, &mut call, op)?;
        submit(comm, stream, Work::Collective(&call))
    })
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
    run_call(comm, |comm| {
        let buffers = Buffers { send: sendbuff, recv: recvbuff };
        let extent = (sendcount, comm.communicator.nranks());
        let call = call(Collective::AllGather, buffers, extent, datatype)?;
        submit(comm, stream, Work::Collective(&call))
    })
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
    run_call(comm, |comm| {
        let buffers = Buffers { send: sendbuff, recv: recvbuff };
        let mut call = call(Collective::Broadcast, buffers, (count, 1), datatype)?;
        rooted(comm, &mut call, root)?;
        submit(comm, stream, Work::Collective(&call))
    })
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
    run_call(comm, |comm| {
        let buffers = Buffers { send: sendbuff, recv: recvbuff };
        let mut call = call(Collective::Reduce, buffers, (count, 1), datatype)?;
        reduces(comm, &mut call, op)?;
        rooted(comm, &mut call, root)?;
        submit(comm, stream, Work::Collective(&call))
    })
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
    run_call(comm, |comm| {
        let buffers = Buffers { send: sendbuff, recv: recvbuff };
        let extent = (count, comm.communicator.nranks());
        let call = call(Collective::AllToAll, buffers, extent, datatype)?;
        submit(comm, stream, Work::Collective(&call))
    })
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
    run_call(comm, |comm| {
        let buffers = Buffers { send: sendbuff, recv: recvbuff };
        let extent = (count, comm.communicator.nranks());
        let mut call = call(Collective::Gather, buffers, extent, datatype)?;
        rooted(comm, &mut call, root)?;
        submit(comm, stream, Work::Collective(&call))
    })
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
    run_call(comm, |comm| {
        let buffers = Buffers { send: sendbuff, recv: recvbuff };
        let extent = (count, comm.communicator.nranks());
        let mut call = call(Collective::Scatter, buffers, extent, datatype)?;
        rooted(comm, &mut call, root)?;
        submit(comm, stream, Work::Collective(&call))
    })
}

/// Return on every rank after every rank has called.
///
/// # Safety
/// Safe for any arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringBarrier(comm: ringComm_t, stream: ringStream_t) -> ringResult_t {
    run_call(comm, |comm| {
        let call = Call::new(Collective::Barrier, DataType::Int8);
        submit(comm, stream, Work::Collective(&call))
    })
}

/// Send `count` elements to `peer`, which receives them with `ringRecv`.
///
/// Returns when the buffer may be used again. Messages between two ranks arrive in the order sent.
/// Sends and receives that wait for each other belong in one group.
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
        submit(comm, stream, Work::Message(message))
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
        submit(comm, stream, Work::Message(message))
    })
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
