"""Horovod's names of the reductions, and which of them a call asks for."""

from __future__ import annotations

from typing import Optional

from .._native import ReduceOp

Average, Sum, Product = ReduceOp.AVG, ReduceOp.SUM, ReduceOp.PROD
Min, Max = ReduceOp.MIN, ReduceOp.MAX


def asked_for(average: Optional[bool], op: Optional[ReduceOp]) -> ReduceOp:
    """What a call asks for that may say `average`, `op` or nothing."""
    if average is not None and op is not None:
        raise ValueError("average and op say the same thing; give op alone")
    if op is not None:
        return op
    return Sum if average is False else Average


def linear(op: ReduceOp, what: str) -> ReduceOp:
    """The operation, which must be one of the two through which gradients can be told."""
    if op not in (Average, Sum):
        raise ValueError(f"{what} are averaged or summed; {op!r} is neither")
    return op
