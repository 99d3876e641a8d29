"""What everyone starts with, Python objects, and batch normalization over all ranks."""

from __future__ import annotations

import itertools
import zlib
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import torch

from ...torch import SyncBatchNorm as _SyncBatchNorm
from ..job import job, rank
from .calls import broadcast_async_
from .group import JobRanks, ranks


def broadcast_parameters(
    params: Union[Mapping[str, Any], Iterable[Union[torch.Tensor, Tuple[str, Any]]]], root_rank: int
) -> None:
    """Overwrite tensors with the root's: of `model.state_dict()`, `model.named_parameters()` or
    `model.parameters()`. Those of a mapping belong together by their names."""
    given = sorted(params.items()) if isinstance(params, Mapping) else params
    named = [one if isinstance(one, tuple) else ("", one) for one in given]
    tensors = [tensor for _, tensor in named]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"broadcast_parameters: {tensor!r} is no tensor; broadcast_object sends it"
            )
    _refuse_others([(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in named])
    for handle in [broadcast_async_(tensor, root_rank) for tensor in tensors]:
        handle.wait()


def _refuse_others(mine: List[Tuple[str, str, Tuple[int, ...]]]) -> None:
    """Where ranks have other tensors than rank 0, say on every rank which is the first."""
    comm = job().comm
    if len(set(comm.all_gather_object(zlib.crc32(repr(mine).encode())))) == 1:
        return
    everyones = comm.all_gather_object(mine)
    for other, theirs in enumerate(everyones):
        for first, second in itertools.zip_longest(everyones[0], theirs):
            if first != second:
                raise ValueError(
                    "broadcast_parameters: ranks have different tensors (name, type, shape): "
                    f"rank 0 has {first}, and rank {other} has {second}"
                )


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None
) -> None:
    """Give every rank the state of the root's optimizer: learning rates, momenta, steps.

    `model` is not needed.
    """
    state = broadcast_object(_on_cpu(optimizer.state_dict()), root_rank)
    if rank() != root_rank:
        load_in_place(optimizer, optimizer.load_state_dict, state)


def load_in_place(
    optimizer: torch.optim.Optimizer, load: Callable[[Dict[str, Any]], Any], state: Dict[str, Any]
) -> None:
    """Load a state into the objects that others hold: a scheduler that was made before
    `DistributedOptimizer` changes the learning rate there."""
    groups, slots = optimizer.param_groups, optimizer.state
    load(state)
    for old, new in zip(groups, optimizer.param_groups):
        old.update(new)
    loaded = dict(optimizer.state)
    slots.clear()
    slots.update(loaded)
    optimizer.param_groups, optimizer.state = groups, slots


def _on_cpu(value: Any) -> Any:
    """With copies of tensors that are elsewhere: ranks would all load them onto the root's GPU."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_on_cpu(one) for one in value]
    return value


def broadcast_object(obj: Any = None, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """The root's Python object, on every rank."""
    return job().comm.broadcast_object(obj, root_rank)


def allgather_object(obj: Any, name: Optional[str] = None) -> List[Any]:
    """Every rank's Python object, in the order of ranks."""
    gathered: List[Any] = job().comm.all_gather_object(obj)
    return gathered


class SyncBatchNorm(_SyncBatchNorm):
    """`ringcomm.torch.SyncBatchNorm` over the ranks of the job."""

    def _ranks(self) -> JobRanks:
        # Asked for each time: a module that kept them could not be copied or saved, and outlives
        # the job.
        return ranks()
