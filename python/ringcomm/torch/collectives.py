"""c10d's collectives, as calls of the library: what every kind of group of torch inherits.

Each method says which calls make the operation and which tensors hold its result; `_start` makes
the calls. torch has had two names for some of them, and knows both.
"""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional, Sequence

import torch
from torch._C._distributed_c10d import AllreduceOptions, BarrierOptions

from .._native import Residence, counts_array, lib
from ..integers import RANK, integer
from . import types
from .futures import level
from .comm_stream import CommStream, Step
from .types import OPS, TYPES, Staging
from .work import Work

Tensors = List[torch.Tensor]
_all_reduce = lib.ringAllReduce
_profiled = torch._C._autograd._profiler_enabled
_modes = torch._C._len_torch_dispatch_stack
#: Whether torch says of every call whether it waits, and then waits for nothing that is returned as
#: None.
TELLS = hasattr(AllreduceOptions(), "asyncOp")

#: The types of which one makes an element.
_PLAIN = {dtype: kind for dtype, (kind, width) in TYPES.items() if width == 1}

#: The classes of tensors that are no more than memory, in most programs.
MEMORY = frozenset((torch.Tensor, torch.nn.Parameter))


def listed(tensors: Any) -> Tensors:
    """A list of tensors; c10d takes a single one for it, too."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def root_of(options: Any) -> int:
    """The root that c10d's options name, or are."""
    root = options if isinstance(options, int) else options.rootRank
    # torch has 64 bits for it, and C's int 32.
    return integer(root, "root", RANK)


class Collectives:
    """Collectives over comm streams; the group says which comm stream."""

    _rank: int
    _size: int
    #: The comm stream of operations on the CPU's tensors that no callback starts.
    _cpu: CommStream

    def rank(self) -> int:
        """This rank in the group."""
        return self._rank

    def size(self) -> int:
        """The number of ranks of the group."""
        return self._size

    def _comm_stream(self, device: torch.device) -> CommStream:
        raise NotImplementedError

    def _start(
        self,
        name: str,
        tensors: Tensors,
        steps: Sequence[Step],
        options: Any,
        staging: Optional[Staging] = None,
        result: Optional[Tensors] = None,
        keep: Any = None,
    ) -> Optional[Work]:
        raise NotImplementedError

    def _reduction(self, op: Any, tensor: torch.Tensor) -> int:
        """The library's number of this reduction."""
        number = OPS.get(types.kind_of(op))
        return self._scaled_sum(op, tensor) if number is None else number

    def _scaled_sum(self, op: Any, tensor: torch.Tensor) -> int:
        if not str(types.kind_of(op)).endswith("PREMUL_SUM"):
            raise ValueError(
                f"ringcomm has no reduction {op}; use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR "
                "or a pre-multiplied sum"
            )
        factor = getattr(op, "factor", None)
        if factor is None:
            factor = op.__getstate__()[1]
        dtype = tensor.dtype.to_real() if tensor.dtype.is_complex else tensor.dtype
        scalar = torch.as_tensor(factor, dtype=dtype, device="cpu").reshape(1)
        number = ctypes.c_int()
        comm_stream = self._comm_stream(tensor.device)
        made = lib.ringRedOpCreatePreMulSum(
            ctypes.byref(number),
            scalar.data_ptr(),
            TYPES[dtype][0],
            Residence.HOST_IMMEDIATE.value,
            comm_stream.comm,
        )
        if made:
            raise comm_stream.refusal(made)
        return number.value

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Optional[Work]:
        """Reduce each tensor over all ranks, in place, on every rank."""
        if TELLS and type(opts) is AllreduceOptions and not opts.asyncOp and len(tensors) == 1:
            tensor = tensors[0]
            # The plain case, without detours: half of a small call's time would go into them.
            reduction: Any = opts.reduceOp
            known, op = _PLAIN.get(tensor.dtype), OPS.get(reduction.op)
            comm_stream = self._cpu
            if known is not None and op is not None and tensor.is_cpu and type(tensor) in MEMORY:
                plain = tensor.is_contiguous() and not tensor.is_neg()
                if plain and level.depth == 0 and not _profiled() and not _modes():
                    place, count = tensor.data_ptr(), tensor.numel()
                    if comm_stream._running:
                        comm_stream.run([(_all_reduce, (place, place, count, known, op))])
                        return None
                    with comm_stream.lock:
                        result = _all_reduce(place, place, count, known, op, comm_stream.comm, None)
                    if result:
                        raise comm_stream.refusal(result)
                    return None
        return self._all_reduce(listed(tensors), opts)

    def _all_reduce(self, tensors: Tensors, opts: Any) -> Optional[Work]:
        op = getattr(opts, "reduceOp", opts)
        op = AllreduceOptions().reduceOp if op is None else op
        if any(tensor.layout is torch.sparse_coo for tensor in tensors):
            from .sparse import all_reduce_sparse

            return all_reduce_sparse(self, tensors, op)
        staging = Staging()
        steps = []
        for tensor in tensors:
            kind, count = types.reducible(types.check(tensor, "all_reduce"), op)
            place = staging.target(tensor).data_ptr()
            steps.append((_all_reduce, (place, place, count, kind, self._reduction(op, tensor))))
        return self._start("all_reduce", tensors, steps, opts, staging)

    allreduce_coalesced = allreduce_sparse = allreduce

    def broadcast(self, tensors: Any, opts: Any, timeout: Any = None) -> Optional[Work]:
        """Every rank gets the root's tensors."""
        root = root_of(opts)
        staging = Staging()
        steps = []
        for tensor in (tensors := listed(tensors)):
            kind, count = types.movable(types.check(tensor, "broadcast"))
            place = staging.target(tensor).data_ptr()
            steps.append((lib.ringBroadcast, (place, place, count, kind, root)))
        return self._start("broadcast", tensors, steps, opts, staging)

    def reduce(
        self, tensors: Any, opts: Any, op: Any = None, timeout: Any = None
    ) -> Optional[Work]:
        """Reduce each tensor over all ranks; the root's holds the result."""
        root = root_of(opts)
        op = getattr(opts, "reduceOp", op)
        op = AllreduceOptions().reduceOp if op is None else op
        staging = Staging()
        steps = []
        for tensor in (tensors := listed(tensors)):
            kind, count = types.reducible(types.check(tensor, "reduce"), op)
            place = staging.target(tensor).data_ptr()
            number = self._reduction(op, tensor)
            steps.append((lib.ringReduce, (place, place, count, kind, number, root)))
        return self._start("reduce", tensors, steps, opts, staging)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Optional[Work]:
        """The inputs of all ranks, one after the other, on every rank."""
        return self._all_gather_flat([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> Optional[Work]:
        """As `all_gather_single`, of several pairs."""
        return self._all_gather_flat(listed(outputs), listed(inputs), opts)

    def _all_gather_flat(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Optional[Work]:
        types.check_pairs("all_gather_single", outputs, inputs)
        staging = Staging()
        steps = []
        for output, source in zip(outputs, inputs):
            kind, count = types.movable(types.check(source, "all_gather_single"))
            types.check(output, "all_gather_single")
            if output.numel() != source.numel() * self.size() or output.dtype != source.dtype:
                raise ValueError(
                    f"all_gather_single: {self.size()} inputs of {source.numel()} {source.dtype} "
                    f"do not fill an output of {output.numel()} {output.dtype}; give one of "
                    f"{source.numel() * self.size()} {source.dtype}"
                )
            read, write = staging.source(source), staging.target(output)
            steps.append((lib.ringAllGather, (read.data_ptr(), write.data_ptr(), count, kind)))
        return self._start("all_gather_single", inputs, steps, opts, staging, outputs)

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Optional[Work]:
        """Every rank gets the inputs of all ranks, in a list of tensors for each input."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        types.check_pairs("all_gather", outputs, inputs)
        staging = Staging()
        steps = []
        for row, source in zip(outputs, inputs):
            if len(row) != self.size():
                raise ValueError(
                    f"all_gather: {len(row)} outputs for {self.size()} ranks; give one for each"
                )
            types.same_type("all_gather", [source, *row])
            kind, _ = types.movable(source)
            mine = row[self.rank()].numel()
            if mine != source.numel():
                raise ValueError(
                    f"all_gather: the input of {source.numel()} elements does not fit into this "
                    f"rank's output of {mine}; give output {self.rank()} the input's size"
                )
            counts = [types.movable(tensor)[1] for tensor in row]
            read, block = staging.source(source), staging.row(row, read=False)
            steps.append(_gather_to_all(self.rank(), read, block, counts, kind))
        flat = [tensor for row in outputs for tensor in row]
        return self._start("all_gather", listed(inputs), steps, opts, staging, flat)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Optional[Work]:
        """As `allgather`, of several inputs; the outputs are a list for each rank."""
        for row in outputs:
            types.check_pairs("all_gather_coalesced", row, inputs)
        rows = [[tensors[index] for tensors in outputs] for index in range(len(inputs))]
        return self.allgather(rows, inputs, opts)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Optional[Work]:
        """Every rank waits for every rank."""
        opts = opts if isinstance(opts, BarrierOptions) else BarrierOptions()
        return self._start("barrier", [], [(lib.ringBarrier, ())], opts)

    # Names that torch had for these, or has for a list of them.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced


def _gather_to_all(
    rank: int, read: torch.Tensor, block: torch.Tensor, counts: List[int], kind: int
) -> Step:
    """The call that gathers blocks of these lengths on every rank."""
    if len(set(counts)) == 1:
        return lib.ringAllGather, (read.data_ptr(), block.data_ptr(), counts[0], kind)
    displacements = [sum(counts[:index]) for index in range(len(counts))]
    return lib.ringAllGatherv, (
        read.data_ptr(),
        counts[rank],
        block.data_ptr(),
        counts_array(counts),
        counts_array(displacements),
        kind,
    )
