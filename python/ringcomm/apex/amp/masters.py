"""Masters: copies in float32 of weights in half precision, which the optimizer steps.

A weight has its master as an attribute, so that checkpoints of the model, and the broadcast at the
beginning of DistributedDataParallel, find it.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

_NAME = "_amp_master"


def make_master(weight: torch.Tensor) -> torch.Tensor:
    """A new master of this weight."""
    master = weight.detach().clone().float().requires_grad_()
    setattr(weight, _NAME, master)
    return master


def master_of(weight: Any) -> Optional[torch.Tensor]:
    """The weight's master, if it has one."""
    return getattr(weight, _NAME, None)


def _exact(weight: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
    """The master where it rounds to the weight; the weight where somebody has changed that."""
    weight, master = weight.detach(), master.detach()
    return torch.where(master.to(weight.dtype) == weight, master, weight.float())


def full(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What a checkpoint keeps of a tensor in half precision: its master, or it in float32."""
    master = master_of(weight)
    if master is None or master.shape != value.shape:
        return value.float()
    return _exact(weight, master)


def restore(weight: torch.Tensor, value: torch.Tensor) -> None:
    """Take the master of a weight, if there is one, from a checkpoint."""
    master = master_of(weight)
    if master is not None and master.shape == value.shape:
        with torch.no_grad():
            master.copy_(value)


def refresh(weight: torch.Tensor, master: torch.Tensor) -> None:
    """Let the master follow a weight that was changed, as by a broadcast from rank 0."""
    with torch.no_grad():
        master.copy_(_exact(weight, master))
