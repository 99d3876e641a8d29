"""What data parallelism begins with: rank 0's weights, everywhere."""

from __future__ import annotations

import torch
from torch import nn

from ...torch import broadcast_parameters
from ...torch.ranks import ranks_of
from ..amp.masters import master_of


def send_weights(module: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, and the masters of amp's O2."""
    broadcast_parameters(module)
    ranks = ranks_of(None)
    with torch.no_grad():
        for parameter in module.parameters():
            master = master_of(parameter)
            if master is not None:
                ranks.broadcast(master.detach(), 0)
