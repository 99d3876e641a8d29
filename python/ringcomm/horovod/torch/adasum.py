"""Adasum: a sum of gradients that do not point the same way, and an average of those that do.

    adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

Of more than two ranks, of pairs of pairs: Maleki et al., "Scaling Distributed Training with
Adaptive Summation", 2020. Every rank has all tensors then, and adds them in the same order.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch

from ..process_sets import ProcessSet
from ..requests import Request, Signature
from .tensors import bytes_of, described, on_its_stream


def adasum(
    outputs: List[torch.Tensor],
    process_set: ProcessSet,
    name: Optional[str],
    result: Callable[[], Any],
) -> Request:
    """Combine these where they lie, each by itself; the number of ranks is a power of two."""
    coordinator = process_set.coordinator
    ranks = coordinator.size
    if ranks & (ranks - 1):
        raise NotImplementedError(f"Adasum is for a power of two of ranks; there are {ranks}")
    for output in outputs:
        if not output.is_floating_point():
            raise ValueError(f"Adasum is for floating point numbers; not for {output.dtype}")

    def run() -> None:
        for output in outputs:
            source = output.detach().contiguous().cpu()
            gathered = source.new_empty((ranks, *source.shape))
            coordinator.comm.all_gather(bytes_of(source), bytes_of(gathered))
            output.copy_(combined(list(gathered.double())))

    signature = Signature.of(
        "adasum", tuple(described(one) for one in outputs), (), outputs[0].device.type
    )
    request = Request(
        coordinator.name("adasum", name), signature, result, on_its_stream(outputs[0], run)
    )
    return coordinator.submit(request)


def combined(parts: List[torch.Tensor]) -> torch.Tensor:
    """Adasum of these, of neighbours first."""
    while len(parts) > 1:
        parts = [_pair(one, other) for one, other in zip(parts[::2], parts[1::2])]
    return parts[0]


def _pair(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    along = (one * other).sum()
    # Of a tensor of zeros there is nothing to take away.
    mine, its = (part.square().sum().clamp_min(torch.finfo(part.dtype).tiny) for part in (one, other))
    return (1 - along / (2 * mine)) * one + (1 - along / (2 * its)) * other
