"""`RINGCOMM_AS_BACKEND=nccl`: programs that ask torch.distributed for nccl get ringcomm.

torch calls `install` at the end of its import: the `.dist-info` beside this file names it, and is
found where this folder is on Python's path. It is how torch loads what packages add to it.
"""

from __future__ import annotations

import os
from typing import Any, FrozenSet

#: Names of backends, with commas between them. Unset, all stay what they are.
VARIABLE = "RINGCOMM_AS_BACKEND"


def names() -> FrozenSet[str]:
    """The backends whose place ringcomm takes."""
    said = os.environ.get(VARIABLE, "").lower().split(",")
    return frozenset(name.strip() for name in said) - {""}


def install() -> None:
    """Let these names stand for ringcomm, in every call that takes the name of a backend."""
    replaced = names()
    if not replaced:
        return
    import torch.distributed as dist

    unknown = sorted(replaced - set(dist.Backend.backend_list))
    if unknown:
        raise ValueError(
            f"{VARIABLE}: torch has no backend {', '.join(unknown)}; name nccl, gloo or both"
        )
    plain: Any = dist.Backend.__new__

    def named(cls: Any, name: Any) -> Any:
        if isinstance(name, str) and name.lower() in replaced:
            import ringcomm.torch  # noqa: F401  it registers the backend

            return "ringcomm"
        return plain(cls, name)

    # All of torch's functions, and its `cpu:gloo,cuda:nccl`, read names by this class.
    setattr(dist.Backend, "__new__", named)
