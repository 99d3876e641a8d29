"""The ranks of the job as torch's collectives see them: lanes of `ringcomm.torch`, without torch's
process groups and stores."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Optional

import torch
from torch._C._distributed_c10d import ReduceOp as TorchOp

from ..._native import ReduceOp
from ...communicator import Communicator
from ...torch.core import Core
from ...torch.ranks import Ranks
from ..job import job
from ..operations import Sum

_OPS = {
    ReduceOp.AVG: TorchOp.AVG,
    ReduceOp.SUM: TorchOp.SUM,
    ReduceOp.PROD: TorchOp.PRODUCT,
    ReduceOp.MIN: TorchOp.MIN,
    ReduceOp.MAX: TorchOp.MAX,
}


class Options:
    """What c10d's options say, for calls that return a work at once."""

    asyncOp = True

    def __init__(self, op: ReduceOp = Sum, root: int = 0) -> None:
        self.reduceOp, self.rootRank = _OPS[op], root


class _BroadcastStore:
    """What `Core` asks of a store: rank 0's word, for everyone, in the order in which all ask."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def set(self, key: str, value: bytes) -> None:
        """Rank 0 says it."""
        self._comm.broadcast_object(value)

    def get(self, key: str) -> bytes:
        """The others hear it."""
        said: bytes = self._comm.broadcast_object()
        return said

    def wait(self, keys: Any, timeout: Any) -> None:
        """`get` waits."""

    def delete_key(self, key: str) -> None:
        """Nothing is kept."""


class Group(Core):
    """Collectives over the job's ranks."""

    def __init__(self, comm: Communicator) -> None:
        # Five minutes, as the library itself waits where nothing is said.
        timeout = int(os.environ.get("RINGCOMM_TIMEOUT_MS", "300000"))
        self._set_up(_BroadcastStore(comm), comm.rank, comm.nranks, timedelta(milliseconds=timeout))


class JobRanks(Ranks):
    """The ranks of the job, for the tools of `ringcomm.torch`."""

    def __init__(self, group: Group) -> None:
        # `Ranks` begins with a communicator; the collectives here are the group's.
        self._group = group
        self.rank, self.size = group.rank(), group.size()

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = Sum, async_op: bool = False) -> Any:
        work = self._group.allreduce([tensor], Options(op))
        if async_op:
            return work
        return work.wait()

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = tensor.new_empty((self.size, *tensor.shape))
        self._group.all_gather_single(gathered, tensor, Options()).wait()
        return gathered

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self._group.broadcast([tensor], Options(root=root)).wait()


def group() -> Group:
    """The job's collectives; made by the first call that needs them."""
    here = job()
    made: Optional[Group] = here.of_framework.get("torch")
    if made is None:
        made = here.of_framework["torch"] = Group(here.comm)
    return made


def ranks() -> JobRanks:
    """The job's ranks, for the tools of `ringcomm.torch`."""
    return JobRanks(group())
