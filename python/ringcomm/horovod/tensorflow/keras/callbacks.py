"""Horovod's callbacks of `model.fit`."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Optional, Union

import tensorflow as tf

from ...job import missing, rank, size
from ...objects import allgather_object
from ..gradients import key_of
from ..variables import broadcast_variables
from .optimizer import Distributed

_Callback: Any = tf.keras.callbacks.Callback
_ModelCheckpoint: Any = tf.keras.callbacks.ModelCheckpoint


class BroadcastGlobalVariablesCallback(_Callback):  # type: ignore[misc, unused-ignore]
    """Everyone begins with the root's model and optimizer."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self._root = root_rank
        if local_variables is None:
            local_variables = []
        elif not isinstance(local_variables, (list, tuple, set)):
            local_variables = [local_variables]
        if not all(hasattr(one, "assign") for one in local_variables):
            raise ValueError("local_variables are variables, of TensorFlow or Keras")
        self._local = list(local_variables)

    def register_local_var(self, var: Any) -> None:
        """Leave this variable each rank's own."""
        self._local.append(var)

    def set_model(self, model: Any) -> None:
        """Before the training step is compiled: ranks talk outside of XLA."""
        super().set_model(model)
        if isinstance(getattr(model, "optimizer", None), Distributed):
            model.jit_compile = False

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        """Before the first batch."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        local = {key_of(one) for one in self._local}
        # Not model.variables: every rank draws its own dropout masks, from its own seeds.
        everything = [*self.model.weights, *optimizer.variables]
        broadcast_variables([one for one in everything if key_of(one) not in local], self._root)


class MetricAverageCallback(_Callback):  # type: ignore[misc, unused-ignore]
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


class LearningRateScheduleCallback(_Callback):  # type: ignore[misc, unused-ignore]
    """From `start_epoch` until before `end_epoch` the learning rate is `initial_lr` times
    `multiplier`: a function of the epoch, or the factor of each epoch.

    With `staircase` it changes with epochs, else with batches, of which the epoch then is so many
    and a fraction. `momentum_correction` is for optimizers whose momentum is a variable: those of
    Keras have none.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Union[float, Callable[[float], float]],
        start_epoch: int = 0,
        end_epoch: Optional[float] = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is needed: the rate at the start of training")
        self._rate, self._first, self._end = initial_lr, start_epoch, end_epoch
        self._staircase, self._correct = staircase, momentum_correction
        self._steps: Optional[int] = steps_per_epoch
        self._epoch = 0
        self._momentum: Optional[float] = None
        self._multiplier = multiplier

    def _factor(self, epoch: float) -> float:
        if callable(self._multiplier):
            return self._multiplier(epoch)
        return float(self._multiplier ** (epoch - self._first))

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Which epoch it is."""
        self._epoch = epoch
        self._steps = self._steps or self.params.get("steps")
        if self._steps is None and not self._staircase:
            raise ValueError("Keras does not know an epoch's number of steps: give steps_per_epoch")

    def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """The rate of this batch."""
        if self._epoch < self._first or (self._end is not None and self._epoch >= self._end):
            return
        if not self._staircase:
            assert self._steps is not None
            self._set(self._epoch + batch / self._steps)
        elif batch == 0:
            self._set(self._epoch)

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, rate = float(optimizer.learning_rate), self._rate * self._factor(epoch)
        optimizer.learning_rate.assign(rate)
        momentum = getattr(optimizer, "momentum", None)
        if not self._correct or before in (0, rate) or momentum is None or float(momentum) == 0:
            return
        if not hasattr(momentum, "assign"):
            warnings.warn(
                "momentum_correction has no effect: the momentum of this optimizer is a number in "
                "its compiled step, not a variable",
                stacklevel=2,
            )
            self._correct = False
            return
        self._momentum = float(momentum)
        momentum.assign(self._momentum * rate / before)

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """The momentum was another for this batch alone."""
        if self._momentum is not None:
            self.model.optimizer.momentum.assign(self._momentum)
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """The learning rate is one of the logs, for callbacks after this one."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """The learning rate grows from `initial_lr / size()` to `initial_lr` over some epochs."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ) -> None:
        def grown(epoch: float) -> float:
            # The rate of the first batch has grown by one batch.
            assert self._steps is not None
            done = min((epoch + 1 / self._steps) / warmup_epochs, 1)
            return (1 + done * (size() - 1)) / size()

        super().__init__(
            initial_lr, grown, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self._epochs, self._verbose = warmup_epochs, verbose

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """After the last epoch of the warm-up, if `verbose`, rank 0 says so."""
        super().on_epoch_end(epoch, logs)
        if self._verbose and rank() == 0 and epoch < self._epochs <= epoch + 1:
            print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to {self._rate:g}.")


class BestModelCheckpoint(_ModelCheckpoint):  # type: ignore[misc, unused-ignore]
    """Keras's `ModelCheckpoint` of the best model. Where it is kept is said by `filepath`, here or
    as an attribute later."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath or f"unset{ending}", monitor=monitor, verbose=verbose, save_best_only=True,
            save_weights_only=save_weights_only, mode=mode, save_freq=save_freq,
        )  # fmt: skip
        self.filepath = filepath

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        """Before the first batch."""
        super().on_train_begin(logs)
        if not self.filepath:
            raise ValueError("BestModelCheckpoint does not know where to: set its filepath")


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
