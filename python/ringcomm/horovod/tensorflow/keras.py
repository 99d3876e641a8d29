"""Horovod's interface for Keras: `import ringcomm.horovod.tensorflow.keras as hvd`.

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    model.compile(loss=..., optimizer=optimizer, jit_compile=False)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Gradients are averaged over all ranks before each step.
"""

from __future__ import annotations

from typing import Any, Optional

from . import callbacks
from . import (
    Average,
    Compression,
    Sum,
    allgather,
    allgather_object,
    barrier,
    broadcast,
    broadcast_object,
)
from .. import job as _job
from ..job import *  # noqa: F403
from ..process_sets import ProcessSet, global_process_set
from .calls import allreduce as _allreduce
from .gradients import Exchange

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "Sum", "allgather", "allgather_object",
    "allreduce", "barrier", "broadcast", "broadcast_object", "callbacks",
]  # fmt: skip
__all__ += _job.__all__


class Distributed:
    """What `DistributedOptimizer` adds to the class of an optimizer."""

    _exchange: Optional[Exchange] = None

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras takes its own factor from an optimizer that it puts into a LossScaleOptimizer.
        if name == "loss_scale_factor" and value is None and self._exchange is not None:
            raise ValueError(
                "a LossScaleOptimizer around a DistributedOptimizer, as compile makes it under "
                "mixed_float16, would leave out a step on one rank alone: give compile "
                "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), or "
                "auto_scale_loss=False"
            )
        super().__setattr__(name, value)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Average the gradients over all ranks, and step."""
        assert self._exchange is not None
        return super().apply(self._exchange.all(list(grads)), trainable_variables)


def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new optimizer with the settings of this one, which averages gradients over all ranks before
    every step.

    To scale the loss, as mixed_float16 needs it, give it a `LossScaleOptimizer`: that looks for an
    overflow in what it gets, which has to be the same on every rank.

    To accumulate, give the optimizer `gradient_accumulation_steps`; every pass is then exchanged.
    `num_groups` and `groups` are without effect: dense gradients travel together.
    """
    if backward_passes_per_step != 1:
        raise ValueError(
            "backward_passes_per_step is gradient_accumulation_steps of Keras's optimizer, which "
            "averages the passes; give it there"
        )
    kind = type(optimizer)
    made = type(kind.__name__, (Distributed, kind), {}).from_config(optimizer.get_config())
    made._exchange = Exchange(
        compression, op, sparse_as_dense, gradient_predivide_factor, process_set
    )
    return made


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
