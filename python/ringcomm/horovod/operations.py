"""Horovod's names of the reductions, and which of them a call asks for."""

from __future__ import annotations

from typing import Any, Optional, Union

from .._native import ReduceOp

Average, Sum, Product = ReduceOp.AVG, ReduceOp.SUM, ReduceOp.PROD
Min, Max = ReduceOp.MIN, ReduceOp.MAX


class _Adasum:
    """The adaptive sum: see `adasum`."""

    def __repr__(self) -> str:
        return "Adasum"


Adasum = _Adasum()

Op = Union[ReduceOp, _Adasum]

_NAMES = {Average: "Average", Sum: "Sum", Product: "Product", Min: "Min", Max: "Max"}


def name_of(op: Any) -> str:
    """Horovod's name of a reduction."""
    return _NAMES.get(op) or repr(op)


def asked_for(average: Optional[bool], op: Optional[Op]) -> Op:
    """What a call asks for that may say `average`, `op` or nothing."""
    if average is not None and op is not None:
        raise ValueError("average and op say the same thing; give op alone")
    if op is not None:
        return op
    return Sum if average is False else Average


def linear(op: Any, what: str) -> ReduceOp:
    """The operation, which must be one of the two through which gradients can be told."""
    if op not in (Average, Sum):
        raise ValueError(f"{what} are averaged or summed; {name_of(op)} is neither")
    found: ReduceOp = op
    return found
