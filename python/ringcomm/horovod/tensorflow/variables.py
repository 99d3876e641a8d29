"""Variables that everyone begins with alike, and Python objects."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional

import tensorflow as tf

from .. import objects
from ..process_sets import ProcessSet, global_process_set
from .calls import grouped_broadcast

_Hook: Any = tf.compat.v1.train.SessionRunHook


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """Give every rank the root's values of these variables, in one operation; the new values."""
    given = list(variables)
    values = grouped_broadcast(given, root_rank, name, process_set)
    done = [variable.assign(value) for variable, value in zip(given, values)]
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(variable) for variable in given]
    with tf.control_dependencies(done):
        return [tf.identity(value) for value in values]


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Give every rank the root's values of these variables; in a graph, an operation that does.

    `inplace` is without effect: values travel through memory of the host in any case.
    """
    values = broadcast_(variables, root_rank, process_set=process_set)
    return None if tf.executing_eagerly() else tf.group(*values)


def broadcast_global_variables(root_rank: int) -> Any:
    """`broadcast_variables` of all variables of a graph of TensorFlow 1."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "in eager code there are no global variables: call broadcast_variables with those of "
            "the model and the optimizer"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(_Hook):  # type: ignore[misc, unused-ignore]
    """A hook of a session: when there is one, everyone gets the root's global variables."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank, self.device = root_rank, device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Before the graph is complete."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """After variables have got their first values, or a checkpoint's."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's Python object, on every rank; a session is not needed."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that is `broadcast_object` with these arguments."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """Every rank's Python object, in the order of ranks; a session is not needed."""
    return objects.allgather_object(obj, name, process_set)
