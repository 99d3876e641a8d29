"""Horovod's interface for TensorFlow 2: `import ringcomm.horovod.tensorflow as hvd`.

    hvd.init()
    tape = hvd.DistributedGradientTape(tape)
    hvd.broadcast_variables(model.variables, root_rank=0)

For `model.fit` there is `ringcomm.horovod.tensorflow.keras`. Calls run on the CPU, outside of XLA:
compile with `jit_compile=False`.
"""

from __future__ import annotations

from typing import Any

from ..job import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    missing,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from ..operations import Average, Max, Min, Product, Sum
from .calls import (
    Compression,
    allgather,
    allgather_object,
    allreduce,
    barrier,
    broadcast,
    broadcast_object,
    broadcast_variables,
    grouped_allreduce,
)
from .gradients import DistributedGradientTape

__all__ = [
    "Average", "Compression", "DistributedGradientTape", "Max", "Min", "Product", "Sum",
    "allgather", "allgather_object", "allreduce", "barrier", "broadcast", "broadcast_object",
    "broadcast_variables", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "gloo_built", "gloo_enabled", "grouped_allreduce", "init", "is_homogeneous", "is_initialized",
    "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built",
    "rank", "rocm_built", "shutdown", "size",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
