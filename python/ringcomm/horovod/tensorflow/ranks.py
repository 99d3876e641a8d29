"""Ranks and their numbers as tensors, which a graph asks for when it runs."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from .. import job
from ..process_sets import process_set_by_id
from .graphs import called


def _asked(value: Callable[[], int], name: Optional[str]) -> Any:
    answer = called(lambda _: [np.array(value(), np.int32)], [], [tf.int32], [[]])[0]
    return tf.identity(answer, name)


def rank_op(name: Optional[str] = None) -> Any:
    """This rank."""
    return _asked(job.rank, name)


def local_rank_op(name: Optional[str] = None) -> Any:
    """This rank among those of its host."""
    return _asked(job.local_rank, name)


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """The number of ranks, of the job or of a process set."""
    return _asked(lambda: int(process_set_by_id(process_set_id).size()), name)


def local_size_op(name: Optional[str] = None) -> Any:
    """The number of ranks of this host."""
    return _asked(job.local_size, name)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """Whether this rank is in a process set: 1 or 0."""
    return _asked(lambda: int(process_set_by_id(process_set_id).included()), name)
