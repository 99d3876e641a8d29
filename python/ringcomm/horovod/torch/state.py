"""What everyone starts with, Python objects, and batch normalization over all ranks."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Optional, Tuple, Union

import torch

from ...torch import metrics
from ...torch import SyncBatchNorm as _SyncBatchNorm
from ..job import rank
from .calls import broadcast_async_
from .group import ranks


def broadcast_parameters(
    params: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]], root_rank: int
) -> None:
    """Overwrite tensors with the root's: of `model.state_dict()`, or `model.named_parameters()`."""
    named = params.items() if isinstance(params, Mapping) else params
    tensors = [one for _, one in named if isinstance(one, torch.Tensor)]
    for handle in [broadcast_async_(tensor, root_rank) for tensor in tensors]:
        handle.wait()


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Give every rank the state of the root's optimizer: learning rates, momenta, steps."""
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """The root's Python object, on every rank."""
    return metrics.broadcast_object(obj, root_rank, ranks())


def allgather_object(obj: Any, name: Optional[str] = None) -> List[Any]:
    """Every rank's Python object, in the order of ranks."""
    return metrics.all_gather_object(obj, ranks())


class SyncBatchNorm(_SyncBatchNorm):
    """`ringcomm.torch.SyncBatchNorm` over the ranks of the job."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize; in training this is a call that every rank makes."""
        self.group = ranks()
        return super().forward(input)
