"""Horovod's interface for Keras: `import ringcomm.horovod.tensorflow.keras as hvd`.

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    model.compile(loss=..., optimizer=optimizer, jit_compile=False)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Gradients are averaged over all ranks before each step.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional

import tensorflow as tf

from . import callbacks, elastic
from .. import (
    Average,
    Compression,
    ProcessSet,
    Sum,
    add_process_set,
    allgather,
    allgather_object,
    barrier,
    broadcast,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
    global_process_set,
    remove_process_set,
)
from .. import allreduce as _allreduce
from .. import reducescatter as _reducescatter
from ... import job as _job
from ...job import *  # noqa: F403
from ..gradients import Exchange
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer, check, distribute

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "PartialDistributedOptimizer", "ProcessSet",
    "Sum", "add_process_set", "allgather", "allgather_object", "allreduce", "barrier", "broadcast",
    "broadcast_global_variables", "broadcast_object", "broadcast_variables", "callbacks", "elastic",
    "global_process_set", "load_model", "reducescatter", "remove_process_set",
]  # fmt: skip
__all__ += _job.__all__


def load_model(
    filepath: Any,
    custom_optimizers: Optional[Iterable[Any]] = None,
    custom_objects: Optional[Dict[str, Any]] = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A saved model whose optimizer, with its state, averages gradients over all ranks.

    `custom_optimizers` are classes of optimizers that are not Keras's.
    """
    if legacy_opts:
        raise ValueError("Keras 3 has no legacy optimizers: leave legacy_opts=False")
    objects = {one.__name__: one for one in custom_optimizers or ()}
    objects.update(custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        check(model.optimizer)
        distribute(model.optimizer, Exchange(compression))
        model.jit_compile = False
    return model


def reducescatter(
    value: Any,
    name: Optional[str] = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """This rank's share of the average, or what `op` says, of every rank's value."""
    return _reducescatter(value, op=op, name=name, process_set=process_set)


def allreduce(
    value: Any,
    name: Optional[str] = None,
    average: Optional[bool] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The average of every rank's value, or what `op` says: `allreduce` of
    `ringcomm.horovod.tensorflow` in the order of Horovod's Keras."""
    return _allreduce(
        value,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
    )


def __getattr__(name: str) -> Any:
    raise _job.missing(__name__, name)
