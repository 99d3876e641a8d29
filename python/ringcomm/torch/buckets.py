"""Gradients that travel together: packed into one tensor, reduced, and unpacked again."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

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
    overflows no sooner than the average, and else after they are added. Who gives `predivisor` has
    them divided by that before, and by the rest after.

    With `marked` what travels ends with a mark for each parameter that has a gradient on some rank.
    """

    def __init__(
        self,
        parameters: Parameters,
        divisor: float,
        compression: Optional[torch.dtype],
        predivisor: Optional[float] = None,
        marked: bool = False,
    ) -> None:
        self.parameters = parameters
        if predivisor is None:
            predivisor = 1 if compression is None else divisor
        self._before, self._after = predivisor, divisor / predivisor
        self._compression, self._marked = compression, marked
        self._flat = torch.empty(0, device="cpu")
        self._handle: Any = None

    def start(self, ranks: Ranks) -> None:
        """Send what this rank has; a missing gradient counts as zeros."""
        self._flat = self._packed()
        self._handle = ranks.all_reduce(self._flat, async_op=True)

    def finish(self, held: Optional[Sequence[float]] = None) -> torch.Tensor:
        """Wait, and give every parameter its result; all of it, as it came.

        A parameter that has no gradient gets one, unless `held`, or the marks that travelled, say
        for it that no rank has any.
        """
        self._handle.wait()
        flat, self._flat, self._handle = self._flat, torch.empty(0, device="cpu"), None
        if self._after != 1:
            flat.div_(self._after)
        if self._marked and any(parameter.grad is None for parameter in self.parameters):
            held = flat[-len(self.parameters) :].tolist()
        for index, (parameter, part) in enumerate(self.parts(flat)):
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
        marks = [parameter.grad is not None for parameter in self.parameters] * self._marked
        wire = self._compression or dtype
        flat = first.new_empty(count + len(marks), dtype=wire, requires_grad=False)
        for parameter, part in self.parts(flat):
            if parameter.grad is None:
                part.zero_()
                continue
            gradient = as_real(as_seen(parameter.grad))
            if self._before != 1:
                # A wider type first, and a narrower one last, so that nothing is rounded twice.
                gradient = gradient.to(torch.promote_types(dtype, wire)) / self._before
            part.copy_(gradient)
        if marks:
            flat[count:].copy_(torch.tensor(marks, device="cpu"), non_blocking=True)
        return flat

    def parts(self, flat: torch.Tensor) -> Iterator[Tuple[torch.nn.Parameter, torch.Tensor]]:
        """Each parameter with its place in the packed tensor: complex numbers are pairs there."""
        offset = 0
        for parameter in self.parameters:
            shape = (*parameter.shape, 2) if parameter.is_complex() else parameter.shape
            count = math.prod(shape)
            yield parameter, flat[offset : offset + count].view(shape)
            offset += count
