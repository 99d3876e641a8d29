"""Gradients that travel together: packed into one tensor, reduced, and unpacked again."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from .ranks import Ranks
from .types import as_real, as_seen

Parameters = List[torch.nn.Parameter]


def cut(parameters: Parameters, most_bytes: int) -> Iterator[Parameters]:
    """Parameters whose gradients travel together: of one type and device, to so many bytes."""
    open_parts: Dict[Any, Tuple[Parameters, int]] = {}
    for parameter in parameters:
        key = (parameter.dtype, parameter.device)
        members, held = open_parts.get(key, ([], 0))
        size = parameter.numel() * parameter.element_size()
        if members and held + size > most_bytes:
            yield members
            members, held = [], 0
        open_parts[key] = (members + [parameter], held + size)
    for members, _ in open_parts.values():
        yield members


class Bucket:
    """The gradients of some parameters, on their way through one all-reduce.

    They are divided by `divisor`: before they are rounded to `compression`, so that the sum
    overflows no sooner than the average, and else after they are added.
    """

    def __init__(
        self, parameters: Parameters, divisor: int, compression: Optional[torch.dtype]
    ) -> None:
        self.parameters = parameters
        self._divisor, self._compression = divisor, compression
        self._flat = torch.empty(0, device="cpu")
        self._handle: Any = None

    def start(self, ranks: Ranks) -> None:
        """Send what this rank has; a missing gradient counts as zeros."""
        self._flat = self._packed()
        self._handle = ranks.all_reduce(self._flat, async_op=True)

    def finish(self, held: Optional[List[int]] = None) -> torch.Tensor:
        """Wait, and give every parameter its result; all of it, as it came.

        A parameter that has no gradient gets one, unless `held` says for it that no rank has any.
        """
        self._handle.wait()
        flat, self._flat, self._handle = self._flat, torch.empty(0, device="cpu"), None
        if self._compression is None and self._divisor != 1:
            flat.div_(self._divisor)
        for index, (parameter, part) in enumerate(self._parts(flat)):
            if parameter.is_complex():
                part = torch.view_as_complex(part.to(parameter.dtype.to_real()))
            if parameter.grad is not None:
                parameter.grad.copy_(part)
            elif held is None or held[index]:
                parameter.grad = part.to(parameter.dtype, copy=True)
        return flat

    def _packed(self) -> torch.Tensor:
        first = self.parameters[0]
        count = sum(parameter.numel() for parameter in self.parameters)
        dtype = first.dtype.to_real() if first.is_complex() else first.dtype
        count *= 2 if first.is_complex() else 1
        flat = first.new_empty(count, dtype=self._compression or dtype, requires_grad=False)
        for parameter, part in self._parts(flat):
            if parameter.grad is None:
                part.zero_()
            elif self._compression is None or self._divisor == 1:
                part.copy_(as_real(as_seen(parameter.grad)))
            else:
                part.copy_(as_real(as_seen(parameter.grad)) / self._divisor)
        return flat

    def _parts(self, flat: torch.Tensor) -> Iterator[Tuple[torch.nn.Parameter, torch.Tensor]]:
        """Each parameter with its place in the packed tensor: complex numbers are pairs there."""
        offset = 0
        for parameter in self.parameters:
            shape = (*parameter.shape, 2) if parameter.is_complex() else parameter.shape
            count = math.prod(shape)
            yield parameter, flat[offset : offset + count].view(shape)
            offset += count
