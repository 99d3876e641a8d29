//! One device's part of a call, launched on one stream.

use crate::device::cuda::{Fused, Kernels, MOST_SCALED, Stream};
use crate::error::Result;
use crate::executor::device_p2p::Work;
use crate::executor::device_pieces::{Shape, fits, pieces};
use crate::plan::Collective;
use crate::types::ReduceOp;

/// Whether a launch has room for so many ranks of such a call.
pub fn has_room(collective: Collective, op: ReduceOp, nranks: usize) -> bool {
    let scales = collective.reduces() && op == ReduceOp::PreMulSum;
    fits(collective, nranks) && !(scales && nranks > MOST_SCALED)
}

/// Launch part `part.0` of `part.1`. The context is current.
pub fn launch_part(
    work: &Work,
    kernels: &Kernels,
    stream: Stream,
    part: (usize, usize),
) -> Result<()> {
    let Work { collective, root, count, .. } = *work;
    let size = work.data_type.size();
    let bytes = count.saturating_mul(size) / part.1;
    let moved = work.moved_as();
    let mut fused = match collective.reduces() {
        true => {
            let what = (work.data_type, work.op);
            Fused::reducing(kernels, stream, what, work.places.len(), work.scalars, bytes)
        }
        false => Fused::copying(kernels, stream, moved, bytes),
    };
    let shape = Shape { collective, root, count, size };
    let unit = size / moved.size();
    pieces(&shape, work.places, part, |sources, targets, len| {
        fused.add(sources, targets, len * unit)
    })?;
    fused.launch()
}
