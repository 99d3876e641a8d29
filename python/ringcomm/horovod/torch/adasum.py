"""Adasum of tensors: see `ringcomm.horovod.adasum`."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch

from ..adasum import check, combined
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
    check(ranks, [one.dtype for one in outputs], [one.is_floating_point() for one in outputs])

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
