"""Adasum: a sum of gradients that do not point the same way, and an average of those that do.

    adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

Of more than two ranks, of pairs of pairs: Maleki et al., "Scaling Distributed Training with
Adaptive Summation", 2020. Every rank has all tensors then, and adds them in the same order.
"""

from __future__ import annotations

import sys
from typing import Any, List, Sequence


def combined(parts: Sequence[Any]) -> Any:
    """Adasum of these float64 arrays or tensors, of neighbours first; their number is a power of
    two."""
    left: List[Any] = list(parts)
    while len(left) > 1:
        left = [_pair(one, other) for one, other in zip(left[::2], left[1::2])]
    return left[0]


def _pair(one: Any, other: Any) -> Any:
    along = float((one * other).sum())
    # Of zeros there is nothing to take away.
    mine, its = (max(float((part * part).sum()), sys.float_info.min) for part in (one, other))
    return (1 - along / (2 * mine)) * one + (1 - along / (2 * its)) * other


def check(ranks: int, types: Sequence[Any], floating: Sequence[bool]) -> None:
    """Raise where Adasum cannot be made of tensors of these types between so many ranks."""
    if ranks & (ranks - 1):
        raise NotImplementedError(f"Adasum is for a power of two of ranks; there are {ranks}")
    for kind, fits in zip(types, floating):
        if not fits:
            raise ValueError(f"Adasum is for floating point numbers; not for {kind}")
