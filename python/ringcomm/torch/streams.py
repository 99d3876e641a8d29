"""Torch's streams, as the calls of a communicator take them."""

from __future__ import annotations

from typing import Any

import torch


def stream_of(tensor: torch.Tensor) -> Any:
    """What a call on this tensor comes after: torch's current stream of its device; None, which is
    nothing, where it lies on the CPU."""
    return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None


class Given:
    """A call that its tensor's stream has: what is put there later sees the result."""

    def wait(self) -> bool:
        """Nothing to wait for."""
        return True
