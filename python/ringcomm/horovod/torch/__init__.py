"""Horovod's interface for PyTorch: `import ringcomm.horovod.torch as hvd`.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Start the program with `ringrun -np 4 python train.py`, or whatever started it before.
"""

from __future__ import annotations

from typing import Any

from ...torch import Compression
from .. import job as _job
from ..job import *  # noqa: F403
from ..operations import Average, Max, Min, Product, Sum
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
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
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
from .state import (
    SyncBatchNorm,
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "Max", "Min", "Product", "Sum",
    "SyncBatchNorm", "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast",
    "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "poll", "reducescatter", "reducescatter_async", "synchronize",
]  # fmt: skip
_job.refuse_process_sets(globals(), __all__)
__all__ += _job.__all__


def __getattr__(name: str) -> Any:
    raise _job.missing(__name__, name)
