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
from ..exceptions import HorovodInternalError
from ..job import *  # noqa: F403
from ..objects import allgather_object, broadcast_object
from ..operations import Average, Max, Min, Product, Sum
from ..process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from .calls import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from .compression import Compression
from .gradients import DistributedGradientTape
from .variables import broadcast_variables

__all__ = [
    "Average", "Compression", "DistributedGradientTape", "HorovodInternalError", "Max", "Min",
    "ProcessSet", "Product", "Sum", "add_process_set", "allgather", "allgather_object",
    "allreduce", "alltoall", "barrier", "broadcast", "broadcast_object", "broadcast_variables",
    "global_process_set", "grouped_allgather", "grouped_allreduce", "grouped_reducescatter",
    "join", "reducescatter", "remove_process_set",
]  # fmt: skip
__all__ += _job.__all__


def __getattr__(name: str) -> Any:
    raise _job.missing(__name__, name)
