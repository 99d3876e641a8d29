"""Batch normalization over the batches of all ranks, with apex's arguments."""

from __future__ import annotations

import functools
from typing import Any, Optional

import torch
import torch.distributed as dist

from ...torch import SyncBatchNorm as _SyncBatchNorm
from ...torch.ranks import Group, Ranks, ranks_of
from ...torch.sync_batchnorm import convert


class SyncBatchNorm(_SyncBatchNorm):
    """`ringcomm.torch.SyncBatchNorm` with apex's arguments.

    Args:
        process_group: whose batches are one; None is the default process group.
        channel_last: the last dimension of inputs is that of channels, and not the second.
        fuse_relu: the output goes through a ReLU.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: Optional[float] = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Group = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, process_group)
        self.channel_last, self.fuse_relu = channel_last, fuse_relu

    @property
    def process_group(self) -> Group:
        """Whose batches are one."""
        return self.group

    @process_group.setter
    def process_group(self, group: Group) -> None:
        self.group = group

    def _ranks(self) -> Optional[Ranks]:
        # A script that is started alone makes no process group.
        return ranks_of(self.group) if self.group or dist.is_initialized() else None

    def forward(self, input: torch.Tensor, z: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Normalize; `z`, if any, is added to the output."""
        moved = input.movedim(-1, 1) if self.channel_last else input
        output = super().forward(moved)
        output = output.movedim(1, -1) if self.channel_last else output
        output = output if z is None else output + z
        return torch.relu(output) if self.fuse_relu else output


def convert_syncbn_model(
    module: torch.nn.Module, process_group: Group = None, channel_last: bool = False
) -> torch.nn.Module:
    """The module, with each BatchNorm in it a SyncBatchNorm on the same parameters."""
    make: Any = functools.partial(SyncBatchNorm, channel_last=channel_last)
    return convert(module, process_group, make)


def create_syncbn_process_group(group_size: int) -> Any:
    """The group of this rank, of those that have so many ranks each; every rank makes the call.

    0 stands for all ranks, and gives None, which stands for them, too.
    """
    if group_size == 0:
        return None
    ranks = dist.get_world_size()
    if group_size < 0 or ranks % group_size:
        raise ValueError(
            f"create_syncbn_process_group: {ranks} ranks do not make groups of {group_size}; give "
            "a number that divides them"
        )
    mine: Any = None
    for first in range(0, ranks, group_size):
        group = dist.new_group(list(range(first, first + group_size)))
        if first <= dist.get_rank() < first + group_size:
            mine = group
    return mine
