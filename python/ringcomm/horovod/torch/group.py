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
from ..coordinator import Coordinator
from ..job import job
from ..operations import Sum
from ..requests import Request, Signature

TORCH_OPS = {
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
        self.reduceOp, self.rootRank = TORCH_OPS[op], root


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

    def _further(self) -> Any:
        # It is this store that the ranks of further comm streams meet in, too.
        return self._store

    def _join(self, device: str, depth: int, key: str) -> CommStream:
        if (device, depth) != ("cpu", 0):
            return super()._join(device, depth, key)
        # The ranks have met, and know each other.
        own = self._comm.split(0)
        assert own is not None, "every rank has the same color"
        return CommStream(own)


class JobRanks(Ranks):
    """The ranks of the job, for layers of `ringcomm.torch` that call in one order everywhere."""

    def __init__(self, group: Group) -> None:
        super().__init__(job().comm)
        self._group = group

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = Sum, async_op: bool = False) -> Any:
        work = self._group.allreduce([tensor], Options(op))
        if not async_op and work is not None:
            work.wait()
        return work

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = tensor.new_empty((self.size, *tensor.shape))
        work = self._group.all_gather_single(gathered, tensor, Options())
        if work is not None:
            work.wait()
        return gathered


def group_of(coordinator: Coordinator) -> Group:
    """The collectives on devices of a coordinator's ranks; asked for in its order."""
    made: Optional[Group] = coordinator.of_framework.get("torch")
    if made is None:
        made = coordinator.of_framework["torch"] = Group(coordinator.comm)
    return made


def layer_ranks() -> JobRanks:
    """The job's ranks, with communicators for layers alone; the first call is every rank's."""
    coordinator = job().coordinator
    if "layers" not in coordinator.of_framework:

        def run() -> None:
            # Its comm streams are made in the threads of the layers, not in the coordinator's.
            own = coordinator.comm.split(0)
            assert own is not None, "every rank has the same color"
            coordinator.of_framework["layers"] = Group(own)

        request = Request("layers", Signature.of("layers"), lambda: None, run)
        coordinator.submit(request, soon=True).wait()
    return JobRanks(coordinator.of_framework["layers"])
