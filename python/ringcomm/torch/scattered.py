"""c10d's reductions of which every rank gets a part."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch._C._distributed_c10d import AllreduceOptions

from .._native import counts_array, lib
from . import types
from .collectives import Collectives, Tensors, listed
from .types import Staging
from .work import Work


class ScatteredReductions(Collectives):
    """Reduce-scatter, in all its forms."""

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Optional[Work]:
        """Reduce over all ranks; rank r gets block r of the result."""
        return self._reduce_scatter_flat([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> Optional[Work]:
        """As `reduce_scatter_single`, of several pairs."""
        return self._reduce_scatter_flat(listed(outputs), listed(inputs), opts)

    def _reduce_scatter_flat(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Optional[Work]:
        op = AllreduceOptions().reduceOp if opts is None else opts.reduceOp
        types.check_pairs("reduce_scatter_single", outputs, inputs)
        staging = Staging()
        steps = []
        for output, source in zip(outputs, inputs):
            types.check(source, "reduce_scatter_single")
            kind, count = types.reducible(types.check(output, "reduce_scatter_single"), op)
            if source.numel() != output.numel() * self.size() or output.dtype != source.dtype:
                raise ValueError(
                    f"reduce_scatter_single: an input of {source.numel()} {source.dtype} is not "
                    f"{self.size()} outputs of {output.numel()} {output.dtype}; give one of "
                    f"{output.numel() * self.size()} {output.dtype}"
                )
            read, write = staging.source(source), staging.target(output)
            number = self._reduction(op, output)
            steps.append(
                (lib.ringReduceScatter, (read.data_ptr(), write.data_ptr(), count, kind, number))
            )
        return self._start("reduce_scatter_single", inputs, steps, opts, staging, outputs)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Optional[Work]:
        """Reduce lists of a tensor for each rank; rank r gets the result of tensor r."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        op = getattr(opts, "reduceOp", opts)
        op = AllreduceOptions().reduceOp if op is None else op
        types.check_pairs("reduce_scatter", outputs, inputs)
        staging = Staging()
        steps = []
        for output, row in zip(outputs, inputs):
            if len(row) != self.size():
                raise ValueError(
                    f"reduce_scatter: {len(row)} inputs for {self.size()} ranks; give one for each"
                )
            types.same_type("reduce_scatter", [output, *row])
            mine = row[self.rank()].numel()
            if output.numel() != mine:
                raise ValueError(
                    f"reduce_scatter: this rank's input of {mine} elements does not fit into an "
                    f"output of {output.numel()}; give it that size"
                )
            kind, _ = types.reducible(output, op)
            counts = counts_array([types.numbers(tensor)[1] for tensor in row])
            block, write = staging.row(row, read=True), staging.target(output)
            number = self._reduction(op, output)
            arguments = (block.data_ptr(), write.data_ptr(), counts, kind, number)
            steps.append((lib.ringReduceScatterv, arguments))
        flat = [tensor for row in inputs for tensor in row]
        return self._start("reduce_scatter", flat, steps, opts, staging, list(outputs))

    # Names that torch had for these, or has for a list of them.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
