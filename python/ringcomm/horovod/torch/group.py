"""The ranks of the job as torch's collectives see them: comm streams of `ringcomm.torch`, without
torch's process groups and stores."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any, Dict, Optional

import torch
from torch._C._distributed_c10d import ReduceOp as TorchOp

from ..._native import ReduceOp
from ...communicator import Communicator
from ...torch.comm_stream import CommStream
from ...torch.core import Core
from ...torch.ranks import Ranks
from ..job import job
from ..operations import Sum
from .pending import Pending

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
    """What `Core` asks of a store: rank 0's words, which every other rank asks for."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._heard: Dict[str, bytes] = {}
        #: Threads may make comm streams at the same time.
        self._speaking = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        """Rank 0 says it."""
        with self._speaking:
            self._comm.broadcast_object((key, value))

    def get(self, key: str) -> bytes:
        """The others hear it, and before it what rank 0's other threads have said."""
        with self._speaking:
            while key not in self._heard:
                said, value = self._comm.broadcast_object()
                self._heard[said] = value
            return self._heard.pop(key)

    def wait(self, keys: Any, timeout: Any) -> None:
        """`get` waits."""

    def delete_key(self, key: str) -> None:
        """Nothing is kept."""


class Group(Core):
    """Collectives over the job's ranks."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        # Five minutes, as the library itself waits where nothing is said.
        timeout = int(os.environ.get("RINGCOMM_TIMEOUT_MS", "300000"))
        self._set_up(_BroadcastStore(comm), comm.rank, comm.nranks, timedelta(milliseconds=timeout))

    def _join(self, device: str, depth: int, key: str) -> CommStream:
        if (device, depth) != ("cpu", 0):
            return super()._join(device, depth, key)
        # The ranks have met, and know each other.
        own = self._comm.split(0)
        assert own is not None, "every rank has the same color"
        return CommStream(own)


class JobRanks(Ranks):
    """The ranks of the job, for the tools of `ringcomm.torch`."""

    def __init__(self, group: Group) -> None:
        # Objects and their like go through the communicator; the collectives are the group's.
        super().__init__(job().comm)
        self._group = group

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = Sum, async_op: bool = False) -> Any:
        work = Pending(self._group.allreduce([tensor], Options(op)), lambda: tensor)
        return work if async_op else work.wait()

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = tensor.new_empty((self.size, *tensor.shape))
        work = self._group.all_gather_single(gathered, tensor, Options())
        got: torch.Tensor = Pending(work, lambda: gathered).wait()
        return got

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        Pending(self._group.broadcast([tensor], Options(root=root)), lambda: tensor).wait()


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
