"""Operations in torch's profiler, as `ringcomm:all_reduce` and so on.

An operation that its caller waits for is a span on the caller's thread, with the shapes of its
tensors; one that nobody waits for yet is an asynchronous span, until its future is complete.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, List, Optional

import torch

#: Whether a profiler looks.
active: Callable[[], bool] = torch._C._autograd._profiler_enabled


def span(name: str, tensors: List[torch.Tensor]) -> ContextManager[Any]:
    """What shows an operation to the profiler, if there is one, while it runs."""
    if not active():
        return nullcontext()
    made: ContextManager[Any] = torch._C._profiler._RecordFunctionFast(f"ringcomm:{name}", tensors)
    return made


def track(name: str, work: Any, tensors: Optional[List[torch.Tensor]] = None) -> None:
    """Show the operation to the profiler, if there is one, until its future is complete; with the
    shapes of these tensors, or of its result."""
    if active():
        # Of the ways to begin a span from Python the only one that takes tensors, and whose span
        # another thread may end.
        begin: Any = getattr(torch.autograd, "_record_function_with_args_enter")
        record = begin(f"ringcomm:{name}", *(work.result() if tensors is None else tensors))
        end: Any = torch.ops.profiler._call_end_callbacks_on_jit_fut
        with torch._C.DisableTorchFunctionSubclass():
            end._RecordFunction(record, work.get_future())
