"""Horovod's interface for PyTorch: `import ringcomm.horovod.torch as hvd`.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Start the program with `ringrun -np 4 python train.py`, or whatever started it before.
"""

from __future__ import annotations

from typing import Any

from . import elastic
from .. import job as _job
from ..exceptions import HorovodInternalError
from ..job import *  # noqa: F403
from ..objects import allgather_object, broadcast_object
from ..operations import Adasum, Average, Max, Min, Product, Sum
from ..process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from .calls import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    join,
    sparse_allreduce_async,
)
from .compression import Compression
from .optimizer import DistributedOptimizer
from .pending import poll, synchronize
from .reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from .scatters import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from .state import SyncBatchNorm, broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "Max",
    "Min", "ProcessSet", "Product", "Sum", "SyncBatchNorm", "add_process_set", "allgather",
    "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "elastic", "global_process_set", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "join",
    "poll", "reducescatter", "reducescatter_async", "remove_process_set", "sparse_allreduce_async",
    "synchronize",
]  # fmt: skip
__all__ += _job.__all__


def __getattr__(name: str) -> Any:
    raise _job.missing(__name__, name)
