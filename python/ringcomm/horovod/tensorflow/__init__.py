"""Horovod's interface for TensorFlow 2: `import ringcomm.horovod.tensorflow as hvd`.

    hvd.init()
    tape = hvd.DistributedGradientTape(tape)
    hvd.broadcast_variables(model.variables, root_rank=0)

For `model.fit` there is `ringcomm.horovod.tensorflow.keras`. Calls run on the CPU, outside of XLA:
compile with `jit_compile=False`.
"""

from __future__ import annotations

from typing import Any

from .. import job as _job
from ..job import *  # noqa: F403
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
    "broadcast_variables", "grouped_allreduce",
]  # fmt: skip
_job.refuse_process_sets(globals(), __all__)
__all__ += _job.__all__


def __getattr__(name: str) -> Any:
    raise _job.missing(__name__, name)
