"""Horovod's elastic training for Keras: `hvd.elastic` of `ringcomm.horovod.tensorflow.keras`.

    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state),
    ]
"""

from __future__ import annotations

from typing import Any, Dict, Optional

import tensorflow as tf

from ..elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    State,
    TensorFlowKerasState,
    run,
)

__all__ = [
    "CommitStateCallback", "HorovodInternalError", "HostsUpdatedInterrupt", "KerasState",
    "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run",
]  # fmt: skip

KerasState = TensorFlowKerasState
Logs = Optional[Dict[str, Any]]


class CommitStateCallback(tf.keras.callbacks.Callback):
    """Commit after so many batches, and after every epoch. Put it behind those that update the
    state."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state, self._each = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """Ranks count from the same batch on."""
        self._left = self._each

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """After a batch."""
        self._left -= 1
        if self._left == 0:
            self._left = self._each
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """After an epoch."""
        self._state.commit()


class UpdateBatchStateCallback(tf.keras.callbacks.Callback):
    """`state.batch` is the number of batches of the epoch that are done.

    `fit` does not know of it: give its `steps_per_epoch` and data so that an epoch that goes on
    has only what is left.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state, self._before = state, 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """The first epoch goes on where it was."""
        self._before = self._state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """After a batch."""
        self._state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """After an epoch."""
        self._state.batch = self._before = 0


class UpdateEpochStateCallback(tf.keras.callbacks.Callback):
    """`state.epoch` is the number of epochs that are done, over all calls of `fit`."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state, self._before = state, state.epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """`fit` counts from 0."""
        self._before = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """After an epoch."""
        self._state.epoch = self._before + epoch + 1
