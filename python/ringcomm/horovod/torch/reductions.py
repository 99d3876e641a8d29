"""Horovod's `allreduce` in all its forms.

What a call says beside its tensors is a `_Reduction`, which the gradient's own reduction follows.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..._native import ReduceOp
from ..operations import Op, asked_for
from ..process_sets import ProcessSet, global_process_set
from ..requests import Request
from .adasum import adasum
from .compression import Compression, compress, decompress
from .tensors import reduction

Tensor = torch.Tensor


class _Reduction(NamedTuple):
    """How tensors are reduced: everything that `allreduce` is told but the tensors."""

    op: Op
    factors: Tuple[float, float]
    process_set: ProcessSet
    name: Optional[str]

    def start(self, tensors: Sequence[Tensor], in_place: bool, soon: bool = False) -> Request:
        """Reduce them together; the result is a list of them, or of new tensors."""
        self._refuse_twice()
        outputs = list(tensors)
        # A caller who waits changes no tensor's memory meanwhile; others might.
        waits = in_place and soon and self.factors == (1.0, 1.0)
        if not waits or any(tensor.requires_grad for tensor in outputs):
            outputs = [self._sent(tensor, in_place) for tensor in outputs]
        answer = list(tensors) if in_place else outputs
        return self._started(outputs, lambda: self._scaled(outputs, answer), soon)

    def one(self, tensor: Tensor, in_place: bool, soon: bool = False) -> Request:
        """Reduce a tensor; the result is that one, or a new one."""
        self._refuse_twice()
        output = self._sent(tensor, in_place)
        answer = tensor if in_place else output
        return self._started([output], lambda: self._scaled([output], answer), soon)

    def _refuse_twice(self) -> None:
        """Before the tensor is touched: one of this name may be under way with it."""
        if self.name:
            kind = "allreduce" if isinstance(self.op, ReduceOp) else "adasum"
            self.process_set.coordinator.refuse_twice(f"{kind}.{self.name}")

    def _started(self, outputs: List[Tensor], result: Callable[[], Any], soon: bool) -> Request:
        op = self.op
        if isinstance(op, ReduceOp):
            how = self.factors, self.process_set, self.name
            return reduction(outputs, op, *how, result, soon)
        return adasum(outputs, self.process_set, self.name, result)

    def _sent(self, tensor: Tensor, in_place: bool) -> Tensor:
        output = tensor.detach()
        if not in_place:
            output = output.clone(memory_format=torch.contiguous_format)
        return scale(output, self.factors[0])

    def _scaled(self, outputs: List[Tensor], answer: Any) -> Any:
        if self.factors[1] != 1.0:
            for output in outputs:
                scale(output, self.factors[1])
        return answer


def scale(tensor: Tensor, factor: float) -> Tensor:
    """The tensor, multiplied where it lies; integers are rounded towards zero."""
    if factor == 1.0:
        return tensor
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.mul_(factor)
    return tensor.copy_(tensor.double().mul_(factor))


class _AllReduce(torch.autograd.Function):
    """A reduction whose gradient is reduced in the same way."""

    @staticmethod
    def forward(ctx: Any, how: _Reduction, *tensors: Tensor) -> Tuple[Tensor, ...]:
        ctx.how = how
        return tuple(how.start(tensors, in_place=False, soon=True).wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tuple[Any, ...]:
        # Again with a gradient of its own.
        return (None, *_AllReduce.apply(ctx.how._replace(name=None), *grads))


def _how(
    average: Optional[bool],
    op: Optional[Op],
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    name: Optional[str],
) -> _Reduction:
    return _Reduction(asked_for(average, op), (prescale, postscale), process_set, name)


def allreduce(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The average of every rank's tensor, or what `op` says; through it gradients flow."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set, name)
    if compression is Compression.none and not tensor.requires_grad:
        reduced: Tensor = how.one(tensor, in_place=False, soon=True).wait()
        return reduced
    sent, ctx = compress(compression, tensor)
    return decompress(compression, _AllReduce.apply(how, sent)[0], ctx)


def allreduce_async(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """As `allreduce`, without gradients; returns a handle."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set, name)
    return how.one(tensor, in_place=False)


def allreduce_async_(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """As `allreduce_`; returns a handle."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set, name)
    return how.one(tensor, in_place=True)


def allreduce_(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The tensor, reduced where it lies."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set, name)
    reduced: Tensor = how.one(tensor, in_place=True, soon=True).wait()
    return reduced


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[Tensor]:
    """`allreduce` of several tensors, as one operation."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set, name)
    pairs = [compress(compression, tensor) for tensor in tensors]
    reduced = _AllReduce.apply(how, *[sent for sent, _ in pairs])
    return [decompress(compression, one, ctx) for one, (_, ctx) in zip(reduced, pairs)]


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[Tensor]:
    """`allreduce_` of several tensors, as one operation."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set, name)
    reduced: List[Tensor] = how.start(tensors, in_place=True, soon=True).wait()
    return reduced


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """As `grouped_allreduce`, without gradients; returns a handle."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set, name)
    return how.start(tensors, in_place=False)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """As `grouped_allreduce_`; returns a handle."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set, name)
    return how.start(tensors, in_place=True)
