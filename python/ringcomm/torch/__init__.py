"""ringcomm as a backend of `torch.distributed`.

    import ringcomm.torch
    torch.distributed.init_process_group("ringcomm")

Releases of torch from 2.14 on find the backend by its name, without the import. It serves tensors
of the CPU and of CUDA devices, alone or beside another:
`init_process_group("cpu:ringcomm,cuda:nccl")`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

#: The oldest release that is tried.
OLDEST = (2, 6)
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(
        f"ringcomm.torch needs PyTorch 2.6 or later, and this is {torch.__version__}: install a "
        "later one, or use ringcomm's own calls (ringcomm.init), which take tensors of any"
    )

from .compiled import leave_out
from .data_parallel import DataParallel
from .gradients import Compression, broadcast_parameters, reduce_gradients
from .group import DEVICES, Group, create
from .membership import dead_ranks
from .metrics import all_gather_object, broadcast_object, reduce_mean
from .older import OLD, prepare
from .shared import empty_shared, share_buckets
from .sync_batchnorm import SyncBatchNorm, convert_sync_batchnorm

__all__ = [
    "Compression",
    "DataParallel",
    "Group",
    "SyncBatchNorm",
    "all_gather_object",
    "broadcast_object",
    "broadcast_parameters",
    "convert_sync_batchnorm",
    "dead_ranks",
    "empty_shared",
    "reduce_gradients",
    "reduce_mean",
    "register",
    "share_buckets",
]


def register() -> None:
    """Tell torch about the backend; importing this module does it."""
    if not hasattr(dist.Backend, "RINGCOMM"):
        dist.Backend.register_backend("ringcomm", create, extended_api=True, devices=DEVICES)


if OLD:
    prepare(Group)
leave_out()
register()
