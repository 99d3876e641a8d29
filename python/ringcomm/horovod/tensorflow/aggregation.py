"""Gradients of several passes, added up in variables of this rank until they are exchanged."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

import tensorflow as tf

from .gradients import Exchange, key_of, over


class Passes:
    """The sums of `backward_passes_per_step` passes; they are exchanged at the last of them."""

    def __init__(self, passes: int, average: bool, exchange: Exchange) -> None:
        if passes <= 0:
            raise ValueError(f"backward_passes_per_step is 1 or more; it is {passes}")
        self._passes, self._exchange = passes, exchange
        self._over = passes if average else 1
        #: By graph, since variables belong to one: that of eager code is None.
        self._counters: Dict[Any, Any] = {}
        self._sums: Dict[int, Any] = {}

    def add(
        self, gradients: Sequence[Any], variables: Sequence[Any],
        last: Callable[[List[Any]], Any], other: Callable[[], Any],
    ) -> Any:  # fmt: skip
        """Add these; after the last pass give their exchanged sums to `last`, and forget them.

        What `last` and `other` make of it is returned; they make tensors of the same types.
        """
        counter = self._counter()
        sums = [
            None if one is None else self._sum(self._dense(one), variable)
            for one, variable in zip(gradients, variables)
        ]
        added = [
            kept.assign_add(self._dense(one), read_value=False)
            for kept, one in zip(sums, gradients)
            if kept is not None
        ]
        with tf.control_dependencies(_operations(added)):
            seen = counter.assign_add(1)

        def exchange() -> Any:
            found = [None if kept is None else tf.identity(kept.read_value()) for kept in sums]
            came = self._exchange.all(found, variables)
            averages = [one if one is None else over(one, self._over) for one in came]
            ready = [one for one in (*averages, *found) if one is not None]
            with tf.control_dependencies(_operations(ready)):
                cleared = [
                    kept.assign(tf.zeros_like(one), read_value=False)
                    for kept, one in zip(sums, found)
                    if kept is not None
                ]
                cleared.append(counter.assign(0, read_value=False))
            with tf.control_dependencies(_operations(cleared)):
                return last([one if one is None else tf.identity(one) for one in averages])

        with tf.control_dependencies(_operations([seen])):
            return tf.cond(tf.equal(seen, self._passes), exchange, other)

    def _dense(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            if not self._exchange.dense:
                raise ValueError(
                    "slices are not added up over passes: give sparse_as_dense=True with "
                    "backward_passes_per_step"
                )
            return tf.convert_to_tensor(gradient)
        return gradient

    def _counter(self) -> Any:
        key = _graph()
        if key not in self._counters:
            self._counters[key] = local_variable((), tf.int32, "passes")
        return self._counters[key]

    def _sum(self, gradient: Any, variable: Any) -> Any:
        key = key_of(variable)
        if key not in self._sums:
            self._sums[key] = local_variable(variable.shape, gradient.dtype, "gradient_sum")
        return self._sums[key]


def _graph() -> Any:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return None
    with tf.init_scope():
        return tf.compat.v1.get_default_graph()


def _operations(made: Sequence[Any]) -> List[Any]:
    """What control dependencies can be made of: in eager code all has been done."""
    return [] if tf.executing_eagerly() else [one for one in made if one is not None]


def local_variable(shape: Any, dtype: Any, name: str) -> Any:
    """A variable of zeros that is no part of checkpoints, and that no broadcast changes.

    In a graph of TensorFlow 1 it is a local variable, which the program's session initializes.
    """
    with tf.init_scope():
        return tf.compat.v1.Variable(
            tf.zeros(shape, dtype), trainable=False, name=name, use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        )  # fmt: skip
