"""The moves between devices of one process: broadcast, scatter, gather, each with its backward.

One thread makes the calls of every rank, in one group. Rank r is device r, and the module lies on
rank 0: broadcast's backward is a reduce to rank 0, scatter's a gather, and the other way round. A
backward is a move with a backward again, so gradients of gradients go the same ways.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, Callable, Iterable, List, Sequence, Tuple

import torch

from ..communicator import Communicator
from ..groups import group
from .streams import stream_of
from .types import as_real, as_seen

Ranks = Sequence[Communicator]
Devices = Sequence[torch.device]
Move = Tuple[Communicator, Communicator, torch.Tensor, torch.Tensor]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy, in one block of memory."""
    return as_seen(tensor.detach()).contiguous()


def _exchange(moves: Iterable[Move]) -> None:
    """For each (sender, receiver, source, target): fill the target from the source, both whole."""
    moves = list(moves)
    with group():
        for sender, receiver, source, target in moves:
            if sender is not receiver and source.numel():
                sender.send(as_real(source), receiver.rank, stream=stream_of(source))
                receiver.recv(as_real(target), sender.rank, stream=stream_of(target))
    for sender, receiver, source, target in moves:
        if sender is receiver:
            target.copy_(source)


def copies_of(
    tensors: Sequence[torch.Tensor], ranks: Ranks, devices: Devices
) -> List[List[torch.Tensor]]:
    """For each tensor, itself for rank 0 and a copy on each other device."""
    answer = []
    with group():
        for tensor in tensors:
            whole = _whole(tensor)
            copies = [torch.empty_like(whole, device=device) for device in devices[1:]]
            for rank, copy in zip(ranks, [whole, *copies]):
                rank.broadcast(as_real(copy), root=0, stream=stream_of(copy))
            answer.append([tensor, *copies])
    return answer


class Broadcast(torch.autograd.Function):
    """Tensors of rank 0 to copies on every rank, in the order (rank, tensor)."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, devices: Devices, *tensors: torch.Tensor) -> Any:
        ctx.ranks, ctx.devices = ranks, devices
        by_tensor = copies_of([tensor.detach() for tensor in tensors], ranks, devices)
        return tuple(copies[rank] for rank in range(len(ranks)) for copies in by_tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (None, None, *Reduce.apply(ctx.ranks, ctx.devices, *grads))


class Reduce(torch.autograd.Function):
    """Tensors of every rank, in the order (rank, tensor), to their sums on rank 0."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, devices: Devices, *tensors: torch.Tensor) -> Any:
        ctx.ranks, ctx.devices = ranks, devices
        if any(tensor.layout is not torch.strided for tensor in tensors):
            raise ValueError(
                "a gradient of a replica is sparse, and DataParallel adds dense ones; make its "
                "layer with sparse=False"
            )
        count = len(tensors) // len(ranks)
        rows = [
            [_whole(tensor) for tensor in tensors[start : start + count]]
            for start in range(0, len(tensors), count)
        ]
        sums = [torch.empty_like(tensor) for tensor in rows[0]]
        with group():
            for index, total in enumerate(sums):
                for number, rank in enumerate(ranks):
                    row, into = rows[number][index], as_real(total) if number == 0 else None
                    rank.reduce(as_real(row), into, root=0, stream=stream_of(row))
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (None, None, *Broadcast.apply(ctx.ranks, ctx.devices, *grads))


class Scatter(torch.autograd.Function):
    """A tensor on the root's device to a piece, of one of these sizes, on each device."""

    @staticmethod
    def forward(
        ctx: Any,
        ranks: Ranks,
        devices: Devices,
        root: int,
        dim: int,
        sizes: List[int],
        tensor: torch.Tensor,
    ) -> Tuple[torch.Tensor, ...]:
        ctx.gathered = ranks, tensor.device, root, dim
        cut = [_whole(piece) for piece in torch.split(tensor, sizes, dim)]
        pieces = [torch.empty_like(piece, device=where) for piece, where in zip(cut, devices)]
        _exchange(zip(repeat(ranks[root]), ranks, cut, pieces))
        return tuple(pieces)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, None, None, None, Gather.apply(*ctx.gathered, *grads)


class Gather(torch.autograd.Function):
    """A piece on each rank to one tensor on the root's device."""

    @staticmethod
    def forward(
        ctx: Any, ranks: Ranks, device: torch.device, root: int, dim: int, *pieces: torch.Tensor
    ) -> torch.Tensor:
        devices, sizes = [one.device for one in pieces], [one.shape[dim] for one in pieces]
        ctx.scattered = ranks, devices, root, dim, sizes
        sources = [_whole(piece) for piece in pieces]
        targets = [torch.empty_like(source, device=device) for source in sources]
        _exchange(zip(ranks, repeat(ranks[root]), sources, targets))
        return torch.cat(targets, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (None, None, None, None, *Scatter.apply(*ctx.scattered, grad))


def scatter(value: Any, ranks: Ranks, devices: Devices, dim: int) -> List[Any]:
    """The value's piece for each device that gets one: tensors are cut, all else is the same.

    As torch.nn.DataParallel does, in tuples, lists and dicts too, and with as many pieces as the
    shortest tensor makes. Without any tensor there is one piece.
    """

    def cut(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        if tensor.device != devices[0] and tensor.device.type == "cpu":
            tensor = tensor.to(devices[0])
        count = tensor.shape[dim]
        sizes = [len(part) for part in torch.arange(count, device="cpu").chunk(len(ranks))]
        pieces: Sequence[torch.Tensor] = Scatter.apply(ranks, devices, 0, dim, sizes, tensor)
        return pieces

    lengths: List[int] = []
    pieces = _spread(value, len(ranks), cut, lengths)
    return pieces[: min(lengths, default=1)]


def placed(value: Any, device: torch.device) -> Any:
    """The value with its tensors on this device, whole."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        items = [placed(one, device) for one in value]
        # What holds nothing that moves stays the caller's own.
        same = all(new is old for new, old in zip(items, value))
        return value if same else _rebuilt(value, items)
    if isinstance(value, dict):
        fields = {key: placed(one, device) for key, one in value.items()}
        same = all(fields[key] is one for key, one in value.items())
        return value if same else type(value)(fields.items())
    return value


def _spread(
    value: Any, most: int, cut: Callable[[torch.Tensor], Sequence[torch.Tensor]], lengths: List[int]
) -> List[Any]:
    """A list of `most` values; `lengths` learns how many pieces each tensor made."""
    if isinstance(value, torch.Tensor):
        pieces = list(cut(value))
        lengths.append(len(pieces))
        return pieces + [value[:0]] * (most - len(pieces))
    if isinstance(value, (tuple, list)):
        columns = [_spread(one, most, cut, lengths) for one in value]
        rows = [[column[index] for column in columns] for index in range(most)]
        return [_rebuilt(value, row) for row in rows]
    if isinstance(value, dict):
        columns = [_spread(one, most, cut, lengths) for one in value.values()]
        return [
            type(value)(zip(value, (column[index] for column in columns))) for index in range(most)
        ]
    return [value] * most


def _rebuilt(like: Any, items: List[Any]) -> Any:
    """A tuple, named tuple or list with these items."""
    if hasattr(like, "_fields"):
        return type(like)(*items)
    return type(like)(items)


def gather(outputs: Sequence[Any], ranks: Ranks, devices: Devices, root: int, dim: int) -> Any:
    """The replicas' outputs put together on the root's device, in tuples, lists and dicts too."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        # Scalars, as losses are, come back as a vector with one of each device.
        pieces = [piece.reshape(1) if piece.dim() == 0 else piece for piece in outputs]
        along = 0 if first.dim() == 0 else dim
        return Gather.apply(ranks, devices[root], root, along, *pieces)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(list(one) != list(first) for one in outputs):
            raise ValueError("the replicas' outputs are dicts with different keys; return the same")
        return type(first)(
            (key, gather([one[key] for one in outputs], ranks, devices, root, dim)) for key in first
        )
    if isinstance(first, (tuple, list)):
        columns = zip(*outputs)
        return _rebuilt(first, [gather(one, ranks, devices, root, dim) for one in columns])
    raise TypeError(
        f"a replica's output has a {type(first).__name__}, and only tensors can be gathered; "
        "return tensors, in tuples, lists or dicts"
    )
