"""`Ranks`: those who take part in a call, whether they are a process group or a communicator.

The tools for training need few collectives. This makes them the same over a process group of
torch.distributed, of any backend, and over a plain `ringcomm.Communicator`, with which many ranks
can be threads of one process.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from ..communicator import Communicator
from .._native import ReduceOp

#: What the tools take as `group=`: None is the default process group.
Group = Union[None, Communicator, "Ranks", "dist.ProcessGroup"]

_TORCH_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}


class Ranks:
    """The ranks of a communicator. Tensors are contiguous, and of one shape on every rank."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.nranks

    def all_reduce(
        self, tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Any:
        """Reduce in place over all ranks; with `async_op`, what is returned has a `wait`."""
        return self._comm.all_reduce(tensor, op=op, async_op=async_op)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor, along a new first dimension."""
        gathered = tensor.new_empty((self.size, *tensor.shape))
        self._comm.all_gather(tensor, gathered)
        return gathered

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Every rank gets the root's tensor in its own."""
        self._comm.broadcast(tensor, root=root)


class _GroupRanks(Ranks):
    """The ranks of a process group."""

    def __init__(self, group: Optional["dist.ProcessGroup"]) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in that group; only its members make the call")

    def all_reduce(
        self, tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Any:
        return dist.all_reduce(tensor, _TORCH_OPS[op], group=self._group, async_op=async_op)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = tensor.new_empty((self.size, *tensor.shape))
        # A list of slices, because gloo gathers into one tensor in newer releases only.
        dist.all_gather(list(gathered.unbind(0)), tensor, group=self._group)
        return gathered

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        if self._group is not None:
            root = dist.get_global_rank(self._group, root)
        dist.broadcast(tensor, root, group=self._group)


def ranks_of(group: Group) -> Ranks:
    """The ranks that `group=` means."""
    if isinstance(group, Ranks):
        return group
    if isinstance(group, Communicator):
        return Ranks(group)
    if group is None and not dist.is_initialized():
        raise RuntimeError(
            'there is no process group: call torch.distributed.init_process_group("ringcomm") '
            "first, or give a ringcomm.Communicator as group="
        )
    return _GroupRanks(group)
