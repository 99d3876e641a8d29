"""Horovod's interface for TensorFlow: `import ringcomm.horovod.tensorflow as hvd`.

    hvd.init()
    tape = hvd.DistributedGradientTape(tape)
    hvd.broadcast_variables(model.variables, root_rank=0)

Programs in the style of TensorFlow 1 use `DistributedOptimizer` and `BroadcastGlobalVariablesHook`
through `tf.compat.v1`. For `model.fit` there is `ringcomm.horovod.tensorflow.keras`. Calls run on
the CPU, outside of XLA: compile with `jit_compile=False`.
"""

from __future__ import annotations

from typing import Any

from . import elastic
from .. import job as _job
from ..common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from ..exceptions import HorovodInternalError
from ..job import *  # noqa: F403
from ..operations import Adasum, Average, Max, Min, Product, Sum
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
from .gradients import DistributedGradientTape, PartialDistributedGradientTape
from .optimizer import DistributedOptimizer
from .ranks import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .sync_batch_norm import SyncBatchNormalization
from .variables import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)

__all__ = [
    "Adasum", "Average", "BroadcastGlobalVariablesHook", "Compression", "DistributedGradientTape",
    "DistributedOptimizer", "HorovodInternalError", "Max", "Min", "PartialDistributedGradientTape",
    "ProcessSet", "Product", "Sum", "SyncBatchNormalization", "add_process_set", "allgather",
    "allgather_object", "allreduce", "alltoall", "barrier", "broadcast", "broadcast_",
    "broadcast_global_variables", "broadcast_object", "broadcast_object_fn", "broadcast_variables",
    "check_num_rank_power_of_2", "elastic", "global_process_set", "grouped_allgather", "grouped_allreduce",
    "grouped_reducescatter", "join", "local_rank_op", "local_size_op", "process_set_included_op",
    "rank_op", "reducescatter", "remove_process_set", "size_op",
]  # fmt: skip
__all__ += _job.__all__


def __getattr__(name: str) -> Any:
    raise _job.missing(__name__, name)
