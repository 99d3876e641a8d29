"""Reductions in host memory: small ones are packed together and reduced as one."""

from __future__ import annotations

import ctypes
from collections import deque
from itertools import accumulate
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .._native import failure, last_error, lib
from ..communicator import Communicator
from .requests import Request, Signature

#: What a rank that has joined does for the others, in place of an operation of its own.
Zeros = Optional[Callable[[Signature], Any]]


#: Bytes of a buffer that stay: more is made anew, which is little beside what moving it takes.
KEPT_BYTES = 8 << 20


class Run(NamedTuple):
    """Pieces of one request that are packed beside each other, or one that is reduced alone."""

    kind: int
    alone: bool
    #: Which pieces; where each lies from the first one's place on, and its bytes.
    indexes: Tuple[int, ...]
    offsets: Tuple[int, ...]
    sizes: Tuple[int, ...]
    elements: int
    nbytes: int


#: Runs, and where each piece of its request lies; None: zeros, of a rank that has joined.
Parts = List[Tuple[Run, Optional[Tuple[int, ...]]]]


class Fusion:
    """How the ranks of a communicator pack. Pieces of up to `packed_bytes` are reduced together,
    so that `most_bytes` are at most."""

    def __init__(self, comm: Communicator, most_bytes: int, packed_bytes: int) -> None:
        self._comm, self._most_bytes = comm, most_bytes
        self._packed_bytes = min(most_bytes, packed_bytes)
        self._runs: Dict[Signature, List[Run]] = {}
        self._buffer: Any = (ctypes.c_uint8 * 0)()

    def reduce(
        self, reduction: int, wanted: Sequence[Tuple[Signature, Optional[Request]]]
    ) -> None:
        """Reduce the pieces of all of these; every rank has the same signatures, in the same
        order."""
        small: Dict[int, Parts] = {}
        sizes: Dict[int, int] = {}
        for signature, request in wanted:
            places = None if request is None else request.places
            for run in self._runs_of(signature):
                kind = run.kind
                if run.alone:
                    self._reduce(reduction, [(run, places)])
                    continue
                if sizes.get(kind, 0) + run.nbytes > self._most_bytes:
                    self._reduce(reduction, small.pop(kind))
                    sizes[kind] = 0
                small.setdefault(kind, []).append((run, places))
                sizes[kind] = sizes.get(kind, 0) + run.nbytes
        for parts in small.values():
            self._reduce(reduction, parts)

    def _runs_of(self, signature: Signature) -> List[Run]:
        found = self._runs.get(signature)
        if found is None:
            if len(self._runs) > 1 << 14:
                self._runs.clear()
            found = self._runs[signature] = self._cut(signature)
        return found

    def _cut(self, signature: Signature) -> List[Run]:
        runs: List[Run] = []
        open_: Dict[int, List[int]] = {}
        bytes_of: Dict[int, int] = {}
        pieces = signature.pieces

        def close(kind: int, alone: bool, indexes: List[int]) -> None:
            sizes = tuple(pieces[index][2] for index in indexes)
            ends = tuple(accumulate(sizes))
            count = sum(pieces[index][1] for index in indexes)
            runs.append(Run(kind, alone, tuple(indexes), (0, *ends[:-1]), sizes, count, ends[-1]))

        for index, (kind, count, nbytes) in enumerate(pieces):
            if not count:
                continue
            if nbytes > self._packed_bytes:
                close(kind, True, [index])
                continue
            if bytes_of.get(kind, 0) + nbytes > self._most_bytes and kind in open_:
                close(kind, False, open_.pop(kind))
                bytes_of[kind] = 0
            open_.setdefault(kind, []).append(index)
            bytes_of[kind] = bytes_of.get(kind, 0) + nbytes
        for kind, together in open_.items():
            close(kind, False, together)
        return runs

    def _reduce(self, reduction: int, parts: Parts) -> None:
        run, places = parts[0]
        if len(parts) == 1 and len(run.indexes) == 1 and places is not None:
            self._all_reduce(places[run.indexes[0]], run.elements, run.kind, reduction)
            return
        buffer = self._room(sum(run.nbytes for run, _ in parts))
        at = start = ctypes.addressof(buffer)
        into: List[int] = []
        out: List[int] = []
        sizes: List[int] = []
        for run, places in parts:
            if places is None:
                ctypes.memset(at, 0, run.nbytes)
            else:
                into += [at + offset for offset in run.offsets]
                out += [places[index] for index in run.indexes]
                sizes += run.sizes
            at += run.nbytes
        _each(ctypes.memmove, into, out, sizes)
        self._all_reduce(start, sum(run.elements for run, _ in parts), run.kind, reduction)
        _each(ctypes.memmove, out, into, sizes)

    def _room(self, nbytes: int) -> Any:
        """So many bytes; a few stay for the next time, as all of Horovod's buffer do."""
        if nbytes > KEPT_BYTES:
            return (ctypes.c_uint8 * nbytes)()
        if len(self._buffer) < nbytes:
            self._buffer = (ctypes.c_uint8 * nbytes)()
        return self._buffer

    def _all_reduce(self, place: int, count: int, kind: int, reduction: int) -> None:
        comm = self._comm
        result = lib.ringAllReduce(place, place, count, kind, reduction, comm.handle, None)
        if result:
            raise failure(result, last_error(), comm.rank)


def _each(call: Callable[..., Any], *arguments: Sequence[int]) -> None:
    deque(map(call, *arguments), maxlen=0)
