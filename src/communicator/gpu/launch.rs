//! One device's part of a call, launched on one stream.

use crate::device::cuda::{Fused, Kernels, MOST_SCALED, Stream};
use crate::error::Result;
use crate::executor::cuda::{Place, Shape, fits, pieces};
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};

/// A call of all ranks, whose buffers lie where the kernels reach them.
pub struct Work<'a> {
    pub collective: Collective,
    pub root: usize,
    pub count: usize,
    pub data_type: DataType,
    pub op: ReduceOp,
    /// By rank.
    pub places: &'a [Place],
    /// By rank: the factors of a pre-multiplied sum.
    pub scalars: &'a [f64],
}

/// Whether a launch has room for so many ranks of such a call.
pub fn has_room(collective: Collective, op: ReduceOp, nranks: usize) -> bool {
    let scales = collective.reduces() && op == ReduceOp::PreMulSum;
    fits(collective, nranks) && !(scales && nranks > MOST_SCALED)
}

impl Work<'_> {
    /// Launch part `part.0` of `part.1`. The context is current.
    pub fn launch(&self, kernels: &Kernels, stream: Stream, part: (usize, usize)) -> Result<()> {
        let Work { collective, root, count, .. } = *self;
        let size = self.data_type.size();
        let bytes = count.saturating_mul(size) / part.1;
        let reduces = collective.reduces();
        let mut fused = match reduces {
            true => {
                let what = (self.data_type, self.op);
                Fused::reducing(kernels, stream, what, self.places.len(), self.scalars, bytes)
            }
            false => Fused::copying(kernels, stream, bytes),
        };
        let shape = Shape { collective, root, count, size };
        // A copy counts bytes.
        let unit = if reduces { 1 } else { size };
        pieces(&shape, self.places, part, |sources, targets, len| {
            fused.add(sources, targets, len * unit)
        })?;
        fused.launch()
    }
}
