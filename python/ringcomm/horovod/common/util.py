"""What programs and tests use of `horovod.common.util`."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
from typing import Any, Callable, Iterator, List, Sequence

from ..job import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

__all__ = [
    "ccl_built", "cuda_built", "ddl_built", "env", "extension_available", "gloo_built",
    "gpu_available", "is_version_greater_equal_than", "mpi_built", "nccl_built",
    "num_rank_is_power_2", "rocm_built", "split_list",
]  # fmt: skip


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether this framework can be used: whether it is installed, and is one of those here."""
    here = ext_base_name in ("torch", "tensorflow")
    return here and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU."""
    if ext_base_name != "torch" or not extension_available("torch"):
        return False
    import torch

    return torch.cuda.is_available()


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is this one or later, by its numbers."""
    mine, its = ([int(one) for one in re.findall(r"\d+", text)[:3]] for text in (ver, target))
    return mine >= its


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], num_parts: int) -> List[Sequence[Any]]:
    """So many parts, one after the other, of which the first have one item more."""
    each, more = divmod(len(items), num_parts)
    ends = [each * n + min(n, more) for n in range(num_parts + 1)]
    return [items[first:end] for first, end in zip(ends, ends[1:])]


@contextlib.contextmanager
def env(**variables: str) -> Iterator[None]:
    """With these environment variables, as long as the block runs."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _cache(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function, which is called once."""
    return functools.lru_cache(maxsize=None)(function)
