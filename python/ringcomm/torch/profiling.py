"""Operations in torch's profiler, as `ringcomm:all_reduce` and so on, from their start to their end."""

from __future__ import annotations

from typing import Any, List

import torch

#: Whether a profiler looks.
active = torch._C._autograd._profiler_enabled


def recorded(backend: str, name: str, tensors: List[torch.Tensor], work: Any) -> None:
    """Show the operation to the profiler, if there is one, until its future is complete."""
    if not active():
        return
    record = torch.autograd.profiler.record_function(f"{backend}:{name}")
    record.__enter__()
    record._call_end_callbacks_on_future(work.get_future())
