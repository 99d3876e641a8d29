"""Horovod's operations on tensors.

Those without `_` at the end return a new tensor, through which gradients flow; those with it write
where the tensor lies. The asynchronous ones return a handle for `synchronize` and `poll`. Names of
operations are not needed and not looked at. Gradients are what Horovod makes of them: behind
`allreduce` reduced as `op` says, behind `allgather` and `broadcast` averaged.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch

from ..._native import ReduceOp
from ..job import rank, size
from ..operations import Average, Sum, asked_for, linear
from .group import Options, group

Tensor = torch.Tensor
Dtype = Optional[torch.dtype]


class Pending:
    """An operation that is on its way."""

    def __init__(self, work: Any, result: Callable[[], Any]) -> None:
        self._work, self._result = work, result
        self._answer: Any = None

    def done(self) -> bool:
        """Whether it is over; does not wait."""
        return self._work is None or self._work.is_completed()

    def wait(self) -> Any:
        """Wait, and give the result; again the same if asked again."""
        if self._work is not None:
            self._work.wait()
            self._work, self._answer = None, self._result()
        return self._answer


def poll(handle: Pending) -> bool:
    """Whether an asynchronous operation is over: whether `synchronize` would return at once."""
    return handle.done()


def synchronize(handle: Pending) -> Any:
    """The result of an asynchronous operation, when it is over."""
    return handle.wait()


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
        return _scale(output, self._prescale)

    def _received(self, output: Tensor, tensor: Tensor, in_place: bool) -> Tensor:
        output = _scale(output.to(tensor.dtype), self._postscale)
        if not in_place:
            return output
        if output.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(output)
        return tensor


def _scale(tensor: Tensor, factor: float) -> Tensor:
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
        return (None, *ctx.how.start(grads, in_place=False).wait())


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
    return _AllReduce.apply(how, tensor)[0]


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
    how = _Reduction(average, op, prescale_factor, postscale_factor)
    reduced: List[Tensor] = how.start(tensors, in_place=True).wait()
    return reduced


def allgather_async(tensor: Tensor, name: Optional[str] = None) -> Pending:
    """As `allgather`, without gradients; returns a handle."""
    return _gathering(tensor)[1]


def _gathering(tensor: Tensor) -> Tuple[List[int], Pending]:
    """How many rows come from each rank, and all of them on their way."""
    if tensor.dim() == 0:
        raise ValueError("allgather: a tensor without dimensions cannot be joined to others")
    source = tensor.detach().contiguous()
    sizes = torch.empty(size(), dtype=torch.int64)
    group().all_gather_single(sizes, torch.tensor([len(source)]), Options()).wait()
    rows: List[int] = sizes.tolist()
    output = source.new_empty((sum(rows), *source.shape[1:]))
    work = group().allgather([list(output.split(rows))], [source], Options())
    return rows, Pending(work, lambda: output)


class _AllGather(torch.autograd.Function):
    """Rank r's gradient is the average of everyone's for the part that came from r."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.rows, pending = _gathering(tensor)
        gathered: Tensor = pending.wait()
        return gathered

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return allreduce(grad, op=Average).split(ctx.rows)[rank()]


def allgather(tensor: Tensor, name: Optional[str] = None) -> Tensor:
    """Every rank's tensor, one after the other along the first dimension, in which they may
    differ."""
    gathered: Tensor = _AllGather.apply(tensor)
    return gathered


def broadcast_async_(tensor: Tensor, root_rank: int, name: Optional[str] = None) -> Pending:
    """As `broadcast_`; returns a handle."""
    return Pending(group().broadcast([tensor.detach()], Options(root=root_rank)), lambda: tensor)


def broadcast_(tensor: Tensor, root_rank: int, name: Optional[str] = None) -> Tensor:
    """Overwrite the tensor with the root's."""
    overwritten: Tensor = broadcast_async_(tensor, root_rank).wait()
    return overwritten


def broadcast_async(tensor: Tensor, root_rank: int, name: Optional[str] = None) -> Pending:
    """As `broadcast`, without gradients; returns a handle."""
    return broadcast_async_(tensor.detach().clone(), root_rank)


class _Broadcast(torch.autograd.Function):
    """The root's gradient is the average of everyone's; the others' is zero."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int) -> Tensor:
        ctx.root_rank = root_rank
        sent: Tensor = broadcast_async(tensor, root_rank).wait()
        return sent

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None]:
        mean = allreduce(grad, op=Average)
        return (mean if rank() == ctx.root_rank else torch.zeros_like(mean)), None


def broadcast(tensor: Tensor, root_rank: int, name: Optional[str] = None) -> Tensor:
    """The root's tensor, as a new one."""
    sent: Tensor = _Broadcast.apply(tensor, root_rank)
    return sent


def _exchanged(tensor: Tensor, sent: Tensor) -> Tuple[Tensor, Tensor]:
    """What came, so many rows of the tensor having been sent to each rank, and how many came."""
    source = tensor.detach().contiguous()
    came = torch.empty_like(sent)
    group().all_to_all_single(came, sent, None, None, Options()).wait()
    output = source.new_empty((int(came.sum()), *source.shape[1:]))
    rows = came.tolist(), sent.tolist()
    group().all_to_all_single(output, source, *rows, Options()).wait()
    return output, came


class _AllToAll(torch.autograd.Function):
    """Each row's gradient goes back to where the row came from."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sent: Tensor) -> Tuple[Tensor, Tensor]:
        output, ctx.came = _exchanged(tensor, sent)
        ctx.mark_non_differentiable(ctx.came)
        return output, ctx.came

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tuple[Tensor, None]:
        return _exchanged(grad, ctx.came)[0], None


def alltoall(
    tensor: Tensor, splits: Optional[Any] = None, name: Optional[str] = None
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Rows of the tensor to every rank, equally many or as `splits` says; what came from each.

    With `splits` also how many rows came from each rank.
    """
    if splits is None:
        if len(tensor) % size():
            raise ValueError(f"alltoall: {len(tensor)} rows do not divide by {size()} ranks")
        sent = torch.full((size(),), len(tensor) // size())
        output: Tensor = _AllToAll.apply(tensor, sent)[0]
        return output
    sent = torch.as_tensor(splits).to(torch.int64).cpu()
    both: Tuple[Tensor, Tensor] = _AllToAll.apply(tensor, sent)
    return both


class _ReduceScatter(torch.autograd.Function):
    """The gradient is everyone's, one after the other; that of a sum times the number of ranks."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, op: ReduceOp, prescale: float, postscale: float
    ) -> Tensor:
        ctx.op, ctx.factor = op, prescale * postscale
        source = _scale(tensor.detach().clone(memory_format=torch.contiguous_format), prescale)
        each, more = divmod(len(source), size())
        parts = list(source.split([each + (one < more) for one in range(size())]))
        output = torch.empty_like(parts[rank()])
        group().reduce_scatter([output], [parts], Options(op)).wait()
        return _scale(output, postscale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        op = linear(ctx.op, "reducescatter: tensors with gradients")
        factor = ctx.factor * (size() if op == Sum else 1)
        return allgather(grad * factor), None, None, None


def reducescatter(
    tensor: Tensor,
    name: Optional[str] = None,
    compression: Dtype = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce over all ranks; this rank's share of the result's rows, of which the first ranks have
    one more where they do not divide."""
    low = tensor if compression is None else tensor.to(compression)
    part: Tensor = _ReduceScatter.apply(low, op, prescale_factor, postscale_factor)
    return part.to(tensor.dtype)


def barrier() -> None:
    """Wait for every rank."""
    work = group().barrier()
    if work is not None:
        work.wait()
