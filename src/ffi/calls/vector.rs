//! The `v` forms: collectives on blocks of different lengths.
//!
//! Counts and displacements are in elements, one per rank, and read before the function returns.
#![allow(unsafe_code)]

use super::arg_check::CollectiveRequest;
use super::dispatch::{RequestedWork, submit};
use crate::communicator::{Call, VectorCounts};
use crate::error::Result;
use crate::ffi::boundary::run_call;
use crate::ffi::convert::{self, read_array};
use crate::ffi::object::Comm;
use crate::ffi::types::*;
use crate::plan::Collective;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};

thread_local! {
    /// The arrays of the last call: their memory serves the next one, so that a call of a known
    /// shape allocates nothing.
    static LAYOUT: RefCell<VectorCounts> = RefCell::default();
}

/// Where C keeps counts and displacements; NULL twice: this direction is not laid out.
#[derive(Clone, Copy)]
struct BlockArguments {
    counts: *const usize,
    displacements: *const usize,
}

const NO_BLOCKS: BlockArguments =
    BlockArguments { counts: std::ptr::null(), displacements: std::ptr::null() };

/// Let `work` fill this thread's layout and hand a call with it over.
fn with_layout(work: impl FnOnce(&mut VectorCounts) -> Result<()>) -> Result<()> {
    // Taken out: the call borrows it while it runs.
    let mut layout = LAYOUT.try_with(RefCell::take).unwrap_or_default();
    let result = work(&mut layout);
    // A thread that is ending keeps none.
    let _ = LAYOUT.try_with(|kept| kept.replace(layout));
    result
}

/// Read the layout, give it to the call, and hand that over.
///
/// `send` and `recv` are read where they are not [`NO_BLOCKS`].
fn run(
    comm: &Comm,
    call: Call<'static>,
    (send, recv): (Option<BlockArguments>, Option<BlockArguments>),
    stream: ringStream_t,
) -> Result<()> {
    with_layout(|layout| {
        read_layout(layout, comm.communicator.nranks(), send, recv)?;
        for (counts, displacements) in [
            (&layout.send_counts, &layout.send_displacements),
            (&layout.recv_counts, &layout.recv_displacements),
        ] {
            check_extents(&call, counts, displacements)?;
        }
        submit(comm, stream, RequestedWork::Collective(Call { vector: Some(layout), ..call }))
    })
}

fn read_layout(
    layout: &mut VectorCounts,
    nranks: usize,
    send: Option<BlockArguments>,
    recv: Option<BlockArguments>,
) -> Result<()> {
    let len = |blocks: Option<BlockArguments>| if blocks.is_some() { nranks } else { 0 };
    let (s, r) = (send.unwrap_or(NO_BLOCKS), recv.unwrap_or(NO_BLOCKS));
    read_array(s.counts, len(send), "sendcounts", &mut layout.send_counts)?;
    read_array(s.displacements, len(send), "sdispls", &mut layout.send_displacements)?;
    read_array(r.counts, len(recv), "recvcounts", &mut layout.recv_counts)?;
    read_array(r.displacements, len(recv), "rdispls", &mut layout.recv_displacements)
}

/// Every block's end, in bytes, must be a possible length.
fn check_extents(call: &Call, counts: &[usize], displacements: &[usize]) -> Result<()> {
    counts.iter().zip(displacements).try_for_each(|(count, displacement)| {
        convert::bytes(count.saturating_add(*displacement), call.data_type).map(|_| ())
    })
}

/// Every rank gets the blocks of all ranks, of different lengths.
///
/// `sendbuff` holds `sendcount` elements, `recvcounts[rank]` of them on every rank; the block of
/// rank r goes to `recvbuff + rdispls[r]` elements. In place: `sendbuff == recvbuff +
/// rdispls[rank]` elements. The arrays have `nranks` values, the same on every rank for
/// `recvcounts`.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done; the arrays while it is
/// made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringAllGatherv(
    sendbuff: *const c_void,
    sendcount: usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: RawDataType,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    run_call(comm, |comm| {
        let buffers = (sendbuff, recvbuff);
        let request = CollectiveRequest::new(Collective::AllGather, buffers, sendcount, datatype);
        let call = request.check(comm, 1)?;
        let recv = BlockArguments { counts: recvcounts, displacements: rdispls };
        run(comm, call, (None, Some(recv)), stream)
    })
}

/// Reduce the blocks of every rank, of different lengths; rank r gets block r of the result.
///
/// `sendbuff` holds the blocks of all ranks one after the other, `recvcounts[r]` elements for rank
/// r; `recvbuff` holds `recvcounts[rank]`. In place: `recvbuff` is where this rank's block begins
/// in `sendbuff`. `recvcounts` has `nranks` values, the same on every rank.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done; the array while it is
/// made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringReduceScatterv(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    datatype: RawDataType,
    op: RawRedOp,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    run_call(comm, |comm| {
        let buffers = (sendbuff, recvbuff);
        let request = CollectiveRequest::new(Collective::ReduceScatter, buffers, 0, datatype);
        let call = request.op(op).check(comm, 1)?;
        with_layout(|layout| {
            let nranks = comm.communicator.nranks();
            read_layout(layout, nranks, None, None)?;
            read_array(recvcounts, nranks, "recvcounts", &mut layout.recv_counts)?;
            let total = layout.recv_counts.iter().fold(0, |sum: usize, n| sum.saturating_add(*n));
            convert::bytes(total, call.data_type)?;
            let count = layout.recv_counts[comm.communicator.rank()];
            submit(
                comm,
                stream,
                RequestedWork::Collective(Call { vector: Some(layout), count, ..call }),
            )
        })
    })
}

/// Every rank sends a block to every rank, of different lengths.
///
/// `sendcounts[d]` elements from `sendbuff + sdispls[d]` go to rank d; `recvcounts[s]` elements
/// from rank s come to `recvbuff + rdispls[s]`, as many as that rank sends. The arrays have
/// `nranks` values. Not in place: buffers that overlap are refused.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done; the arrays while it is
/// made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringAllToAllv(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: RawDataType,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    run_call(comm, |comm| {
        let buffers = (sendbuff, recvbuff);
        let request = CollectiveRequest::new(Collective::AllToAll, buffers, 0, datatype);
        let call = request.check(comm, 1)?;
        let send = BlockArguments { counts: sendcounts, displacements: sdispls };
        let recv = BlockArguments { counts: recvcounts, displacements: rdispls };
        run(comm, call, (Some(send), Some(recv)), stream)
    })
}

/// The root gets the blocks of all ranks, of different lengths.
///
/// `sendbuff` holds `sendcount` elements, `recvcounts[rank]` of the root; the block of rank r goes
/// to `recvbuff + rdispls[r]` elements on the root. `recvbuff` and the arrays, of `nranks` values,
/// are used on `root` only. In place: `sendbuff == recvbuff + rdispls[root]` elements on the root.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done; the arrays while it is
/// made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringGatherv(
    sendbuff: *const c_void,
    sendcount: usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: RawDataType,
    root: c_int,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    run_call(comm, |comm| {
        let buffers = (sendbuff, recvbuff);
        let request = CollectiveRequest::new(Collective::Gather, buffers, sendcount, datatype);
        let call = request.root(root).check(comm, 1)?;
        let recv = BlockArguments { counts: recvcounts, displacements: rdispls };
        let recv = (call.root == comm.communicator.rank()).then_some(recv);
        run(comm, call, (None, recv), stream)
    })
}

/// Rank r gets its block of the root's buffer, of different lengths.
///
/// `sendcounts[r]` elements from `sendbuff + sdispls[r]` on the root go to rank r, where `recvbuff`
/// holds `recvcount`, the same number. `sendbuff` and the arrays, of `nranks` values, are used on
/// `root` only. In place: `recvbuff == sendbuff + sdispls[root]` elements on the root.
///
/// # Safety
/// The buffers are valid for the elements named, until the call is done; the arrays while it is
/// made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringScatterv(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: RawDataType,
    root: c_int,
    comm: ringComm_t,
    stream: ringStream_t,
) -> ringResult_t {
    run_call(comm, |comm| {
        let buffers = (sendbuff, recvbuff);
        let request = CollectiveRequest::new(Collective::Scatter, buffers, recvcount, datatype);
        let call = request.root(root).check(comm, 1)?;
        let send = BlockArguments { counts: sendcounts, displacements: sdispls };
        let send = (call.root == comm.communicator.rank()).then_some(send);
        run(comm, call, (send, None), stream)
    })
}
