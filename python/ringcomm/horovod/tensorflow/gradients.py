"""Gradients that are averaged over all ranks, as a tape or an optimizer hands them out."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import tensorflow as tf

from ..._native import ReduceOp
from ..job import without_process_sets
from ..operations import Average, linear
from .calls import allreduce, grouped_allreduce


class Exchange:
    """How gradients are averaged."""

    def __init__(
        self, compression: Optional[tf.DType], op: ReduceOp, sparse_as_dense: bool
    ) -> None:
        self._compression, self._op = compression, linear(op, "gradients")
        self._dense = sparse_as_dense

    def all(self, gradients: Sequence[Any]) -> List[Any]:
        """All of them, the dense ones together; None stays None, which it is on every rank."""
        answers = [
            tf.convert_to_tensor(one) if self._dense and isinstance(one, tf.IndexedSlices) else one
            for one in gradients
        ]
        dense = []
        for index, one in enumerate(answers):
            if isinstance(one, tf.IndexedSlices):
                answers[index] = allreduce(one, op=self._op)
            elif one is not None:
                dense.append(index)
        given = [answers[index] for index in dense]
        came = grouped_allreduce(given, compression=self._compression, op=self._op) if given else []
        for index, one in zip(dense, came):
            answers[index] = one
        return answers


class DistributedGradientTape:
    """A tape whose `gradient` is the average over all ranks; all else is the tape's own.

    `gradient_predivide_factor`, `num_groups` and `groups` are without effect: dense gradients
    travel together.
    """

    @without_process_sets
    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Optional[tf.DType] = None,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
    ) -> None:
        self._tape = gradtape
        self._exchange = Exchange(compression, op, sparse_as_dense)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """As the tape's, averaged over all ranks."""
        found = self._tape.gradient(target, sources, output_gradients)
        flat = tf.nest.flatten(found)
        return tf.nest.pack_sequence_as(found, self._exchange.all(flat))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> "DistributedGradientTape":
        self._tape.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._tape.__exit__(*problem)
