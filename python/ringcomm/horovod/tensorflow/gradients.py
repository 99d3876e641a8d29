"""Gradients that are averaged over all ranks, as a tape or an optimizer hands them out."""

from __future__ import annotations

from typing import Any, List, Sequence

import tensorflow as tf

from ..operations import Average, linear
from ..process_sets import ProcessSet, global_process_set
from .calls import allreduce, grouped_allreduce
from .compression import Compression


class Exchange:
    """How gradients are averaged."""

    def __init__(
        self,
        compression: Any,
        op: Any,
        sparse_as_dense: bool,
        predivide: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._compression, self._op = compression, linear(op, "gradients")
        self._dense, self._process_set = sparse_as_dense, process_set
        self._factors = {"prescale_factor": 1 / predivide, "postscale_factor": predivide}
        if predivide != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor is for op=Average")

    def all(self, gradients: Sequence[Any]) -> List[Any]:
        """All of them, the dense ones together; None stays None, which it is on every rank."""
        answers = [
            tf.convert_to_tensor(one) if self._dense and isinstance(one, tf.IndexedSlices) else one
            for one in gradients
        ]
        dense = []
        for index, one in enumerate(answers):
            if isinstance(one, tf.IndexedSlices):
                answers[index] = allreduce(one, op=self._op, process_set=self._process_set)
            elif one is not None:
                dense.append(index)
        given = [answers[index] for index in dense]
        came = grouped_allreduce(
            given,
            compression=self._compression,
            op=self._op,
            process_set=self._process_set,
            **self._factors,
        )
        for index, one in zip(dense, came):
            answers[index] = one
        return answers


class DistributedGradientTape:
    """A tape whose `gradient` is the average over all ranks; all else is the tape's own.

    `num_groups` and `groups` are without effect: dense gradients travel together.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: Any = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._tape = gradtape
        self._exchange = Exchange(
            compression, op, sparse_as_dense, gradient_predivide_factor, process_set
        )

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
