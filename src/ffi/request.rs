//! What a C function was given for a collective: checked in one place, the same for all.

use crate::communicator::Call;
use crate::error::Result;
use crate::ffi::boundary::run_call;
use crate::ffi::convert;
use crate::ffi::enqueue::{Work, submit};
use crate::ffi::object::Comm;
use crate::ffi::types::*;
use crate::plan::Collective;
use std::ffi::{c_int, c_void};

/// The arguments of a collective, as C gives them.
pub struct Request {
    collective: Collective,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: RawDataType,
    op: Option<RawRedOp>,
    root: Option<c_int>,
}

impl Request {
    #[inline]
    pub fn new(
        collective: Collective,
        (send, recv): (*const c_void, *mut c_void),
        count: usize,
        datatype: RawDataType,
    ) -> Request {
        Request { collective, send, recv, count, datatype, op: None, root: None }
    }

    /// With the operation of a collective that reduces.
    #[inline]
    pub fn op(self, op: RawRedOp) -> Request {
        Request { op: Some(op), ..self }
    }

    /// With the root of a collective that has one.
    #[inline]
    pub fn root(self, root: c_int) -> Request {
        Request { root: Some(root), ..self }
    }

    /// Check everything but the buffers; `blocks` of `count` elements are the largest of them.
    #[inline]
    pub fn check(&self, comm: &Comm, blocks: usize) -> Result<Call<'static>> {
        let data_type = convert::data_type(self.datatype)?;
        convert::bytes(self.count.saturating_mul(blocks), data_type)?;
        let (send, recv, count) = (self.send.cast(), self.recv.cast(), self.count);
        let mut call = Call { send, recv, count, ..Call::new(self.collective, data_type) };
        if let Some(op) = self.op {
            (call.op, call.scalar) = comm.reductions.resolve(op, data_type)?;
        }
        if let Some(root) = self.root {
            call.root = convert::rank(root, comm.communicator.nranks(), "root")?;
        }
        Ok(call)
    }

    /// Make the call of a collective on one block, or on equal blocks.
    #[inline]
    pub fn run(self, comm: ringComm_t, stream: ringStream_t) -> ringResult_t {
        run_call(comm, |comm| {
            let blocks = match self.collective {
                Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
                _ => comm.communicator.nranks(),
            };
            submit(comm, stream, Work::Collective(self.check(comm, blocks)?))
        })
    }
}
