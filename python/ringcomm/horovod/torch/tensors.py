"""Tensors as the coordinator's requests have them: what ranks compare, and where they lie."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from ..._native import ReduceOp
from ...torch.types import as_seen, check, reducible
from ..coordinator import Coordinator
from ..operations import name_of
from ..process_sets import ProcessSet
from ..requests import Described, Request, Signature
from .group import TORCH_OPS, Options, group_of

Tensor = torch.Tensor


def described(tensor: Tensor, but_first: bool = False) -> Described:
    """A tensor's type and shape; `but_first`: ranks may differ in the first dimension."""
    shape: Tuple[Optional[int], ...] = tuple(tensor.shape)
    if but_first and shape:
        shape = (None, *shape[1:])
    return str(tensor.dtype)[6:], shape


def device_of(tensors: Sequence[Tensor], what: str) -> str:
    """The kind of device that all of these are on."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise ValueError(
            f"{what}: tensors on different devices, {sorted(map(str, devices))}; move them to one"
        )
    return devices.pop().type if devices else "cpu"


def bytes_of(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory."""
    return tensor.reshape(-1).view(torch.uint8)


def on_its_stream(tensor: Tensor, run: Callable[[], Any]) -> Callable[[], Any]:
    """What the coordinator runs in its thread, behind what this thread has put on the device."""
    if not tensor.is_cuda:
        return run
    stream = torch.cuda.current_stream(tensor.device)

    def running() -> Any:
        with torch.cuda.stream(stream):
            return run()

    return running


#: The signatures of single tensors that are reduced: a program has few, and uses them often.
_known: "dict[Tuple[Any, ...], Signature]" = {}


def reduction(
    tensors: List[Tensor],
    op: ReduceOp,
    factors: Tuple[float, float],
    process_set: ProcessSet,
    name: Optional[str],
    result: Callable[[], Any],
    soon: bool,
) -> Request:
    """Reduce tensors where they lie, as one operation."""
    coordinator = process_set.coordinator
    places = tensors
    if not _plain(tensors):
        places = [one if _plain([one]) else as_seen(one).contiguous() for one in tensors]
        result = _brought_back([*zip(tensors, places)], result)
    named = coordinator.name("allreduce", name)
    signature = _signature(places, op, factors)
    if signature.device != "cpu":
        return coordinator.submit(
            Request(named, signature, result, _on_device(coordinator, places, op), keep=places),
            soon,
        )
    where = tuple(place.data_ptr() for place in places)
    return coordinator.submit(Request(named, signature, result, None, where, places), soon)


def _plain(tensors: Sequence[Tensor]) -> bool:
    """Whether the memory of each is what it shows."""
    if len(tensors) == 1:
        (one,) = tensors
        return one.is_contiguous() and not one.is_neg() and not one.is_conj()
    return (
        all(map(Tensor.is_contiguous, tensors))
        and not any(map(Tensor.is_neg, tensors))
        and not any(map(Tensor.is_conj, tensors))
    )


def _signature(places: List[Tensor], op: ReduceOp, factors: Tuple[float, float]) -> Signature:
    key = (op, factors, *[(one.dtype, one.shape, one.device) for one in places])
    found = _known.get(key)
    if found is None:
        pieces = []
        for place in places:
            kind, count = reducible(check(place, "allreduce"), TORCH_OPS[op])
            pieces.append((kind, count, place.nbytes))
        device = device_of(places, "allreduce")
        how: List[Tuple[str, Any]] = [("op", name_of(op))]
        for said, factor in zip(("prescale_factor", "postscale_factor"), factors):
            if factor != 1.0:
                how.append((said, factor))
        found = Signature.of(
            "allreduce",
            tuple(described(place) for place in places),
            tuple(how),
            device,
            int(op),
            tuple(pieces) if device == "cpu" else (),
        )
        if len(_known) > 1 << 14:
            _known.clear()
        _known[key] = found
    return found


def _on_device(coordinator: Coordinator, places: List[Tensor], op: ReduceOp) -> Callable[[], Any]:
    return on_its_stream(
        places[0], lambda: group_of(coordinator).allreduce(places, Options(op))
    )


def _brought_back(
    pairs: List[Tuple[Tensor, Tensor]], result: Callable[[], Any]
) -> Callable[[], Any]:
    def finished() -> Any:
        for tensor, place in pairs:
            if place is not tensor:
                tensor.copy_(place)
        return result()

    return finished


def zeros_like(signature: Signature, device: torch.device) -> List[Tensor]:
    """Zeros in place of tensors on a device that only the other ranks have."""
    return [
        torch.zeros(shape, dtype=getattr(torch, dtype), device=device)  # type: ignore[arg-type]
        for dtype, shape in signature.tensors
    ]
