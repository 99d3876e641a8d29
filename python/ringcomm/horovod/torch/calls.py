"""Horovod's operations on tensors; the all-reduces among them are in `reductions`.

Those without `_` at the end return a new tensor, through which gradients flow; those with it write
where the tensor lies. The asynchronous ones return a handle for `synchronize` and `poll`. Names of
operations are not needed and not looked at. Gradients are what Horovod makes of them: behind
`allreduce` reduced as `op` says, behind `allgather` and `broadcast` averaged.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

from ..._native import ReduceOp
from ..job import rank, size
from ..operations import Average, Sum, linear
from ..rows import refuse_unlike, row_signature
from .group import Options, group
from .pending import Pending, together
from .reductions import Dtype, Tensor, allreduce, scale


def allgather_async(tensor: Tensor, name: Optional[str] = None) -> Pending:
    """As `allgather`, without gradients; returns a handle."""
    return _gathering(tensor)[1]


def _gathering(tensor: Tensor) -> Tuple[List[int], Pending]:
    """How many rows come from each rank, and all of them on their way."""
    source = tensor.detach().contiguous()
    known = torch.empty((size(), 2), dtype=torch.int64, device="cpu")
    first = source.shape[0] if source.dim() else 0
    mine = torch.tensor([first, row_signature(source.dtype, source.shape)], device="cpu")
    counted = group().all_gather_single(known, mine, Options())
    rows, signatures = Pending(counted, lambda: known.t().tolist()).wait()
    refuse_unlike("allgather", source.dtype, source.shape, signatures)
    output = source.new_empty((sum(rows), *source.shape[1:]))
    work = group().allgather([list(torch.split(output, rows))], [source], Options())
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
        return torch.split(allreduce(grad, op=Average), ctx.rows)[rank()]


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


def grouped_allgather_async(tensors: Sequence[Tensor], name: Optional[str] = None) -> Pending:
    """As `grouped_allgather`, without gradients; returns a handle."""
    return together([allgather_async(tensor) for tensor in tensors])


def grouped_allgather(tensors: Sequence[Tensor], name: Optional[str] = None) -> List[Tensor]:
    """`allgather` of several tensors."""
    return [allgather(tensor) for tensor in tensors]


def _exchanging(tensor: Tensor, sent: Tensor) -> Tuple[Pending, Tensor]:
    """So many rows of the tensor on their way to each rank, and how many come."""
    source = tensor.detach().contiguous()
    told = torch.stack([sent, torch.full_like(sent, row_signature(source.dtype, source.shape))], 1)
    heard = torch.empty_like(told)
    exchange = group().all_to_all_single(heard, told, None, None, Options())
    rows, signatures = Pending(exchange, lambda: heard.t().tolist()).wait()
    refuse_unlike("alltoall", source.dtype, source.shape, signatures)
    output = source.new_empty((sum(rows), *source.shape[1:]))
    work = group().all_to_all_single(output, source, rows, sent.tolist(), Options())
    return Pending(work, lambda: output), heard[:, 0].contiguous()


class _AllToAll(torch.autograd.Function):
    """Each row's gradient goes back to where the row came from."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sent: Tensor) -> Tuple[Tensor, Tensor]:
        coming, ctx.came = _exchanging(tensor, sent)
        ctx.mark_non_differentiable(ctx.came)
        return coming.wait(), ctx.came

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tuple[Tensor, None]:
        back: Tensor = _AllToAll.apply(grad, ctx.came)[0]
        return back, None


def alltoall(
    tensor: Tensor, splits: Optional[Any] = None, name: Optional[str] = None
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Rows of the tensor to every rank, equally many or as `splits` says; what came from each.

    With `splits` also how many rows came from each rank.
    """
    both: Tuple[Tensor, Tensor] = _AllToAll.apply(tensor, _sent(tensor, splits))
    return both[0] if splits is None else both


def alltoall_async(
    tensor: Tensor, splits: Optional[Any] = None, name: Optional[str] = None
) -> Pending:
    """As `alltoall`, without gradients; returns a handle."""
    coming, came = _exchanging(tensor, _sent(tensor, splits))
    return coming if splits is None else Pending(coming, lambda: (coming.wait(), came))


def _sent(tensor: Tensor, splits: Optional[Any]) -> Tensor:
    """How many rows go to each rank."""
    if splits is not None:
        return torch.as_tensor(splits, dtype=torch.int64, device="cpu")
    if len(tensor) % size():
        raise ValueError(f"alltoall: {len(tensor)} rows do not divide by {size()} ranks")
    return torch.full((size(),), len(tensor) // size(), device="cpu")


def _scattering(tensor: Tensor, op: ReduceOp, prescale: float, postscale: float) -> Pending:
    """This rank's rows of the reduced tensor, on their way."""
    source = scale(tensor.detach().clone(memory_format=torch.contiguous_format), prescale)
    each, more = divmod(len(source), size())
    parts = list(torch.split(source, [each + (one < more) for one in range(size())]))
    output = torch.empty_like(parts[rank()])
    work = group().reduce_scatter([output], [parts], Options(op))
    return Pending(work, lambda: scale(output, postscale))


class _ReduceScatter(torch.autograd.Function):
    """The gradient is everyone's, one after the other; that of a sum times the number of ranks."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, op: ReduceOp, prescale: float, postscale: float
    ) -> Tensor:
        ctx.op, ctx.factor = op, prescale * postscale
        part: Tensor = _scattering(tensor, op, prescale, postscale).wait()
        return part

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


def reducescatter_async(
    tensor: Tensor,
    name: Optional[str] = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """As `reducescatter`, without gradients; returns a handle."""
    return _scattering(tensor, op, prescale_factor, postscale_factor)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    compression: Dtype = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Tensor]:
    """`reducescatter` of several tensors."""
    how = (compression, op, prescale_factor, postscale_factor)
    return [reducescatter(tensor, None, *how) for tensor in tensors]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """As `grouped_reducescatter`, without gradients; returns a handle."""
    how = (op, prescale_factor, postscale_factor)
    return together([_scattering(tensor, *how) for tensor in tensors])


def barrier() -> None:
    """Wait for every rank."""
    work = group().barrier()
    if work is not None:
        work.wait()
