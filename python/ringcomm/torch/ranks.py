"""`Ranks`: those who take part in a call, whether they are a process group or a communicator.

The tools for training need few collectives. This makes them the same over a process group of
torch.distributed, of any backend, and over a plain `ringcomm.Communicator`, with which many ranks
can be threads of one process.
"""

from __future__ import annotations

from typing import Any, List, Optional, Union

import torch
import torch.distributed as dist

from ..communicator import Communicator
from .._native import ReduceOp
from .streams import Given, stream_of

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
        stream = stream_of(tensor)
        if stream is None:
            return self._comm.all_reduce(tensor, op=op, async_op=async_op)
        self._comm.all_reduce(tensor, op=op, stream=stream)
        return Given() if async_op else None

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor, along a new first dimension."""
        gathered = tensor.new_empty((self.size, *tensor.shape))
        self._comm.all_gather(tensor, gathered, stream=stream_of(tensor))
        return gathered

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Every rank gets the root's tensor in its own."""
        self._comm.broadcast(tensor, root=root, stream=stream_of(tensor))

    @property
    def device(self) -> torch.device:
        """Where figures and sizes lie that the ranks exchange."""
        number = self._comm.device
        return torch.device("cpu") if number < 0 else torch.device("cuda", number)

    def all_gather_object(self, value: Any) -> List[Any]:
        """Every rank's Python object, in the order of ranks."""
        return self._comm.all_gather_object(value)

    def broadcast_object(self, value: Any, root: int) -> Any:
        """The root's Python object; on the root, the object itself."""
        return self._comm.broadcast_object(value, root)


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
        dist.broadcast(tensor, self._global(root), group=self._group)

    @property
    def device(self) -> torch.device:
        # Where torch's own collectives of objects put them: on the CPU if the group has a backend
        # for it, as gloo and ringcomm are but nccl is not.
        group: Any = self._group or dist.group.WORLD
        kinds = [device.type for device in group._device_types]
        return torch.device("cpu" if "cpu" in kinds or not kinds else kinds[0])

    def all_gather_object(self, value: Any) -> List[Any]:
        everyone = [None] * self.size
        dist.all_gather_object(everyone, value, group=self._group)
        return everyone

    def broadcast_object(self, value: Any, root: int) -> Any:
        place = [value]
        dist.broadcast_object_list(place, self._global(root), group=self._group)
        return place[0]

    def _global(self, root: int) -> int:
        return root if self._group is None else dist.get_global_rank(self._group, root)


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
