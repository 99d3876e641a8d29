"""Horovod's callbacks of `model.fit`."""

from __future__ import annotations

from typing import Any, Dict, Optional

import tensorflow as tf

from ..job import size
from .calls import allgather_object, broadcast_variables


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):
    """Everyone begins with the root's model and optimizer."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root = root_rank

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        """Before the first batch."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        broadcast_variables([*self.model.variables, *optimizer.variables], self._root)


class MetricAverageCallback(tf.keras.callbacks.Callback):
    """At the end of an epoch metrics are averaged over all ranks, for the callbacks after it."""

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """After an epoch, and its validation."""
        if not logs:
            return
        rows = allgather_object({name: float(value) for name, value in logs.items()})
        for name in logs:
            logs[name] = sum(row[name] for row in rows) / size()


class LearningRateWarmupCallback(tf.keras.callbacks.Callback):
    """The learning rate grows from `initial_lr / size()` to `initial_lr` over some epochs."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        self._rate, self._epochs, self._steps = initial_lr, warmup_epochs, steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Which epoch it is."""
        self._epoch = epoch
        self._steps = self._steps or self.params["steps"]

    def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """The rate of this batch."""
        done = (self._epoch + batch / self._steps) / self._epochs if self._epochs else 1
        if done <= 1:
            factor = (1 + done * (size() - 1)) / size()
            self.model.optimizer.learning_rate.assign(self._rate * factor)
