"""Variables that everyone begins with alike."""

from __future__ import annotations

from typing import Any, Iterable

import tensorflow as tf

from ..process_sets import ProcessSet, global_process_set
from .calls import broadcast


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> Any:
    """Give every rank the root's values of these variables."""
    done = [
        variable.assign(broadcast(variable, root_rank, process_set=process_set))
        for variable in variables
    ]
    return None if tf.executing_eagerly() else tf.group(*done)
