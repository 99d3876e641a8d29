//! One collective call as its user made it.

use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};

/// The per-rank layout of a `v` collective, in elements.
///
/// AllGather and Gather use `recv_*`, ReduceScatter uses `recv_counts` (rank r's block follows the
/// blocks of ranks before it in the send buffer), Scatter uses `send_*`, AllToAll uses all four.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vector {
    pub send_counts: Vec<usize>,
    pub send_displacements: Vec<usize>,
    pub recv_counts: Vec<usize>,
    pub recv_displacements: Vec<usize>,
}

/// A collective with its buffers.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub collective: Collective,
    /// Read by the collective; may be NULL where this rank sends nothing.
    pub send: *const u8,
    /// Written by the collective; may be NULL where this rank receives nothing.
    pub recv: *mut u8,
    /// Elements, in NCCL's meaning: of the whole vector for AllReduce, Broadcast and Reduce; sent by
    /// each rank for AllGather and Gather; received by each for ReduceScatter and Scatter; from each
    /// rank to each for AllToAll. In a `v` form: what this rank sends (AllGather, Gather) or receives
    /// (ReduceScatter, Scatter).
    pub count: usize,
    pub data_type: DataType,
    pub op: ReduceOp,
    /// The factor of [`ReduceOp::PreMulSum`] on this rank.
    pub scalar: f64,
    pub root: usize,
    pub vector: Option<&'a Vector>,
}

impl Call<'_> {
    /// A call with no buffers, summing nothing at rank 0; set the fields that matter.
    pub fn new(collective: Collective, data_type: DataType) -> Call<'static> {
        Call {
            collective,
            send: std::ptr::null(),
            recv: std::ptr::null_mut(),
            count: 0,
            data_type,
            op: ReduceOp::Sum,
            scalar: 1.0,
            root: 0,
            vector: None,
        }
    }
}
