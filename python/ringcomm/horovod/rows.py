"""Rows of several ranks' tensors that become one: whether they fit together."""

from __future__ import annotations

import zlib
from typing import Iterable, Tuple

from .job import job


def row_signature(dtype: object, shape: Iterable[int]) -> int:
    """A number of a tensor's type and of its dimensions but the first."""
    dimensions = tuple(shape)
    return zlib.crc32(f"{dtype} {len(dimensions)} {dimensions[1:]}".encode())


def refuse_unlike(
    what: str, dtype: object, shape: Iterable[int], signatures: Iterable[int]
) -> None:
    """Where ranks' tensors do not fit together, by every rank's signature, say on all of them who
    has what; and where this one's has no dimension, as all of them have then."""
    mine: Tuple[str, Tuple[int, ...]] = (str(dtype), tuple(shape))
    if len(set(signatures)) == 1 and mine[1]:
        return
    each = job().comm.all_gather_object(mine)
    said = "; ".join(f"rank {one}: {has[0]} of shape {has[1]}" for one, has in enumerate(each))
    raise ValueError(
        f"{what}: tensors have one type on all ranks, one dimension at least, and the same ones "
        f"but for the first; {said}"
    )
