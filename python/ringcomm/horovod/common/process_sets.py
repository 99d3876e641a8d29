"""Horovod's process sets."""

from ..process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    process_set_by_id,
    remove_process_set,
)

__all__ = [
    "ProcessSet", "add_process_set", "global_process_set", "process_set_by_id",
    "remove_process_set",
]  # fmt: skip
