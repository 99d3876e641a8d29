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
from ..job import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    missing,
    rank,
    shutdown,
    size,
)
from .calls import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce,
    grouped_allreduce_,
    poll,
    reducescatter,
    synchronize,
)
from .group import Average, Max, Min, Product, Sum
from .optimizer import DistributedOptimizer
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
    "allreduce_async", "allreduce_async_", "alltoall", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "cross_rank", "cross_size", "grouped_allreduce", "grouped_allreduce_",
    "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "poll", "rank",
    "reducescatter", "shutdown", "size", "synchronize",
]  # fmt: skip


def _built() -> bool:
    """False: what Horovod may be built with does not matter here."""
    return False


mpi_threads_supported = mpi_enabled = mpi_built = gloo_enabled = gloo_built = _built
nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _built


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
