"""Data parallelism with apex's interface, over torch's default process group, whatever backend it
has; `torch.distributed.init_process_group("ringcomm")` takes ringcomm."""

from __future__ import annotations

from typing import Any

from torch.distributed import ReduceOp

from ..missing import missing
from .distributed import DistributedDataParallel
from .reducer import Reducer
from .sync_batchnorm import SyncBatchNorm, convert_syncbn_model, create_syncbn_process_group

__all__ = [
    "DistributedDataParallel", "ReduceOp", "Reducer", "SyncBatchNorm", "convert_syncbn_model",
    "create_syncbn_process_group",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
