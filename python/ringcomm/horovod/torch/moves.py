"""What moves rows between ranks, on the host or on a device: the parts of `calls` that run when all
ranks have come."""

from __future__ import annotations

from array import array
from typing import Any, List, Sequence, Tuple

import torch

from ..._native import ReduceOp
from ..coordinator import Coordinator
from .group import Options, group_of
from .tensors import bytes_of

Tensor = torch.Tensor


def counts_of(coordinator: Coordinator, mine: Sequence[int]) -> List[List[int]]:
    """Every rank's numbers, in the order of ranks."""
    known = array("q", bytes(8 * len(mine) * coordinator.size))
    coordinator.comm.all_gather(array("q", mine), known)
    width = len(mine)
    return [list(known[at : at + width]) for at in range(0, len(known), width)]


def exchanged_counts(coordinator: Coordinator, out: Sequence[int]) -> List[int]:
    """What each rank has said to this one."""
    back = array("q", bytes(8 * coordinator.size))
    coordinator.comm.all_to_all(array("q", out), back)
    return list(back)


def gather(coordinator: Coordinator, source: Tensor, rows: List[int]) -> Tuple[Tensor, Any]:
    """Every rank's rows, one after the other, and the work that brings them."""
    output = source.new_empty((sum(rows), *source.shape[1:]))
    if source.is_cuda:
        parts = list(torch.split(output, rows))
        return output, group_of(coordinator).allgather([parts], [source], Options())
    width = width_of(source)
    coordinator.comm.all_gather_v(
        bytes_of(source), bytes_of(output), [count * width for count in rows]
    )
    return output, None


def width_of(tensor: Tensor) -> int:
    """Bytes of a row."""
    count = tensor.element_size()
    for each in tensor.shape[1:]:
        count *= each
    return count


def exchange(
    coordinator: Coordinator, source: Tensor, out: List[int], back: List[int]
) -> Tuple[Tensor, Any]:
    """The rows that come from each rank, and the work that brings them."""
    output = source.new_empty((sum(back), *source.shape[1:]))
    if source.is_cuda:
        group = group_of(coordinator)
        return output, group.all_to_all_single(output, source, back, out, Options())
    width = width_of(source)
    coordinator.comm.all_to_all_v(
        bytes_of(source[: sum(out)]), [count * width for count in out],
        bytes_of(output), [count * width for count in back],
    )  # fmt: skip
    return output, None


def broadcast(coordinator: Coordinator, tensor: Tensor, root: int) -> Any:
    """Overwrite the tensor with the root's; the work that does it."""
    if tensor.is_cuda:
        return group_of(coordinator).broadcast([tensor], Options(root=root))
    coordinator.comm.broadcast(bytes_of(tensor), root=root)
    return None


def scatter_sum(
    coordinator: Coordinator, source: Tensor, rows: List[int], op: ReduceOp
) -> Tuple[Tensor, Any]:
    """This rank's rows of the reduced tensor, and the work that brings them."""
    parts = list(torch.split(source, rows))
    output = torch.empty_like(parts[coordinator.rank])
    if source.is_cuda:
        group = group_of(coordinator)
        return output, group.reduce_scatter([output], [parts], Options(op))
    coordinator.comm.reduce_scatter_v(
        source.reshape(-1), output.reshape(-1), [part.numel() for part in parts], op
    )
    return output, None
