"""Integers on their way to C: ctypes cuts those that its types have no room for, in silence."""

from __future__ import annotations

from operator import index
from typing import Any

from ._native import ReduceOp, Result
from .errors import RingArgumentError

#: C's int, of which most arguments are, and its size_t.
INT_LEAST, INT_MOST = -(2**31), 2**31 - 1
SIZE_MOST = 2**64 - 1

#: What to give instead.
RANK = "the number of a rank, from 0 to one less than there are ranks"
OPERATION = "SUM, PROD, MAX, MIN, AVG, BAND, BOR or BXOR of ringcomm, or what pre_mul_sum made"


def integer(
    value: Any, name: str, advice: str, least: int = INT_LEAST, most: int = INT_MOST
) -> int:
    """The value of an argument, where it is an integer that C has room for."""
    try:
        number = index(value)
        if least <= number <= most:
            return number
    except TypeError:
        pass
    raise unusable(value, name, advice)


def unusable(value: Any, name: str, advice: str) -> RingArgumentError:
    """The error for an argument that C cannot be given."""
    # Of an array the elements would be the whole text.
    plain = value is None or isinstance(value, (int, float, str))
    if isinstance(value, int) and value.bit_length() > 256:
        plain = False
    shown = repr(value) if plain else f"a {type(value).__name__}"
    return RingArgumentError(f"{name} is {shown}; give {advice}", Result.INVALID_ARGUMENT)


def operation(op: Any) -> Any:
    """The number of a reduction, or what has one."""
    if type(op) is ReduceOp or hasattr(op, "_as_parameter_"):
        return op
    return integer(op, "op", OPERATION)
