"""Horovod's operations on TensorFlow's tensors, in eager code and in graphs.

In a graph an operation is a call of Python, which TensorFlow makes in the order of the program;
so every rank makes the same calls in the same order there, too.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from ..._native import ReduceOp
from ..job import job, size

#: Horovod's names of the reductions.
Average, Sum, Product = ReduceOp.AVG, ReduceOp.SUM, ReduceOp.PROD
Min, Max = ReduceOp.MIN, ReduceOp.MAX

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


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Optional[tf.DType] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Any]:
    """Every tensor averaged over all ranks, or what `op` says, as one operation."""
    if average is not None and op is not None:
        raise ValueError("average and op say the same thing; give op alone")
    kind = op if op is not None else (Sum if average is False else Average)
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    sent = [_scaled(_rounded(tensor, compression), prescale_factor) for tensor in tensors]
    came = _called(lambda arrays: _reduced(arrays, kind), sent, [one.shape for one in tensors])
    return [
        _scaled(tf.cast(one, tensor.dtype), postscale_factor) for one, tensor in zip(came, tensors)
    ]


def _rounded(tensor: Any, compression: Optional[tf.DType]) -> Any:
    low = compression is not None and tensor.dtype.is_floating
    return tf.cast(tensor, compression) if low else tensor


def _scaled(tensor: Any, factor: float) -> Any:
    return tensor if factor == 1.0 else tensor * tf.cast(factor, tensor.dtype)


def _reduced(arrays: Arrays, op: ReduceOp) -> Arrays:
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
    name: Optional[str] = None,
    compression: Optional[tf.DType] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """The average of every rank's tensor, or what `op` says; through it gradients flow.

    Of `tf.IndexedSlices` every rank gets the slices of all.
    """
    how = (average, name, compression, op, prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        return _gathered_slices(tensor, op or (Sum if average is False else Average))

    @tf.custom_gradient
    def reduced(one: Any) -> Any:
        return grouped_allreduce([one], *how)[0], lambda grad: grouped_allreduce([grad], *how)[0]

    return reduced(tf.convert_to_tensor(tensor))


def _gathered_slices(slices: Any, op: ReduceOp) -> Any:
    if op not in (Average, Sum):
        raise ValueError(f"slices are averaged or summed; {op!r} is neither")
    values = allgather(slices.values)
    if op is Average:
        values = values / tf.cast(size(), values.dtype)
    return tf.IndexedSlices(values, allgather(slices.indices), slices.dense_shape)


def allgather(tensor: Any, name: Optional[str] = None) -> Any:
    """Every rank's tensor, one after the other along the first dimension, in which they may
    differ."""
    tensor = tf.convert_to_tensor(tensor)
    shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
    return _called(_gathered, [tensor], [shape])[0]


def _gathered(arrays: Arrays) -> Arrays:
    comm, source = job().comm, np.ascontiguousarray(arrays[0])
    rows = np.empty(comm.nranks, np.int64)
    comm.all_gather(np.array([len(source)], np.int64), rows)
    width = int(np.prod(source.shape[1:], dtype=np.int64))
    output = np.empty((int(rows.sum()), *source.shape[1:]), source.dtype)
    comm.all_gather_v(source, output, [int(each) * width for each in rows])
    return [output]


def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """The root's tensor."""
    tensor = tf.convert_to_tensor(tensor)
    return _called(lambda arrays: _broadcasted(arrays, root_rank), [tensor], [tensor.shape])[0]


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
