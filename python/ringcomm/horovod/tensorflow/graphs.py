"""Operations in TensorFlow's graphs: their names, and how they wait without a thread of
TensorFlow's, which has few."""

from __future__ import annotations

import itertools
import re
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from ..exceptions import HorovodInternalError
from ..requests import Request
from .arrays import Arrays


def named(kind: str, given: Optional[str]) -> Optional[str]:
    """The name of an operation: in eager code without one it gets a number when it is made."""
    if given or tf.executing_eagerly():
        return given
    graph = tf.compat.v1.get_default_graph()
    unique: str = graph.unique_name(kind)
    return f"{_name_of(graph)}/{unique}"


def _name_of(graph: Any) -> str:
    """A graph's name: functions' graphs have names, and TensorFlow 1 has one graph.

    Those of branches and loops end with how many things the process has made, in which ranks
    differ.
    """
    name = getattr(graph, "name", "graph")
    if type(graph).__name__ == "FuncGraph" or not hasattr(graph, "outer_graph"):
        return str(name)
    return f"{_name_of(graph.outer_graph)}/{_COUNT.sub('', name)}"


_COUNT = re.compile(r"_\d+(?=_|$)")


def scoped(given: Optional[str], ignore_name_scope: bool) -> Optional[str]:
    """The name that a program gives, in a graph behind the scope that it is given in."""
    if not given or ignore_name_scope or tf.executing_eagerly():
        return given
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    return f"{scope}/{given}" if scope else given


def called(
    function: Callable[[Arrays], Arrays], tensors: Sequence[Any], types: Sequence[Any],
    shapes: Sequence[Any],
) -> List[Any]:  # fmt: skip
    """The arrays that the function makes of these, as tensors."""
    if tf.executing_eagerly():
        made = function([tensor.numpy() for tensor in tensors])
        return [tf.convert_to_tensor(one) for one in made]
    return _shaped(_in_python(lambda *given: function(list(given)), tensors, types), shapes)


def requested(
    function: Callable[[Arrays], Request], tensors: Sequence[Any], types: Sequence[Any],
    shapes: Sequence[Any],
) -> List[Any]:  # fmt: skip
    """The arrays of the request that the function submits, as tensors.

    In a graph it is waited for briefly, and what is not done then without a thread of TensorFlow's.
    """
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(one) for one in _eager(function, tensors)]
    empty = [np.empty(0, one.as_numpy_dtype) for one in types]

    def begin(*given: Any) -> List[Any]:
        request = function(list(given))
        if request.wait_briefly():
            return [np.int64(0), *request.wait()]
        number = next(_numbers)
        _open[number] = request
        return [np.int64(number), *empty]

    def end(number: Any) -> List[Any]:
        return list(_open.pop(int(number)).wait())

    def later() -> List[Any]:
        # What a dataset computes runs on threads of its own.
        answers = tf.data.Dataset.from_tensors(number)
        answers = answers.map(lambda of: tuple(_in_python(end, [of], types)))
        came = answers.with_options(_own_thread()).get_single_element()
        return list(came)

    number, *made = _in_python(begin, tensors, [tf.int64, *types])
    number.set_shape([])
    made = tf.cond(number > 0, later, lambda: made)
    return _shaped(made if isinstance(made, (list, tuple)) else [made], shapes)


class FailedError(HorovodInternalError, tf.errors.FailedPreconditionError):
    """An operation of eager code has failed: as Horovod's, also an error of TensorFlow's."""

    def __init__(self, error: Exception) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, str(error))

    def __reduce__(self) -> Any:
        return type(self), (HorovodInternalError(self.message),)


class ArgumentError(ValueError, tf.errors.InvalidArgumentError):
    """An argument in eager code is wrong: what TensorFlow makes of a `ValueError` in a graph."""

    def __init__(self, error: Exception) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, str(error))

    def __reduce__(self) -> Any:
        return type(self), (ValueError(self.message),)


def _eager(function: Callable[[Arrays], Request], tensors: Sequence[Any]) -> Arrays:
    try:
        answers: Arrays = function([tensor.numpy() for tensor in tensors]).wait()
        return answers
    except HorovodInternalError as error:
        raise FailedError(error) from error
    except ValueError as error:
        raise ArgumentError(error) from error


#: Requests of graphs that were not done at once.
_open: Dict[int, Request] = {}
_numbers = itertools.count(1)


def _own_thread() -> Any:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    return options


def _in_python(function: Any, tensors: Sequence[Any], types: Sequence[Any]) -> List[Any]:
    with tf.device("/cpu:0"):
        outputs = tf.numpy_function(function, tensors, types)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _shaped(outputs: Sequence[Any], shapes: Sequence[Any]) -> List[Any]:
    for output, shape in zip(outputs, shapes):
        output.set_shape(shape)
    return list(outputs)
