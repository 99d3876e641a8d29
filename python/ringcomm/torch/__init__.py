"""ringcomm as a backend of `torch.distributed`.

    import ringcomm.torch
    torch.distributed.init_process_group("ringcomm")

Releases of torch from 2.14 on find the backend by its name, without the import. It serves tensors of
the CPU and of CUDA devices, alone or beside another: `init_process_group("cpu:ringcomm,cuda:nccl")`.
"""

from __future__ import annotations

import torch.distributed as dist

from .group import DEVICES, Group, create

__all__ = ["Group", "register"]


def register() -> None:
    """Tell torch about the backend; importing this module does it."""
    if not hasattr(dist.Backend, "RINGCOMM"):
        dist.Backend.register_backend("ringcomm", create, extended_api=True, devices=DEVICES)


register()
