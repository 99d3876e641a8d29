"""Collective communication for CPUs and GPUs: all-reduce and its family."""

from ._native import Collective, DataType, Protection, ReduceOp, Result, version
from .communicator import Communicator, get_unique_id
from .config import Config, Explanation
from .errors import (
    RingAbortedError,
    RingArgumentError,
    RingError,
    RingRemoteError,
    RingSystemError,
    RingTimeoutError,
    RingUsageError,
)
from .streams import Handle, Stream, group, group_end, group_start

SUM, PROD, MAX, MIN, AVG = ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG
BAND, BOR, BXOR = ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR
