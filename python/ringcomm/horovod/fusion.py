"""Reductions in host memory: small ones are packed together and reduced as one."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .._native import failure, last_error, lib
from ..communicator import Communicator
from .requests import Request, Signature

#: What a rank that has joined does for the others, in place of an operation of its own.
Zeros = Optional[Callable[[Signature], Any]]

#: A piece of a request: where it lies (None: zeros, of a rank that has joined), count, and bytes.
Part = Tuple[Optional[int], int, int]


def reduce_together(
    comm: Communicator,
    reduction: int,
    most_bytes: int,
    packed_bytes: int,
    wanted: Sequence[Tuple[Signature, Optional[Request]]],
) -> None:
    """Reduce the pieces of all of these; every rank has the same signatures, in the same order.

    Pieces of up to `packed_bytes` are reduced together, so that `most_bytes` are at most.
    """
    small: Dict[int, List[Part]] = {}
    sizes: Dict[int, int] = {}
    for signature, request in wanted:
        for index, (kind, count, nbytes) in enumerate(signature.pieces):
            if not count:
                continue
            part = (None if request is None else request.places[index], count, nbytes)
            if nbytes > min(most_bytes, packed_bytes):
                _reduce(comm, reduction, kind, [part])
                continue
            if sizes.get(kind, 0) + nbytes > most_bytes:
                _reduce(comm, reduction, kind, small.pop(kind))
                sizes[kind] = 0
            small.setdefault(kind, []).append(part)
            sizes[kind] = sizes.get(kind, 0) + nbytes
    for kind, parts in small.items():
        _reduce(comm, reduction, kind, parts)


def _reduce(comm: Communicator, reduction: int, kind: int, parts: List[Part]) -> None:
    if len(parts) == 1 and parts[0][0] is not None:
        _all_reduce(comm, parts[0][0], parts[0][1], kind, reduction)
        return
    packed = (ctypes.c_uint8 * sum(nbytes for _, _, nbytes in parts))()
    start = at = ctypes.addressof(packed)
    for place, _, nbytes in parts:
        if place is not None:
            ctypes.memmove(at, place, nbytes)
        at += nbytes
    _all_reduce(comm, start, sum(count for _, count, _ in parts), kind, reduction)
    at = start
    for place, _, nbytes in parts:
        if place is not None:
            ctypes.memmove(place, at, nbytes)
        at += nbytes


def _all_reduce(comm: Communicator, place: int, count: int, kind: int, reduction: int) -> None:
    result = lib.ringAllReduce(place, place, count, kind, reduction, comm.handle, None)
    if result:
        raise failure(result, last_error(), comm.rank)
