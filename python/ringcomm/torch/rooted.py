"""c10d's collectives that have a root, and its exchanges between all ranks."""

from __future__ import annotations

from typing import Any, List, Optional

import torch

from .._native import counts_array, lib
from . import types
from .collectives import listed, root_of
from .comm_stream import Step
from .scattered import ScatteredReductions
from .types import Staging
from .work import Work


class RootedCollectives(ScatteredReductions):
    """Gather, scatter and all-to-all."""

    def gather(self, outputs: Any, inputs: Any, opts: Any, timeout: Any = None) -> Optional[Work]:
        """The root gets the inputs of all ranks, in a list of tensors."""
        root = root_of(opts)
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if self.rank() == root:
            types.check_pairs("gather", outputs, inputs)
        staging = Staging()
        steps: List[Step] = []
        flat = []
        for index, source in enumerate(inputs):
            kind, count = types.movable(types.check(source, "gather"))
            block = None
            if self.rank() == root:
                row = outputs[index]
                types.check_row("gather", row, self.size(), source)
                block = staging.row(row, read=False).data_ptr()
                flat += row
            steps.append(
                (lib.ringGather, (staging.source(source).data_ptr(), block, count, kind, root))
            )
        return self._start("gather", listed(inputs), steps, opts, staging, flat)

    def gather_single(self, output: Any, input: Any, opts: Any) -> Optional[Work]:
        """The root gets the inputs of all ranks, one after the other."""
        root = root_of(opts)
        staging = Staging()
        kind, count = types.movable(types.check(input, "gather_single"))
        if self.rank() == root:
            types.same_type("gather_single", [input, output])
            if output.numel() != input.numel() * self.size():
                raise ValueError(
                    f"gather_single: {self.size()} inputs of {input.numel()} elements do not fill "
                    f"the root's output of {output.numel()}; give one of "
                    f"{input.numel() * self.size()}"
                )
        place = staging.target(output).data_ptr() if self.rank() == root else None
        step = (lib.ringGather, (staging.source(input).data_ptr(), place, count, kind, root))
        return self._start("gather_single", [input], [step], opts, staging, [output])

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any, timeout: Any = None) -> Optional[Work]:
        """Rank r gets tensor r of the root's list."""
        root = root_of(opts)
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if self.rank() == root:
            types.check_pairs("scatter", outputs, inputs)
        staging = Staging()
        steps: List[Step] = []
        for index, output in enumerate(outputs):
            kind, count = types.movable(types.check(output, "scatter"))
            block = None
            if self.rank() == root:
                row = inputs[index]
                types.check_row("scatter", row, self.size(), output)
                block = staging.row(row, read=True).data_ptr()
            steps.append(
                (lib.ringScatter, (block, staging.target(output).data_ptr(), count, kind, root))
            )
        flat = [tensor for row in inputs for tensor in row] or list(outputs)
        return self._start("scatter", flat, steps, opts, staging, list(outputs))

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_splits: Optional[List[int]],
        input_splits: Optional[List[int]],
        opts: Any = None,
        timeout: Any = None,
    ) -> Optional[Work]:
        """Block d of the input goes to rank d; the blocks of all ranks make the output."""
        staging = Staging()
        types.same_type("all_to_all_single", [input, output])
        kind, _ = types.movable(input)
        read, write = staging.source(input), staging.target(output)
        if not output_splits and not input_splits and output.numel() != input.numel():
            raise ValueError(
                f"all_to_all_single: equal blocks of {tuple(input.shape)} do not fill "
                f"{tuple(output.shape)}; give split sizes"
            )
        if types.overlap(read, write):
            # Blocks of other lengths come than go, so this call of the library is never in place.
            read = staging.source(read.clone())
        # Without sizes, too: another rank may give some, and means the same or has other blocks.
        sent = self._blocks(input, input_splits, "input")
        got = self._blocks(output, output_splits, "output")
        step: Step = (lib.ringAllToAllv, (read.data_ptr(), *sent, write.data_ptr(), *got, kind))
        return self._start("all_to_all_single", [input], [step], opts, staging, [output])

    alltoall_base = all_to_all_single

    def _blocks(self, tensor: torch.Tensor, splits: Optional[List[int]], what: str) -> List[Any]:
        """Counts and displacements of blocks that are cut along the first dimension."""
        rows = tensor.shape[0] if tensor.dim() else tensor.numel()
        if not splits:
            if rows % self.size():
                raise ValueError(
                    f"all_to_all_single: {rows} rows of the {what} do not divide among "
                    f"{self.size()} ranks; give {what} split sizes"
                )
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows or min(splits) < 0:
            raise ValueError(
                f"all_to_all_single: {what} split sizes {list(splits)} do not divide {rows} rows "
                f"among {self.size()} ranks; give one for each rank, {rows} in all"
            )
        total = types.movable(tensor)[1]
        width = total // rows if rows else 0
        counts = [rows * width for rows in splits]
        return [counts_array(counts), counts_array([sum(counts[:i]) for i in range(len(counts))])]

    def alltoall(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Optional[Work]:
        """Tensor d of the inputs goes to rank d; output s comes from rank s."""
        if len(inputs) != self.size() or len(outputs) != self.size():
            raise ValueError(
                f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs for {self.size()} "
                "ranks; give one of both for each"
            )
        types.same_type("all_to_all", [*inputs, *outputs])
        if inputs[self.rank()].numel() != outputs[self.rank()].numel():
            raise ValueError(
                f"all_to_all: this rank's input for itself has {inputs[self.rank()].numel()} "
                f"elements, its output {outputs[self.rank()].numel()}; give both one size"
            )
        staging = Staging()
        kind, _ = types.movable(inputs[0])
        sent = [types.movable(tensor)[1] for tensor in inputs]
        got = [types.movable(tensor)[1] for tensor in outputs]
        read, write = staging.row(list(inputs), read=True), staging.row(list(outputs), read=False)
        arguments: List[Any] = [
            read.data_ptr(),
            *_layout(sent),
            write.data_ptr(),
            *_layout(got),
            kind,
        ]
        step = (lib.ringAllToAllv, tuple(arguments))
        return self._start("all_to_all", list(inputs), [step], opts, staging, list(outputs))


def _layout(counts: List[int]) -> List[Any]:
    return [counts_array(counts), counts_array([sum(counts[:i]) for i in range(len(counts))])]
