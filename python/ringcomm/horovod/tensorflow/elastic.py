"""Horovod's elastic training for TensorFlow and Keras: `hvd.elastic`."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional

import tensorflow as tf

from .. import objects
from ..elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HostUpdateResult,
    ObjectState,
    State,
    run_fn,
)
from ..job import rank
from .variables import broadcast_variables

__all__ = [
    "HorovodInternalError", "HostUpdateResult", "HostsUpdatedInterrupt", "ObjectState", "State",
    "TensorFlowKerasState", "TensorFlowState", "run", "run_fn",
]  # fmt: skip


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the function that trains; `ringcomm.horovod.elastic.run` says what it does."""
    return run_fn(func, translate=_translate)


def _translate(error: BaseException) -> None:
    """Within a graph TensorFlow makes an error of its own of any; its text names the first."""
    if not isinstance(error, tf.errors.OpError):
        return
    if HorovodInternalError.__name__ in error.message:
        raise HorovodInternalError(error.message) from error
    if HostsUpdatedInterrupt.__name__ in error.message:
        raise HostsUpdatedInterrupt() from error


class _Variables(ObjectState):
    """A state of TensorFlow's variables, beside Python objects."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(objects.broadcast_object, rank, **kwargs)
        self._save_variables()

    def _variables(self) -> List[Any]:
        raise NotImplementedError

    def _save_variables(self) -> None:
        self._values = [one.numpy() for one in self._variables()]

    def save(self) -> None:
        """Keep copies of all variables and objects."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Go back to the copies. Variables that have been made since keep their values."""
        for variable, value in zip(self._variables(), self._values):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Give every rank what rank 0 has, and save it."""
        broadcast_variables(self._variables(), 0)
        self._save_variables()
        super().sync()


class TensorFlowState(_Variables):
    """Variables of TensorFlow 2, in eager mode; other arguments become attributes.

    `session` is of TensorFlow 1, which is not here.
    """

    def __init__(
        self, variables: Optional[Iterable[Any]] = None, session: Any = None, **kwargs: Any
    ) -> None:
        if session is not None:
            raise ValueError("TensorFlowState takes no session: TensorFlow 1 is not here")
        if variables is None:
            raise ValueError("TensorFlowState needs variables: TensorFlow 2 has no list of all")
        self.variables = list(variables)
        super().__init__(**kwargs)

    def _variables(self) -> List[Any]:
        return self.variables


class TensorFlowKerasState(_Variables):
    """A Keras model and its optimizer; other arguments become attributes.

    The optimizer's variables are made, if they are not there. The seeds of random layers stay each
    rank's own.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError("build the model first: model.build(input_shape)")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is None:
            raise ValueError("the model has no optimizer: compile it, or give the optimizer")
        self._build()
        super().__init__(**kwargs)

    def _build(self) -> None:
        if not self.optimizer.built:
            self.optimizer.build(self.model.trainable_variables)

    def _variables(self) -> List[Any]:
        return [*self.model.weights, *self.optimizer.variables]
