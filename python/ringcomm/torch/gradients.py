"""Gradients of hand-written loops: one call, just before the step, averages them over all ranks.

Nothing is exchanged during the backward passes, so a loop may run as many of them as it likes, over
models of any shape, and pays for one exchange. Every rank gets the same bits, so each one sees for
itself whether a gradient overflowed anywhere, and all of them decide alike.
"""

from __future__ import annotations

from typing import Iterable, List, Optional, Union

import torch

from .._native import ReduceOp
from .buckets import Bucket, cut
from .ranks import Group, Ranks, ranks_of
from .types import as_real, as_seen

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
    `scaler` if its `unscale_` was called before: where it is False, every optimizer that was
    unscaled then skips its step, on every rank.

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
        [parameter.grad is not None for parameter in parameters],
        dtype=torch.uint8,
        device=parameters[0].device,
    )
    counted = ranks.all_reduce(present, ReduceOp.MAX, async_op=True)
    divisor = ranks.size * update_cycle if average else 1
    buckets = [Bucket(part, divisor, compression) for part in cut(parameters, bucket_bytes)]
    for bucket in buckets:
        bucket.start(ranks)
    counted.wait()
    held = dict(zip(map(id, parameters), present.tolist()))
    finite = True
    for bucket in buckets:
        finite = _all_finite(bucket.finish([held[id(one)] for one in bucket.parameters])) and finite
    if scaler is not None:
        finite = _share_overflow(scaler, ranks, finite, parameters[0].device)
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


def _all_finite(flat: torch.Tensor) -> bool:
    if flat.numel() == 0 or not flat.is_floating_point():
        return True
    # A NaN is both the least and the greatest.
    low, high = flat.aminmax()
    return bool(torch.isfinite(low)) and bool(torch.isfinite(high))


def _share_overflow(
    scaler: "torch.amp.GradScaler", ranks: Ranks, finite: bool, device: torch.device
) -> bool:
    """Tell every rank's scaler what any of them found when it unscaled, or the exchange has made.

    One flag, whatever the scaler of this rank has seen: that of another may have seen more.
    """
    found = _found(scaler, device)
    overflow = not finite or any(one.item() for one in found)
    flag = torch.full((1,), float(overflow), dtype=torch.float32, device=device)
    ranks.all_reduce(flag, ReduceOp.MAX)
    if not flag.item():
        return True
    for one in found:
        one.fill_(1)
    return False


def _found(scaler: "torch.amp.GradScaler", device: torch.device) -> List[torch.Tensor]:
    """What says of each optimizer that was unscaled whether its gradients had overflowed."""
    found: List[torch.Tensor] = []
    # A scaler that is not enabled has none.
    for state in getattr(scaler, "_per_optimizer_states", {}).values():
        here = state["found_inf_per_device"]
        if not here and state["stage"].name == "UNSCALED":
            # No gradient was there yet; `step` refuses an optimizer of which nothing is known.
            here[device] = torch.zeros((), dtype=torch.float32, device=device)
        found += here.values()
    return found


def broadcast_parameters(model: torch.nn.Module, root: int = 0, group: Group = None) -> None:
    """Give every rank the root's parameters and buffers, as at the start of training."""
    ranks = ranks_of(group)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            here = as_seen(tensor.detach()).contiguous()
            ranks.broadcast(as_real(here), root)
            if here.data_ptr() != tensor.data_ptr():
                tensor.copy_(here)
