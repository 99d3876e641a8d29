"""Gradients of hand-written loops: one call, just before the step, averages them over all ranks.

Nothing is exchanged during the backward passes, so a loop may run as many of them as it likes, over
models of any shape, and pays for one exchange. Every rank gets the same bits, so each one sees for
itself whether a gradient overflowed anywhere, and all of them decide alike.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import torch

from .._native import ReduceOp
from .ranks import Group, Ranks, ranks_of

#: Bytes that travel in one call: torch's DistributedDataParallel uses the same.
BUCKET_BYTES = 25 << 20

Parameters = Union[torch.nn.Module, Iterable[torch.nn.Parameter]]


class Compression:
    """What gradients are rounded to on their way, under Horovod's names."""

    none: Optional[torch.dtype] = None
    fp16: Optional[torch.dtype] = torch.float16
    bf16: Optional[torch.dtype] = torch.bfloat16


def reduce_gradients(
    model: Parameters,
    *,
    update_cycle: int = 1,
    average: bool = True,
    compression: Optional[torch.dtype] = Compression.none,
    scaler: Optional["torch.amp.GradScaler"] = None,
    bucket_bytes: int = BUCKET_BYTES,
    group: Group = None,
) -> bool:
    """Average the gradients of a model, or of these parameters, over all ranks.

    Call it on every rank once the backward passes are done and before `step`. The answer is whether
    all gradients are finite; it is the same on every rank, and a loop that scales its loss by hand
    skips the step where it is False. torch's GradScaler finds the same by itself; give it as
    `scaler` if its `unscale_` was called before, so that what one rank found is known to all.

    Args:
        update_cycle: how many backward passes were accumulated; the result is their average.
        average: False gives the sum over ranks and passes.
        compression: the type that gradients are rounded to for the exchange, as `Compression.fp16`.
            They are divided first, so that the sum overflows no sooner than the average.
        bucket_bytes: how much travels in one call.
        group: a process group or a `ringcomm.Communicator`; None is the default process group.

    A parameter without a gradient on this rank counts as zeros, and keeps None if no rank has one.
    """
    ranks = ranks_of(group)
    parameters = _wanted(model)
    if not parameters:
        return True
    present = torch.tensor(
        [parameter.grad is not None for parameter in parameters], dtype=torch.uint8
    ).to(parameters[0].device)
    waiting: List[Any] = [ranks.all_reduce(present, ReduceOp.MAX, async_op=True)]
    divisor = ranks.size * update_cycle if average else 1
    buckets: List[Tuple[List[int], torch.Tensor]] = []
    for members in _buckets(parameters, bucket_bytes):
        flat = _packed([parameters[index] for index in members], compression, divisor)
        waiting.append(ranks.all_reduce(flat, async_op=True))
        buckets.append((members, flat))
    for handle in waiting:
        handle.wait()
    held = present.tolist()
    finite = True
    for members, flat in buckets:
        finite = _all_finite(flat) and finite
        if compression is None and divisor != 1:
            flat.div_(divisor)
        _unpack([(parameters[index], held[index]) for index in members], flat)
    if scaler is not None:
        finite = _share_overflow(scaler, ranks) and finite
    return finite


def _wanted(model: Parameters) -> List[torch.nn.Parameter]:
    if isinstance(model, torch.nn.Module):
        model = model.parameters()
    parameters = [parameter for parameter in model if parameter.requires_grad]
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise ValueError(
                f"a gradient of shape {tuple(gradient.shape)} is sparse; make its layer with "
                "sparse=False, or reduce it by itself"
            )
    return parameters


def _buckets(parameters: List[torch.nn.Parameter], most_bytes: int) -> Iterator[List[int]]:
    """Indexes of parameters that travel together: of one type and device, to so many bytes."""
    open_buckets: Dict[Any, Tuple[List[int], int]] = {}
    for index, parameter in enumerate(parameters):
        key = (parameter.dtype, parameter.device)
        members, held = open_buckets.get(key, ([], 0))
        size = parameter.numel() * parameter.element_size()
        if members and held + size > most_bytes:
            yield members
            members, held = [], 0
        open_buckets[key] = (members + [index], held + size)
    for members, _ in open_buckets.values():
        yield members


def _packed(
    parameters: List[torch.nn.Parameter], compression: Optional[torch.dtype], divisor: int
) -> torch.Tensor:
    """The gradients one after the other, as they travel."""
    first = parameters[0]
    count = sum(parameter.numel() for parameter in parameters)
    flat = first.new_empty(count, dtype=compression or first.dtype, requires_grad=False)
    offset = 0
    for parameter in parameters:
        part = flat[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
        if parameter.grad is None:
            part.zero_()
        elif compression is None or divisor == 1:
            part.copy_(parameter.grad)
        else:
            part.copy_(parameter.grad / divisor)
    return flat


def _unpack(members: List[Tuple[torch.nn.Parameter, int]], flat: torch.Tensor) -> None:
    offset = 0
    for parameter, held in members:
        part = flat[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
        if parameter.grad is not None:
            parameter.grad.copy_(part)
        elif held:
            parameter.grad = part.to(parameter.dtype, copy=True)


def _all_finite(flat: torch.Tensor) -> bool:
    if flat.numel() == 0 or not flat.is_floating_point():
        return True
    # A NaN is both the least and the greatest.
    low, high = flat.aminmax()
    return bool(torch.isfinite(low)) and bool(torch.isfinite(high))


def _share_overflow(scaler: "torch.amp.GradScaler", ranks: Ranks) -> bool:
    """Tell every rank's scaler what any of them found when it unscaled."""
    finite = True
    for state in scaler._per_optimizer_states.values():
        for found in state["found_inf_per_device"].values():
            ranks.all_reduce(found, ReduceOp.MAX)
            finite = finite and not found.item()
    return finite


def broadcast_parameters(model: torch.nn.Module, root: int = 0, group: Group = None) -> None:
    """Give every rank the root's parameters and buffers, as at the start of training."""
    ranks = ranks_of(group)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            here = tensor.detach().contiguous()
            ranks.broadcast(here, root)
            if here.data_ptr() != tensor.data_ptr():
                tensor.copy_(here)
