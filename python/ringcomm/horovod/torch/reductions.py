"""Horovod's `allreduce` in all its forms.

What a call says beside its tensor is a `_Reduction`, which the gradient's own reduction follows.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch

from ..._native import ReduceOp
from ..operations import asked_for
from .group import Options, group
from .pending import Pending

Tensor = torch.Tensor
Dtype = Optional[torch.dtype]


class _Reduction:
    """How tensors are reduced: everything that `allreduce` is told but the tensor."""

    def __init__(
        self,
        average: Optional[bool],
        op: Optional[ReduceOp],
        prescale: float,
        postscale: float,
        compression: Dtype = None,
    ) -> None:
        self._op = asked_for(average, op)
        self._prescale, self._postscale = prescale, postscale
        self._compression = compression

    def start(self, tensors: Sequence[Tensor], in_place: bool) -> Pending:
        """Reduce them together; the result is a list of them, or of new tensors."""
        outputs = [self._sent(tensor, in_place) for tensor in tensors]
        work = group().allreduce(outputs, Options(self._op))

        def result() -> List[Tensor]:
            return [
                self._received(output, tensor, in_place) for output, tensor in zip(outputs, tensors)
            ]

        return Pending(work, result)

    def _sent(self, tensor: Tensor, in_place: bool) -> Tensor:
        output = tensor.detach()
        if self._compression is not None and output.is_floating_point():
            output = output.to(self._compression)
        if not in_place and output.data_ptr() == tensor.data_ptr():
            output = output.clone(memory_format=torch.contiguous_format)
        return scale(output, self._prescale)

    def _received(self, output: Tensor, tensor: Tensor, in_place: bool) -> Tensor:
        output = scale(output.to(tensor.dtype), self._postscale)
        if not in_place:
            return output
        if output.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(output)
        return tensor


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
        return tuple(how.start(tensors, in_place=False).wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tuple[Any, ...]:
        # Again with a gradient of its own.
        return (None, *_AllReduce.apply(ctx.how, *grads))


def allreduce(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Dtype = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """The average of every rank's tensor, or what `op` says."""
    how = _Reduction(average, op, prescale_factor, postscale_factor, compression)
    reduced: Tensor = _AllReduce.apply(how, tensor)[0]
    return reduced


def allreduce_async(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """As `allreduce`, without gradients; returns a handle."""
    return _first(_Reduction(average, op, prescale_factor, postscale_factor), tensor, False)


def allreduce_async_(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """As `allreduce_`; returns a handle."""
    return _first(_Reduction(average, op, prescale_factor, postscale_factor), tensor, True)


def _first(how: _Reduction, tensor: Tensor, in_place: bool) -> Pending:
    many = how.start([tensor], in_place)
    return Pending(many, lambda: many.wait()[0])


def allreduce_(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """The tensor, reduced where it lies."""
    how = _Reduction(average, op, prescale_factor, postscale_factor)
    reduced: Tensor = _first(how, tensor, True).wait()
    return reduced


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Dtype = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Tensor]:
    """`allreduce` of several tensors, as one operation."""
    how = _Reduction(average, op, prescale_factor, postscale_factor, compression)
    return list(_AllReduce.apply(how, *tensors))


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Tensor]:
    """`allreduce_` of several tensors, as one operation."""
    how = (average, name, op, prescale_factor, postscale_factor)
    reduced: List[Tensor] = grouped_allreduce_async_(tensors, *how).wait()
    return reduced


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """As `grouped_allreduce`, without gradients; returns a handle."""
    return _Reduction(average, op, prescale_factor, postscale_factor).start(tensors, in_place=False)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """As `grouped_allreduce_`; returns a handle."""
    return _Reduction(average, op, prescale_factor, postscale_factor).start(tensors, in_place=True)
