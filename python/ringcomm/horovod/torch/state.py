"""What everyone starts with, Python objects, and batch normalization over all ranks."""

from __future__ import annotations

import itertools
import zlib
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import torch

from ...torch import SyncBatchNorm as _SyncBatchNorm
from .. import objects
from ..job import rank
from ..process_sets import ProcessSet, global_process_set
from .calls import broadcast_async_
from .group import JobRanks, layer_ranks


def broadcast_parameters(
    params: Union[Mapping[str, Any], Iterable[Union[torch.Tensor, Tuple[str, Any]]]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
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
    mine = [(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in named]
    _refuse_others(mine, process_set)
    for handle in [
        broadcast_async_(tensor, root_rank, name, process_set) for name, tensor in named
    ]:
        handle.wait()


def _refuse_others(mine: List[Tuple[str, str, Tuple[int, ...]]], among: ProcessSet) -> None:
    """Where ranks have other tensors than rank 0, say on every rank which is the first."""
    digest = zlib.crc32(repr(mine).encode())
    if len(set(objects.allgather_object(digest, process_set=among))) == 1:
        return
    everyones = objects.allgather_object(mine, process_set=among)
    for other, theirs in enumerate(everyones):
        for first, second in itertools.zip_longest(everyones[0], theirs):
            if first != second:
                raise ValueError(
                    "broadcast_parameters: ranks have different tensors (name, type, shape): "
                    f"rank 0 has {first}, and rank {other} has {second}"
                )


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank the state of the root's optimizer: learning rates, momenta, steps.

    As with Horovod, parameters that have no gradient have one of zeros then. `model` is not needed.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    own = _on_cpu(optimizer.state_dict())
    state = objects.broadcast_object(own, root_rank, process_set=process_set)
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


class SyncBatchNorm(_SyncBatchNorm):
    """`ringcomm.torch.SyncBatchNorm` over the ranks of the job."""

    def _ranks(self) -> JobRanks:
        # Asked for each time: a module that kept them could not be copied or saved, and outlives
        # the job.
        return layer_ranks()
