"""Gradients that are averaged over all ranks, as a tape or an optimizer hands them out."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import tensorflow as tf

from ..operations import Adasum, Average, linear
from ..process_sets import ProcessSet, global_process_set
from .calls import grouped_allreduce
from .compression import Compression


class Local:
    """Variables whose gradients stay each rank's own."""

    def __init__(self, layers: Any = None) -> None:
        if layers is None:
            layers = []
        elif isinstance(layers, tf.keras.layers.Layer):
            layers = [layers]
        self._layers: List[Any] = list(layers)
        if not all(isinstance(layer, tf.keras.layers.Layer) for layer in self._layers):
            raise ValueError("local_layers are Keras's layers, of type tf.keras.layers.Layer")
        self._variables: List[Any] = []

    def add(self, variable: Any) -> None:
        """This one, too."""
        self._variables.append(variable)

    def of(self, variables: Sequence[Any]) -> List[bool]:
        """Which of these they are. Layers may have got their variables since."""
        own = [one for layer in self._layers for one in layer.trainable_variables]
        keys = {key_of(one) for one in self._variables + own}
        return [key_of(one) in keys for one in variables]


def key_of(variable: Any) -> int:
    """Of a variable of Keras the same as of TensorFlow's in it."""
    return id(getattr(variable, "_value", variable))


class Exchange:
    """How gradients are averaged."""

    def __init__(
        self,
        compression: Any = Compression.none,
        op: Any = Average,
        sparse_as_dense: bool = False,
        predivide: float = 1.0,
        process_set: ProcessSet = global_process_set,
        groups: Any = None,
        scale_local: bool = True,
        local_layers: Any = None,
    ) -> None:
        self.compression, self.op = compression, op if op is Adasum else linear(op, "gradients")
        self.dense, self.process_set = sparse_as_dense, process_set
        self._factors: Dict[str, Any] = {
            "prescale_factor": 1 / predivide, "postscale_factor": predivide
        }  # fmt: skip
        if predivide != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor is for op=Average")
        if groups is not None and not (isinstance(groups, list) or groups > 0):
            raise ValueError("groups is a number of groups, or a list of lists of variables")
        self.local, self._scale_local = Local(local_layers), scale_local

    def all(self, gradients: Sequence[Any], variables: Optional[Sequence[Any]] = None) -> List[Any]:
        """All of them, the dense ones together; None stays None, which it is on every rank.

        Those of local variables stay here, divided by the number of ranks, as if the others' were
        zero.
        """
        answers = [
            tf.convert_to_tensor(one) if self.dense and isinstance(one, tf.IndexedSlices) else one
            for one in gradients
        ]
        ranks = self.process_set.size()
        if not self.process_set.included() or ranks == 1:
            return answers
        is_local = [False] * len(answers) if variables is None else self.local.of(variables)
        sent = [at for at, one in enumerate(answers) if one is not None and not is_local[at]]
        for at, one in zip(sent, self._exchanged([answers[at] for at in sent])):
            answers[at] = one
        if self._scale_local:
            for at, one in enumerate(answers):
                if is_local[at] and one is not None:
                    answers[at] = over(one, ranks)
        return answers

    def _exchanged(self, gradients: List[Any]) -> List[Any]:
        sparse = all(isinstance(one, tf.IndexedSlices) for one in gradients)
        plain = sparse or self._factors["prescale_factor"] == 1
        factors: Dict[str, Any] = {} if plain else self._factors
        if factors and any(isinstance(one, tf.IndexedSlices) for one in gradients):
            raise NotImplementedError(
                "gradient_predivide_factor is for dense gradients: give sparse_as_dense=True"
            )
        return grouped_allreduce(
            gradients,
            compression=self.compression,
            op=self.op,
            process_set=self.process_set,
            **factors,
        )


def over(gradient: Any, number: int) -> Any:
    """The gradient divided by a number."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(number, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(number, gradient.dtype)


class _Tape:
    """A tape whose `gradient` is the average over all ranks; all else is the tape's own."""

    def __init__(self, tape: tf.GradientTape, exchange: Exchange) -> None:
        self._tape, self._exchange = tape, exchange

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> Any:  # fmt: skip
        """As the tape's, averaged over all ranks."""
        found = self._tape.gradient(target, sources, output_gradients)
        averaged = self._exchange.all(tf.nest.flatten(found), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(found, averaged)

    def register_local_source(self, source: Any) -> None:
        """Let the gradient of this source stay each rank's own."""
        self._exchange.local.add(source)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> Tuple[List[Any], List[Any]]:  # fmt: skip
        """`gradient`, as pairs of a source and its gradient: those of local sources, the others."""
        found = self.gradient(target, sources, output_gradients)
        answers: Tuple[List[Any], List[Any]] = ([], [])
        for source, one, is_local in zip(sources, found, self._exchange.local.of(sources)):
            answers[not is_local].append((source, one))
        return answers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_tape", "_exchange"):
            raise AttributeError(name)
        return getattr(self._tape, name)

    def __enter__(self) -> "_Tape":
        self._tape.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._tape.__exit__(*problem)


def DistributedGradientTape(
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
    scale_local_gradients: bool = True,
) -> Any:
    """The tape, with a `gradient` that is averaged over all ranks.

    `num_groups` and `groups` are without effect: dense gradients travel together.
    """
    return PartialDistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
        gradient_predivide_factor, num_groups, groups, process_set, None, scale_local_gradients,
    )  # fmt: skip


def PartialDistributedGradientTape(
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
    local_layers: Optional[Iterable[Any]] = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedGradientTape`, but for the gradients of these layers, which stay each rank's
    own."""
    return _Tape(
        gradtape,
        Exchange(
            compression, op, sparse_as_dense, gradient_predivide_factor, process_set, groups,
            scale_local_gradients, local_layers,
        ),
    )  # fmt: skip
