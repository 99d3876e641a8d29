"""Horovod's operations on tensors.

Those without `_` at the end return a new tensor, through which gradients flow; those with it write
where the tensor lies. The asynchronous ones return a handle for `synchronize` and `poll`. Names of
operations are not needed and not looked at.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch

from ..._native import ReduceOp
from ..job import rank, size
from .group import Average, Options, Sum, group

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
        if average is not None and op is not None:
            raise ValueError("average and op say the same thing; give op alone")
        self._op = op if op is not None else (Sum if average is False else Average)
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
        return output if self._prescale == 1.0 else output.mul_(self._prescale)

    def _received(self, output: Tensor, tensor: Tensor, in_place: bool) -> Tensor:
        output = output.to(tensor.dtype)
        if self._postscale != 1.0:
            output.mul_(self._postscale)
        if not in_place:
            return output
        if output.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(output)
        return tensor


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


def allreduce_(*arguments: Any, **more: Any) -> Tensor:
    """As `allreduce_async_`, and waits: the tensor, reduced where it lies."""
    reduced: Tensor = allreduce_async_(*arguments, **more).wait()
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
    if tensor.dim() == 0:
        raise ValueError("allgather: a tensor without dimensions cannot be joined to others")
    source = tensor.detach().contiguous()
    rows = [int(each) for each in _gathered_sizes(tensor)]
    output = source.new_empty((sum(rows), *source.shape[1:]))
    work = group().allgather([list(output.split(rows))], [source], Options())
    return Pending(work, lambda: output)


def _gathered_sizes(tensor: Tensor) -> List[int]:
    sizes = torch.empty(size(), dtype=torch.int64)
    group().all_gather_single(sizes, torch.tensor([tensor.shape[0]]), Options()).wait()
    found: List[int] = sizes.tolist()
    return found


class _AllGather(torch.autograd.Function):
    """Rank r's gradient is the sum of everyone's for the part that came from r."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.rows = _gathered_sizes(tensor) if tensor.requires_grad else []
        gathered: Tensor = allgather_async(tensor).wait()
        return gathered

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return allreduce(grad, op=Sum).split(ctx.rows)[rank()]


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
    """The root's gradient is the sum of everyone's; the others' count for nothing."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int) -> Tensor:
        ctx.root_rank = root_rank
        sent: Tensor = broadcast_async(tensor, root_rank).wait()
        return sent

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None]:
        total = allreduce(grad, op=Sum)
        return (total if rank() == ctx.root_rank else torch.zeros_like(total)), None


def broadcast(tensor: Tensor, root_rank: int, name: Optional[str] = None) -> Tensor:
    """The root's tensor, as a new one."""
    sent: Tensor = _Broadcast.apply(tensor, root_rank)
    return sent


def alltoall(
    tensor: Tensor, splits: Optional[Any] = None, name: Optional[str] = None
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Rows of the tensor to every rank, equally many or as `splits` says; what came from each.

    With `splits` also how many rows came from each rank.
    """
    source = tensor.detach().contiguous()
    if splits is None:
        output = torch.empty_like(source)
        group().all_to_all_single(output, source, None, None, Options()).wait()
        return output
    sent = torch.as_tensor(splits).to(torch.int64).cpu()
    came = torch.empty_like(sent)
    group().all_to_all_single(came, sent, None, None, Options()).wait()
    output = source.new_empty((int(came.sum()), *source.shape[1:]))
    rows = came.tolist(), sent.tolist()
    group().all_to_all_single(output, source, *rows, Options()).wait()
    return output, came


def reducescatter(
    tensor: Tensor,
    name: Optional[str] = None,
    compression: Dtype = None,
    op: ReduceOp = Average,
) -> Tensor:
    """Reduce over all ranks; this rank's share of the result's rows, of which the first ranks have
    one more where they do not divide."""
    source = tensor.detach().contiguous()
    low = source if compression is None else source.to(compression)
    each, more = divmod(low.shape[0], size())
    parts = list(low.split([each + (one < more) for one in range(size())]))
    output = torch.empty_like(parts[rank()])
    group().reduce_scatter([output], [parts], Options(op)).wait()
    return output.to(tensor.dtype)


def barrier() -> None:
    """Wait for every rank."""
    work = group().barrier()
    if work is not None:
        work.wait()
