"""Horovod's `DistributedOptimizer` for optimizers of TensorFlow 1, in sessions and eager code."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

from ..operations import Adasum, Average
from ..process_sets import ProcessSet, global_process_set
from .aggregation import Passes, local_variable
from .calls import grouped_allreduce
from .compression import Compression
from .gradients import Exchange, key_of

_Optimizer: Any = tf.compat.v1.train.Optimizer


class _Wrapped(_Optimizer):  # type: ignore[misc, unused-ignore]
    """An optimizer that leaves the update and the slots to another."""

    def __init__(self, optimizer: Any, name: Optional[str], use_locking: bool) -> None:
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As the other's."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The other's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The other's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The other's."""
        return self._optimizer.variables(*args, **kwargs)


class _Averaging(_Wrapped):
    """Gradients are averaged over all ranks where they are computed."""

    def __init__(
        self, optimizer: Any, name: Optional[str], use_locking: bool, exchange: Exchange,
        passes: int, average: bool,
    ) -> None:  # fmt: skip
        super().__init__(optimizer, name, use_locking)
        self._exchange = exchange
        self._passes = Passes(passes, average, exchange) if passes != 1 else None
        self._is_last: Any = None

    def register_local_var(self, var: Any) -> None:
        """Let the gradient of this variable stay each rank's own."""
        self._exchange.local.add(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> List[Tuple[Any, Any]]:
        """Averaged over all ranks; with `backward_passes_per_step`, in the last of the passes."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [one for one, _ in pairs], [variable for _, variable in pairs]
        with tf.name_scope(f"{self.get_name()}_Allreduce"):
            if self._passes is None:
                return list(zip(self._exchange.all(gradients, variables), variables))
            return list(zip(self._aggregated(self._passes, gradients, variables), variables))

    def _aggregated(self, passes: Passes, gradients: List[Any], variables: List[Any]) -> List[Any]:
        there = [at for at, one in enumerate(gradients) if one is not None]
        is_last, *came = passes.add(
            gradients,
            variables,
            lambda sums: [tf.constant(True), *[sums[at] for at in there]],
            lambda: [tf.constant(False), *[tf.convert_to_tensor(gradients[at]) for at in there]],
        )
        self._is_last = is_last
        answers: List[Any] = [None] * len(gradients)
        for at, one in zip(there, came):
            answers[at] = one
        return answers

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Optional[str] = None
    ) -> Any:
        """As the other's; with `backward_passes_per_step`, in the last of the passes. The global
        step counts all of them."""
        pairs = list(grads_and_vars)
        if self._is_last is None:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        def apply() -> Any:
            done = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
            with tf.control_dependencies([] if done is None else [done]):
                return tf.constant(True)

        def count() -> Any:
            if global_step is None:
                return tf.constant(False)
            one = tf.ones([], global_step.dtype)
            with tf.control_dependencies([global_step.assign_add(one)]):
                return tf.constant(False)

        done = tf.cond(self._is_last, apply, count)
        return done if tf.executing_eagerly() else done.op


class _AdasumOfSteps(_Wrapped):
    """Every rank steps by itself; from time to time the ways that they went are added by Adasum."""

    def __init__(
        self, optimizer: Any, name: Optional[str], use_locking: bool, compression: Any, passes: int
    ) -> None:
        its_name = name or f"DistributedDelta{type(optimizer).__name__}"
        super().__init__(optimizer, its_name, use_locking)
        self._compression, self._every = compression, passes
        self._steps: Any = None
        self._starts: Dict[int, Any] = {}

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Optional[str] = None
    ) -> Any:
        """A step of the other's, then the exchange."""
        pairs = list(grads_and_vars)
        variables = [variable for one, variable in pairs if one is not None]
        if self._steps is None:
            self._steps = local_variable((), tf.int32, "steps")
        for one in variables:
            if key_of(one) not in self._starts:
                self._starts[key_of(one)] = local_variable(one.shape, one.dtype.base_dtype, "start")
        starts = [self._starts[key_of(one)] for one in variables]
        begun = tf.cond(
            tf.equal(self._steps.read_value(), 0), lambda: _assigned(starts, variables), _nothing
        )
        with tf.control_dependencies([begun]):
            step = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([] if step is None else [step]):
            seen = self._steps.assign_add(1)
        with tf.control_dependencies([seen]):
            done = tf.cond(
                tf.equal(seen, self._every), lambda: self._exchange(starts, variables), _nothing
            )
        return done if tf.executing_eagerly() else done.op

    def _exchange(self, starts: Sequence[Any], variables: Sequence[Any]) -> Any:
        before = [start.read_value() for start in starts]
        ways = [one.read_value() - start for one, start in zip(variables, before)]
        sums = grouped_allreduce(ways, compression=self._compression, op=Adasum)
        made = _assigned(variables, [start + way for start, way in zip(before, sums)])
        with tf.control_dependencies([made]):
            return _assigned([self._steps], [0])


def _nothing() -> Any:
    return tf.constant(0)


def _assigned(variables: Sequence[Any], values: Sequence[Any]) -> Any:
    done = [one.assign(tf.convert_to_tensor(value)) for one, value in zip(variables, values)]
    with tf.control_dependencies(done):
        return tf.constant(0)


def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that averages gradients over all ranks; of `tf.compat.v1.train` or of Keras, as
    the given one is.

    With `op=Adasum` ranks step by themselves, and the ways that they went are combined.
    `num_groups` and `groups` are without effect: dense gradients travel together.
    """
    if not isinstance(optimizer, _Optimizer):
        from .keras import DistributedOptimizer as of_keras

        return of_keras(
            optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
            gradient_predivide_factor, op, backward_passes_per_step,
            average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
        )  # fmt: skip
    exchange = Exchange(
        compression, op, sparse_as_dense, gradient_predivide_factor, process_set, groups,
        scale_local_gradients,
    )  # fmt: skip
    if op is not Adasum:
        return _Averaging(
            optimizer, name, use_locking, exchange, backward_passes_per_step,
            average_aggregated_gradients,
        )  # fmt: skip
    if average_aggregated_gradients:
        raise ValueError("average_aggregated_gradients is not for Adasum, which adds steps")
    if process_set.process_set_id != 0:
        raise NotImplementedError("an optimizer with Adasum is for the set of all ranks")
    return _AdasumOfSteps(optimizer, name, use_locking, compression, backward_passes_per_step)
