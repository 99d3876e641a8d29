"""Horovod's operations on TensorFlow's tensors, in eager code and in graphs.

In a graph an operation is a call of Python, which TensorFlow makes in the order of the program;
so every rank makes the same calls in the same order there, too. Gradients are what Horovod makes of
them: behind `allreduce` reduced as `op` says, behind `allgather` and `broadcast` averaged.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from ..._native import ReduceOp
from ..job import job, rank, size
from ..operations import Average, asked_for, linear
from ..rows import refuse_unlike, row_signature

Arrays = List[Any]


class Compression:
    """What tensors are rounded to on their way."""

    none: Optional[tf.DType] = None
    fp16: Optional[tf.DType] = tf.float16
    bf16: Optional[tf.DType] = tf.bfloat16


def _called(function: Callable[[Arrays], Arrays], tensors: Sequence[Any], shapes: Any) -> List[Any]:
    """The arrays that the function makes of these, as tensors of the same types."""
    if tf.executing_eagerly():
        made = function([tensor.numpy() for tensor in tensors])
        return [tf.convert_to_tensor(one) for one in made]
    types = [tensor.dtype for tensor in tensors]
    outputs = tf.numpy_function(lambda *arrays: function(list(arrays)), tensors, types)
    for output, shape in zip(outputs, shapes):
        output.set_shape(shape)
    return list(outputs)


class _Reduction(NamedTuple):
    """How tensors are reduced, and their gradients in the same way."""

    op: ReduceOp
    compression: Optional[tf.DType]
    prescale: float
    postscale: float

    def __call__(self, tensors: Sequence[Any]) -> List[Any]:
        """All of them, as one operation."""
        reduced: Any = tf.custom_gradient(
            lambda *given: (self._reduced(given), lambda *grads: self(grads))
        )
        return list(reduced(*[tf.convert_to_tensor(tensor) for tensor in tensors]))

    def _reduced(self, tensors: Sequence[Any]) -> List[Any]:
        sent = [_scaled(_rounded(one, self.compression), self.prescale) for one in tensors]
        shapes = [one.shape for one in tensors]
        came = _called(lambda arrays: _together(arrays, self.op), sent, shapes)
        return [
            _scaled(tf.cast(one, given.dtype), self.postscale) for one, given in zip(came, tensors)
        ]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Optional[tf.DType] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    name: Optional[str] = None,
) -> List[Any]:
    """Every tensor averaged over all ranks, or what `op` says, as one operation; through it
    gradients flow."""
    kind = asked_for(average, op)
    return _Reduction(kind, compression, prescale_factor, postscale_factor)(tensors)


def _rounded(tensor: Any, compression: Optional[tf.DType]) -> Any:
    low = compression is not None and tensor.dtype.is_floating
    return tf.cast(tensor, compression) if low else tensor


def _scaled(tensor: Any, factor: float) -> Any:
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_integer:
        return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)
    return tensor * tf.cast(factor, tensor.dtype)


def _together(arrays: Arrays, op: ReduceOp) -> Arrays:
    """Arrays of one type travel as one."""
    results: Arrays = [None] * len(arrays)
    by_type: Dict[Any, List[int]] = {}
    for index, array in enumerate(arrays):
        by_type.setdefault(array.dtype, []).append(index)
    for members in by_type.values():
        flat = np.concatenate([arrays[index].reshape(-1) for index in members])
        job().comm.all_reduce(flat, op=op)
        ends = np.cumsum([arrays[index].size for index in members])
        for index, part in zip(members, np.split(flat, ends[:-1])):
            results[index] = part.reshape(arrays[index].shape)
    return results


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Optional[tf.DType] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
) -> Any:
    """The average of every rank's tensor, or what `op` says; through it gradients flow.

    Of `tf.IndexedSlices` every rank gets the slices of all.
    """
    how = _Reduction(asked_for(average, op), compression, prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        return _gathered_slices(tensor, how)
    return how([tensor])[0]


def _gathered_slices(slices: Any, how: _Reduction) -> Any:
    if (how.prescale, how.postscale) != (1.0, 1.0):
        raise ValueError(
            "slices are not scaled: prescale_factor and postscale_factor are for dense"
        )
    values = allgather(slices.values)
    if linear(how.op, "slices") is Average:
        values = values / tf.cast(size(), values.dtype)
    return tf.IndexedSlices(values, allgather(slices.indices), slices.dense_shape)


def allgather(tensor: Any, name: Optional[str] = None) -> Any:
    """Every rank's tensor, one after the other along the first dimension, in which they may
    differ; through it gradients flow."""

    @tf.custom_gradient
    def gathered(one: Any) -> Any:
        shape = tf.TensorShape([None]).concatenate(one.shape[1:])

        def mine(grad: Any) -> Any:
            mean, rows = allreduce(tf.convert_to_tensor(grad)), allgather(tf.shape(one)[:1])
            return tf.split(mean, rows, num=size())[rank()]

        return _called(_gathered, [one], [shape])[0], mine

    return gathered(tf.convert_to_tensor(tensor))


def _gathered(arrays: Arrays) -> Arrays:
    comm, source = job().comm, np.ascontiguousarray(arrays[0])
    known = np.empty((comm.nranks, 2), np.int64)
    mine = np.array([len(source), row_signature(source.dtype, source.shape)], np.int64)
    comm.all_gather(mine, known)
    rows, signatures = known.T
    refuse_unlike("allgather", source.dtype, source.shape, signatures.tolist())
    width = int(np.prod(source.shape[1:], dtype=np.int64))
    output = np.empty((int(rows.sum()), *source.shape[1:]), source.dtype)
    comm.all_gather_v(source, output, [int(each) * width for each in rows])
    return [output]


def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """The root's tensor; through it gradients flow to the root."""

    @tf.custom_gradient
    def sent(one: Any) -> Any:
        def of_root(grad: Any) -> Any:
            mean = allreduce(tf.convert_to_tensor(grad))
            return mean if rank() == root_rank else tf.zeros_like(mean)

        (root,) = _called(lambda arrays: _broadcasted(arrays, root_rank), [one], [one.shape])
        return root, of_root

    return sent(tf.convert_to_tensor(tensor))


def _broadcasted(arrays: Arrays, root: int) -> Arrays:
    output = np.array(arrays[0])
    job().comm.broadcast(output, root=root)
    return [output]


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Give every rank the root's values of these variables."""
    for variable in variables:
        variable.assign(broadcast(variable, root_rank))


def broadcast_object(obj: Any = None, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """The root's Python object, on every rank."""
    return job().comm.broadcast_object(obj, root_rank)


def allgather_object(obj: Any, name: Optional[str] = None) -> List[Any]:
    """Every rank's Python object, in the order of ranks."""
    gathered: List[Any] = job().comm.all_gather_object(obj)
    return gathered


def barrier() -> None:
    """Wait for every rank."""
    job().comm.barrier()
