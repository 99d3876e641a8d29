"""Horovod's callbacks of `model.fit`."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional

import tensorflow as tf

from ..job import missing, rank, size
from ..objects import allgather_object
from .variables import broadcast_variables


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):
    """Everyone begins with the root's model and optimizer."""

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Optional[Iterable[Any]] = None
    ) -> None:
        super().__init__()
        self._root = root_rank
        self._local = {id(one) for one in local_variables or ()}

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        """Before the first batch."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        # Not model.variables: every rank draws its own dropout masks, from its own seeds.
        everything = [*self.model.weights, *optimizer.variables]
        broadcast_variables([one for one in everything if id(one) not in self._local], self._root)


class MetricAverageCallback(tf.keras.callbacks.Callback):
    """At the end of an epoch metrics are averaged over all ranks, for the callbacks after it."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """After an epoch, and its validation."""
        if not logs:
            return
        rows = allgather_object({name: float(value) for name, value in logs.items()})
        for name in logs:
            logs[name] = sum(row[name] for row in rows) / size()


class LearningRateWarmupCallback(tf.keras.callbacks.Callback):
    """The learning rate grows from `initial_lr / size()` to `initial_lr` over some epochs.

    `momentum_correction` is without effect: Keras's optimizers do not change their momentum.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        self._rate, self._epochs, self._steps = initial_lr, warmup_epochs, steps_per_epoch
        self._verbose = verbose
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Which epoch it is."""
        self._epoch = epoch
        self._steps = self._steps or self.params["steps"]

    def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """The rate of this batch: that of the first has grown by one batch."""
        if self._epoch < self._epochs:
            done = min((self._epoch + (batch + 1) / self._steps) / self._epochs, 1)
            factor = (1 + done * (size() - 1)) / size()
            self.model.optimizer.learning_rate.assign(self._rate * factor)

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """After the last epoch of the warm-up, if `verbose`, rank 0 says so."""
        if self._verbose and rank() == 0 and epoch < self._epochs <= epoch + 1:
            print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to {self._rate:g}.")


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
