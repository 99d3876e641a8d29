"""Horovod's interface for Keras: `import ringcomm.horovod.tensorflow.keras as hvd`.

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    model.compile(loss=..., optimizer=optimizer, jit_compile=False)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Gradients are averaged over all ranks before each step.
"""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from ..._native import ReduceOp
from . import callbacks
from . import (
    Average,
    Compression,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    barrier,
    broadcast,
    broadcast_object,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from .gradients import Exchange

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "Sum", "allgather", "allgather_object",
    "allreduce", "barrier", "broadcast", "broadcast_object", "callbacks", "init",
    "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size",
]  # fmt: skip


class Distributed:
    """What `DistributedOptimizer` adds to the class of an optimizer."""

    _ring: Exchange

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Average the gradients over all ranks, and step."""
        return super().apply(self._ring.all(list(grads)), trainable_variables)


def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Optional[tf.DType] = None,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
) -> Any:
    """A new optimizer with the settings of this one, which averages gradients over all ranks before
    every step. To accumulate, give the optimizer `gradient_accumulation_steps`."""
    kind = type(optimizer)
    made = type(kind.__name__, (Distributed, kind), {}).from_config(optimizer.get_config())
    made._ring = Exchange(compression, op, sparse_as_dense)
    return made
