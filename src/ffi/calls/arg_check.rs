//! What a C function was given for a collective: checked in one place, the same for all.

use super::dispatch;
use crate::communicator::Call;
use crate::error::Result;
use crate::ffi::boundary::run_call;
use crate::ffi::convert;
use crate::ffi::object::Comm;
use crate::ffi::types::*;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::ffi::{c_int, c_void};

/// The arguments of a collective, as C gives them.
pub struct CollectiveRequest {
    collective: Collective,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: RawDataType,
    op: Option<RawRedOp>,
    root: Option<c_int>,
}

/// What numbers of C stand for: few words, which stay in registers.
struct Checked {
    data_type: DataType,
    op: ReduceOp,
    scalar: f64,
    root: usize,
}

impl CollectiveRequest {
    #[inline]
    pub fn new(
        collective: Collective,
        (send, recv): (*const c_void, *mut c_void),
        count: usize,
        datatype: RawDataType,
    ) -> CollectiveRequest {
        CollectiveRequest { collective, send, recv, count, datatype, op: None, root: None }
    }

    /// With the operation of a collective that reduces.
    #[inline]
    pub fn op(self, op: RawRedOp) -> CollectiveRequest {
        CollectiveRequest { op: Some(op), ..self }
    }

    /// With the root of a collective that has one.
    #[inline]
    pub fn root(self, root: c_int) -> CollectiveRequest {
        CollectiveRequest { root: Some(root), ..self }
    }

    /// Check everything but the buffers; `blocks` of `count` elements are the largest of them. An
    /// error names the collective.
    #[inline(always)]
    pub fn check(&self, comm: &Comm, blocks: usize) -> Result<Call<'static>> {
        let checked = self.checked(comm, blocks);
        let checked = checked.map_err(|error| error.of(self.collective.name()))?;
        let Checked { data_type, op, scalar, root } = checked;
        let (send, recv, count) = (self.send.cast(), self.recv.cast(), self.count);
        let call = Call::new(self.collective, data_type);
        Ok(Call { send, recv, count, op, scalar, root, ..call })
    }

    #[inline(always)]
    fn checked(&self, comm: &Comm, blocks: usize) -> Result<Checked> {
        let data_type = convert::data_type(self.datatype)?;
        convert::bytes(self.count.saturating_mul(blocks), data_type)?;
        let (op, scalar) = match self.op {
            Some(op) => comm.reductions.resolve(op, data_type)?,
            None => (ReduceOp::Sum, 1.0),
        };
        let root = match self.root {
            Some(root) => convert::rank(root, comm.communicator.nranks(), "root")?,
            None => 0,
        };
        Ok(Checked { data_type, op, scalar, root })
    }

    /// Make the call of a collective on one block, or on equal blocks.
    #[inline]
    pub fn run(self, comm: ringComm_t, stream: ringStream_t) -> ringResult_t {
        run_call(comm, |comm| {
            let blocks = match self.collective {
                Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
                _ => comm.communicator.nranks(),
            };
            dispatch::collective(comm, stream, self.check(comm, blocks)?)
        })
    }
}
