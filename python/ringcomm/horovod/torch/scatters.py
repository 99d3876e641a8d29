"""Horovod's `reducescatter` in all its forms."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch

from ..operations import Adasum, Average, Op, Sum, linear, name_of
from ..process_sets import ProcessSet, global_process_set
from ..requests import Request, Signature
from . import moves
from .calls import grouped_allgather
from .compression import Compression, compress, decompress
from .pending import Several
from .reductions import scale
from .tensors import described, device_of, on_its_stream

Tensor = torch.Tensor
#: Which reduction, and the factors before and after it.
_How = Tuple[Any, float, float]


def _scattering(
    tensors: Sequence[Tensor],
    how: _How,
    name: Optional[str],
    process_set: ProcessSet,
    soon: bool = False,
) -> Request:
    """A request for this rank's rows of each of these, reduced."""
    op, prescale, postscale = how
    if op is Adasum:
        raise RuntimeError("reducescatter has no Adasum; use allreduce")
    coordinator = process_set.coordinator
    for tensor in tensors:
        if not tensor.dim():
            raise ValueError("reducescatter: a tensor has one dimension at least")
    sources = [
        scale(tensor.detach().clone(memory_format=torch.contiguous_format), prescale)
        for tensor in tensors
    ]
    outputs: List[Tensor] = []

    def run() -> Any:
        work = None
        for source in sources:
            each, more = divmod(len(source), coordinator.size)
            rows = [each + (rank < more) for rank in range(coordinator.size)]
            output, work = moves.scatter_sum(coordinator, source, rows, op)
            outputs.append(output)
        return work

    signature = Signature.of(
        "reducescatter",
        tuple(described(source) for source in sources),
        (("op", name_of(op)), ("prescale_factor", prescale), ("postscale_factor", postscale)),
        device_of(sources, "reducescatter"),
    )
    running = on_its_stream(sources[0], run) if sources else run
    named = coordinator.name("reducescatter", name)
    request = Request(
        named, signature, lambda: [scale(output, postscale) for output in outputs], running,
        keep=sources,
    )  # fmt: skip
    return coordinator.submit(request, soon)


class _ReduceScatter(torch.autograd.Function):
    """The gradient is everyone's, one after the other; that of a sum times the number of ranks."""

    @staticmethod
    def forward(
        ctx: Any, how: _How, name: Optional[str], process_set: ProcessSet, *tensors: Tensor
    ) -> Tuple[Tensor, ...]:
        ctx.how, ctx.process_set = how, process_set
        return tuple(_scattering(tensors, how, name, process_set, soon=True).wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tuple[Any, ...]:
        op, prescale, postscale = ctx.how
        linear(op, "reducescatter: tensors with gradients")
        factor = prescale * postscale * (ctx.process_set.size() if op == Sum else 1)
        back = grouped_allgather([grad * factor for grad in grads], process_set=ctx.process_set)
        return (None, None, None, *back)


def reducescatter(
    tensor: Tensor,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce over all ranks; this rank's share of the result's rows, of which the first ranks have
    one more where they do not divide."""
    low, ctx = compress(compression, tensor)
    how = (op, prescale_factor, postscale_factor)
    return decompress(compression, _ReduceScatter.apply(how, name, process_set, low)[0], ctx)


def reducescatter_async(
    tensor: Tensor,
    name: Optional[str] = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Several:
    """As `reducescatter`, without gradients; returns a handle."""
    how = (op, prescale_factor, postscale_factor)
    return Several([_scattering([tensor], how, name, process_set)], lambda parts: parts[0][0])


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Tensor]:
    """`reducescatter` of several tensors, as one operation."""
    pairs = [compress(compression, tensor) for tensor in tensors]
    how = (op, prescale_factor, postscale_factor)
    parts = _ReduceScatter.apply(how, name, process_set, *[low for low, _ in pairs])
    return [decompress(compression, part, ctx) for part, (_, ctx) in zip(parts, pairs)]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request:
    """As `grouped_reducescatter`, without gradients; returns a handle."""
    return _scattering(tensors, (op, prescale_factor, postscale_factor), name, process_set)
