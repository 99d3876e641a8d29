"""Horovod's operations on TensorFlow's tensors, through which gradients flow.

They run in eager code and in graphs, `tf.function`'s and TensorFlow 1's. In a graph an operation's
name is made when the graph is, so that ranks may run the operations of TensorFlow 1's in any order;
a function runs them as it has made them.
Gradients are what Horovod makes of them: behind `allreduce` reduced as `op` says, behind
`allgather` and `broadcast` averaged.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from ..job import rank
from ..operations import Adasum, Average, Op, Sum, asked_for, linear, name_of
from ..process_sets import ProcessSet, global_process_set
from ..requests import Request
from . import arrays
from .arrays import Arrays
from .compression import Compression
from .graphs import named, requested, scoped


class _Reduction(NamedTuple):
    """How tensors are reduced, and their gradients in the same way."""

    op: Op
    factors: Tuple[float, float]
    process_set: ProcessSet
    name: Optional[str]

    def __call__(self, tensors: Sequence[Any]) -> List[Any]:
        """All of them, as one operation."""
        reduced: Any = tf.custom_gradient(
            lambda *given: (
                self._reduced(given),
                lambda *grads: self._replace(name=None)([tf.convert_to_tensor(g) for g in grads]),
            )
        )
        return list(reduced(*[tf.convert_to_tensor(tensor) for tensor in tensors]))

    def _reduced(self, tensors: Sequence[Any]) -> List[Any]:
        sent = [scaled(one, self.factors[0]) for one in tensors]
        types, shapes = [one.dtype for one in tensors], [one.shape for one in tensors]
        op: Any = self.op
        name = named("allreduce", self.name)

        def reduce(given: Arrays) -> Request:
            if op is Adasum:
                return arrays.adasum(given, self.process_set, name)
            return arrays.all_reduce(given, op, self.process_set, name)

        return [scaled(one, self.factors[1]) for one in requested(reduce, sent, types, shapes)]


def scaled(tensor: Any, factor: float) -> Any:
    """The tensor times the factor; integers are rounded towards zero, 16-bit floats once."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_integer:
        return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)
    if tensor.dtype.size == 2:
        return tf.cast(tf.cast(tensor, tf.float32) * factor, tensor.dtype)
    return tensor * tf.cast(factor, tensor.dtype)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: Optional[str] = None,
) -> List[Any]:
    """Every tensor averaged over all ranks, or what `op` says, as one operation; through it
    gradients flow.

    Of `tf.IndexedSlices` every rank gets the slices of all; they are an operation of their own.
    """
    asked, factors = asked_for(average, op), (prescale_factor, postscale_factor)
    whole_name = scoped(name, ignore_name_scope)
    kind = Compression.none if compression is None else compression
    answers: List[Any] = list(tensors)
    sparse = [at for at, one in enumerate(answers) if isinstance(one, tf.IndexedSlices)]
    dense = [at for at, one in enumerate(answers) if not isinstance(one, tf.IndexedSlices)]
    if sparse:
        _check_slices(asked, factors)
    if dense:
        pairs = [kind.compress(tf.convert_to_tensor(answers[at])) for at in dense]
        reduced = _Reduction(asked, factors, process_set, whole_name)([sent for sent, _ in pairs])
        for at, one, (_, ctx) in zip(dense, reduced, pairs):
            answers[at] = kind.decompress(one, ctx)
    if sparse:
        # Two operations that may run at the same time need two threads of TensorFlow's.
        with tf.control_dependencies([answers[at] for at in dense[:1]]):
            given = [answers[at] for at in sparse]
            every = _gathered_slices(given, asked, process_set, whole_name)
        for at, slices in zip(sparse, every):
            answers[at] = slices
    return answers


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[Op] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """The average of every rank's tensor, or what `op` says; through it gradients flow.

    Of `tf.IndexedSlices` every rank gets the slices of all.
    """
    return grouped_allreduce(
        [tensor], average, "", "", compression, op, prescale_factor, postscale_factor,
        process_set, ignore_name_scope, name,
    )[0]  # fmt: skip


def _check_slices(op: Op, factors: Tuple[float, float]) -> None:
    if factors != (1.0, 1.0):
        raise NotImplementedError(
            "slices are not scaled: prescale_factor and postscale_factor are for dense"
        )
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"slices are averaged or summed, not {name_of(op)}; make them dense first "
            "(sparse_as_dense=True)"
        )


def _gathered_slices(
    given: Sequence[Any], op: Op, process_set: ProcessSet, name: Optional[str]
) -> List[Any]:
    parts = [part for slices in given for part in (tf.identity(slices.values), slices.indices)]
    came = grouped_allgather(parts, name, True, process_set)
    answers = []
    for slices, values, indices in zip(given, came[::2], came[1::2]):
        if op is Average:
            values = values / tf.cast(process_set.size(), values.dtype)
        answers.append(tf.IndexedSlices(values, indices, slices.dense_shape))
    return answers


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """`allgather` of several tensors, as one operation."""
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    count, asked = len(given), scoped(name, ignore_name_scope)

    @tf.custom_gradient
    def gathered(*ones: Any) -> Any:
        types = [one.dtype for one in ones] + [tf.int32] * count
        shapes = [tf.TensorShape([None]).concatenate(one.shape[1:]) for one in ones]
        whole_name = named("allgather", asked)
        both = requested(
            lambda found: arrays.all_gather(found, process_set, whole_name), ones, types,
            [*shapes, *[[process_set.size()]] * count],
        )  # fmt: skip

        def mine(*grads: Any) -> List[Any]:
            means = grouped_allreduce(
                [tf.convert_to_tensor(grad) for grad in grads[:count]], op=Average,
                process_set=process_set,
            )  # fmt: skip
            place = process_set.rank()
            return [
                tf.split(mean, rows, num=process_set.size())[place]
                for mean, rows in zip(means, both[count:])
            ]

        return both, mine

    answer: List[Any] = list(gathered(*given))[:count] if given else []
    return answer


def allgather(
    tensor: Any,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Every rank's tensor, one after the other along the first dimension, in which they may
    differ; through it gradients flow."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_broadcast(
    tensors: Sequence[Any],
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """The root's tensors, as one operation; through it gradients flow to the root."""

    @tf.custom_gradient
    def sent(*ones: Any) -> Any:
        whole_name = named("broadcast", name)

        def of_root(*grads: Any) -> List[Any]:
            given = [tf.convert_to_tensor(grad) for grad in grads]
            means = grouped_allreduce(given, op=Average, process_set=process_set)
            if rank() == root_rank:
                return means
            # Of these, too: they are computed on every rank or on none.
            with tf.control_dependencies([] if tf.executing_eagerly() else means):
                return [tf.zeros_like(mean) for mean in means]

        def run(found: Arrays) -> Request:
            return arrays.broadcast(found, root_rank, process_set, whole_name)

        types, shapes = [one.dtype for one in ones], [one.shape for one in ones]
        return requested(run, ones, types, shapes), of_root

    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return list(sent(*given)) if given else []


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's tensor; through it gradients flow to the root."""
    whole_name = scoped(name, ignore_name_scope)
    return grouped_broadcast([tensor], root_rank, whole_name, process_set)[0]


def alltoall(
    tensor: Any,
    splits: Optional[Any] = None,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rows of the tensor to every rank, equally many or as `splits` says; what came from each.

    With `splits` also how many rows came from each rank.
    """
    out = None if splits is None else tf.convert_to_tensor(splits)
    if out is not None and not out.dtype.is_integer:
        raise ValueError(f"alltoall: splits are integers; these are {out.dtype.name}")

    asked = scoped(name, ignore_name_scope)

    @tf.custom_gradient
    def exchanged(one: Any) -> Any:
        whole_name = named("alltoall", asked)
        shapes = [tf.TensorShape([None]).concatenate(one.shape[1:]), [process_set.size()]]

        def run(found: Arrays) -> Request:
            rows = found[1] if len(found) > 1 else None
            return arrays.all_to_all(found[0], rows, process_set, whole_name)

        given = [one] if out is None else [one, out]
        came, rows = requested(run, given, [one.dtype, tf.int32], shapes)

        def back(grad: Any, _: Any) -> Any:
            home = alltoall(tf.convert_to_tensor(grad), rows, process_set=process_set)[0]
            left = tf.shape(one)[:1] - tf.shape(home)[:1]
            # The gradient that comes may have another type.
            rest = tf.zeros(tf.concat([left, tf.shape(one)[1:]], 0), home.dtype)
            return tf.concat([home, rest], 0)

        return (came, rows), back

    came, rows = exchanged(tf.convert_to_tensor(tensor))
    return came if splits is None else (came, rows)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
) -> List[Any]:
    """`reducescatter` of several tensors, as one operation."""
    kind = linear(op, "reducescatter: tensors")
    if not tensors:
        return []
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]

    @tf.custom_gradient
    def scattered(*ones: Any) -> Any:
        whole_name = named("reducescatter", name)
        types = [one.dtype for one in ones]
        shapes = [tf.TensorShape([None]).concatenate(one.shape[1:]) for one in ones]
        parts = requested(
            lambda found: arrays.reduce_scatter(found, kind, process_set, whole_name),
            [scaled(one, prescale_factor) for one in ones], types, shapes,
        )  # fmt: skip
        factor = prescale_factor * postscale_factor * (process_set.size() if op == Sum else 1)

        def back(*grads: Any) -> List[Any]:
            given = [scaled(tf.convert_to_tensor(grad), factor) for grad in grads]
            return grouped_allgather(given, process_set=process_set)

        return [scaled(part, postscale_factor) for part in parts], back

    parts = list(scattered(*[low for low, _ in pairs]))
    return [compression.decompress(part, ctx) for part, (_, ctx) in zip(parts, pairs)]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Op = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce over all ranks; this rank's share of the result's rows, of which the first ranks have
    one more where they do not divide."""
    return grouped_reducescatter(
        [tensor], "", compression, op, process_set, prescale_factor, postscale_factor,
        scoped(name, ignore_name_scope),
    )[0]  # fmt: skip


def join() -> Any:
    """Say that this rank has no more data, and go along with the others' `allreduce` with zeros;
    done when all ranks have joined: the rank that did last."""

    return requested(lambda _: arrays.join(), [], [tf.int32], [[]])[0]


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Wait for every rank; in a graph, an operation that does."""
    name = named("barrier", None)

    done = requested(lambda _: arrays.barrier(process_set, name), [], [tf.int32], [[]])[0]
    return None if tf.executing_eagerly() else done
