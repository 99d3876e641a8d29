"""Failures of operations that were started inside a backward pass, raised by `backward()` as they
are.

DistributedDataParallel's C++ code starts operations from the pass and looks at their futures at its
end, where an error becomes a RuntimeError with its text in it. What is queued here looks first.
"""

from __future__ import annotations

import threading
from typing import Any, List

import torch
from torch.autograd import Variable


class _Pass(threading.local):
    """The backward pass that this thread is in, and the operations that it has started."""

    task = -1

    def __init__(self) -> None:
        self.works: List[Any] = []


_current = _Pass()
_task_of_thread = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def watch(work: Any) -> None:
    """Where this thread is in a backward pass, see to it that the pass ends with the work's
    error."""
    task = _task_of_thread()
    if task < 0:
        return
    if task != _current.task:
        works: List[Any] = []
        _current.task, _current.works = task, works
        # Queued before DistributedDataParallel queues its own: that comes with the last operation.
        Variable._execution_engine.queue_callback(lambda: _raise_first(works))
    _current.works.append(work)


def _raise_first(works: List[Any]) -> None:
    try:
        for work in works:
            # DistributedDataParallel waits for what it has asked for a future. Of others the
            # program may want to wait later, when this rank has done what another waits for.
            error = work.failure() if work.is_asked_for() or work.is_completed() else None
            if error is not None:
                raise error
    finally:
        works.clear()
