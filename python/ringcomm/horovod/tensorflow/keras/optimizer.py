"""Horovod's `DistributedOptimizer` for optimizers of Keras 3."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional

import tensorflow as tf

from ...operations import Average, Sum
from ...process_sets import ProcessSet, global_process_set
from ..aggregation import Passes
from ..compression import Compression
from ..gradients import Exchange


class Distributed:
    """What `DistributedOptimizer` adds to the class of an optimizer."""

    _exchange: Optional[Exchange] = None
    _passes: Optional[Passes] = None

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

    def register_local_var(self, var: Any) -> None:
        """Let the gradient of this variable stay each rank's own."""
        assert self._exchange is not None
        self._exchange.local.add(var)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Average the gradients over all ranks, and step."""
        assert self._exchange is not None
        me: Any = self
        given = me._trainable_variables if trainable_variables is None else trainable_variables
        variables, gradients = list(given), list(grads)
        step: Any = getattr(super(), "apply")
        if self._passes is None:
            return step(self._exchange.all(gradients, variables), variables)
        if not me.built:
            # Not in a branch, where variables cannot be made.
            me.build(variables)

        def last(sums: Any) -> Any:
            step(sums, variables)
            return tf.constant(True)

        def other() -> Any:
            me.iterations.assign_add(1)
            return tf.constant(False)

        return self._passes.add(gradients, variables, last, other)


_kinds: Dict[type, type] = {}


def _kind_of(optimizer: Any) -> type:
    """The class of such optimizers, which a saved model names as that of the optimizer alone."""
    kind = type(optimizer)
    if kind not in _kinds:
        its = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        _kinds[kind] = type(kind.__name__, (Distributed, kind), its)
    return _kinds[kind]


def distribute(optimizer: Any, exchange: Exchange, passes: int = 1, average: bool = False) -> Any:
    """Make this optimizer itself one that exchanges gradients; its state stays."""
    if not isinstance(optimizer, Distributed):
        optimizer.__class__ = _kind_of(optimizer)
    made = Passes(passes, average, exchange) if passes != 1 else None
    optimizer._exchange, optimizer._passes = exchange, made
    return optimizer


def check(optimizer: Any) -> None:
    """Raise for what is no optimizer of Keras that can be made a distributed one."""
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise ValueError(f"DistributedOptimizer is for optimizers of Keras; {optimizer!r} is none")
    if isinstance(optimizer, Distributed):
        raise ValueError(f"{optimizer!r} is a DistributedOptimizer already")


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
    scale_local_gradients: bool = True,
) -> Any:
    """A new optimizer with the settings of this one, which averages gradients over all ranks before
    every step.

    With `backward_passes_per_step` the gradients of so many passes are added up here, and then
    exchanged once; `average_aggregated_gradients` makes their average of the sum.

    To scale the loss, as mixed_float16 needs it, give it a `LossScaleOptimizer`: that looks for an
    overflow in what it gets, which has to be the same on every rank. `num_groups` and `groups` are
    without effect: dense gradients travel together.
    """
    return PartialDistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
        gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients,
        num_groups, groups, process_set, None, scale_local_gradients,
    )  # fmt: skip


def PartialDistributedOptimizer(
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
    local_layers: Optional[Iterable[Any]] = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedOptimizer`, but for the gradients of these layers, which stay each rank's own."""
    if op not in (Average, Sum):
        raise ValueError("op is Average or Sum: with Keras's optimizers there is no other")
    exchange = Exchange(
        compression, op, sparse_as_dense, gradient_predivide_factor, process_set, groups,
        scale_local_gradients, local_layers,
    )  # fmt: skip
    check(optimizer)
    made = _kind_of(optimizer).from_config(optimizer.get_config())  # type: ignore[attr-defined]
    return distribute(made, exchange, backward_passes_per_step, average_aggregated_gradients)
