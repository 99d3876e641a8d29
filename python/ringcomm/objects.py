"""Python objects between ranks: pickled, and sent through memory as bytes, never through files.

Unpickling runs what the pickle says, so these are for the ranks of one job, which trust each other.
"""

from __future__ import annotations

import pickle
from array import array
from itertools import accumulate
from typing import Any, List, Optional, Sequence

from . import groups
from ._native import Result
from .collectives import wrong
from .errors import RingUsageError
from .integers import RANK, integer
from .vectors import Vectors


class Objects(Vectors):
    """The object forms: any object that can be pickled, of any size, different on every rank."""

    def all_gather_object(self, value: Any) -> List[Any]:
        """Every rank's object, in the order of ranks."""
        _refuse_groups("all_gather_object")
        data = _pickled(value)
        sizes = array("q", bytes(8 * self._nranks))
        self.all_gather(array("q", [len(data)]), sizes)
        everything = bytearray(sum(sizes))
        self.all_gather_v(data, everything, sizes)
        return _unpickled(everything, sizes)

    def broadcast_object(self, value: Any = None, root: int = 0) -> Any:
        """The root's object, on every rank."""
        _refuse_groups("broadcast_object")
        root = integer(root, "root", RANK)
        data = bytearray(_pickled(value) if self._rank == root else b"")
        size = array("q", [len(data)])
        self.broadcast(size, root=root)
        if self._rank != root:
            data = bytearray(size[0])
        self.broadcast(data, root=root)
        return value if self._rank == root else pickle.loads(data)

    def gather_object(self, value: Any, root: int = 0) -> Optional[List[Any]]:
        """Every rank's object in the order of ranks on the root; None elsewhere."""
        _refuse_groups("gather_object")
        root = integer(root, "root", RANK)
        data = _pickled(value)
        size = array("q", [len(data)])
        if self._rank != root:
            self.gather(size, root=root)
            self.gather_v(data, root=root)
            return None
        sizes = array("q", bytes(8 * self._nranks))
        self.gather(size, sizes, root)
        everything = bytearray(sum(sizes))
        self.gather_v(data, everything, sizes, root=root)
        return _unpickled(everything, sizes)

    def scatter_object(self, values: Optional[Sequence[Any]] = None, root: int = 0) -> Any:
        """Object r of the root's `values`, on rank r."""
        _refuse_groups("scatter_object")
        root = integer(root, "root", RANK)
        size = array("q", [0])
        if self._rank != root:
            self.scatter(None, size, root)
            data = bytearray(size[0])
            self.scatter_v(None, data, root=root)
            return pickle.loads(data)
        if values is None or len(values) != self._nranks:
            raise wrong(f"the root scatters {self._nranks} objects, one for each rank")
        pickles = [_pickled(value) for value in values]
        sizes = array("q", map(len, pickles))
        self.scatter(sizes, size, root)
        data = bytearray(size[0])
        self.scatter_v(b"".join(pickles), data, sizes, root=root)
        return pickle.loads(data)

    def all_to_all_object(self, values: Sequence[Any]) -> List[Any]:
        """Object d of `values` goes to rank d; what every rank sent here, in the order of ranks."""
        _refuse_groups("all_to_all_object")
        if len(values) != self._nranks:
            raise wrong(f"{len(values)} objects for {self._nranks} ranks; give one for each")
        pickles = [_pickled(value) for value in values]
        out = array("q", map(len, pickles))
        back = array("q", bytes(8 * self._nranks))
        self.all_to_all(out, back)
        everything = bytearray(sum(back))
        self.all_to_all_v(b"".join(pickles), out, everything, back)
        return _unpickled(everything, back)

    def send_object(self, value: Any, peer: int) -> None:
        """Send an object to `peer`, which takes it with `recv_object`."""
        _refuse_groups("send_object")
        data = _pickled(value)
        self.send(array("q", [len(data)]), peer)
        self.send(data, peer)

    def recv_object(self, peer: int) -> Any:
        """The object that `peer` sends."""
        _refuse_groups("recv_object")
        size = array("q", [0])
        self.recv(size, peer)
        data = bytearray(size[0])
        self.recv(data, peer)
        return pickle.loads(data)


def _refuse_groups(name: str) -> None:
    """The lengths of pickles go first, and a group's calls all run at its end."""
    if groups.open_groups and groups.here.depth:
        raise RingUsageError(
            f"{name} cannot be called inside ringcomm.group(): the lengths of objects have to come "
            "before the objects; exchange them outside, by all_to_all_object, or let one rank send "
            "first",
            Result.INVALID_USAGE,
        )


def _pickled(value: Any) -> bytes:
    # Protocol 5 is the highest of every Python that this package runs on: ranks may have different
    # ones.
    return pickle.dumps(value, protocol=5)


def _unpickled(everything: bytearray, sizes: Sequence[int]) -> List[Any]:
    starts = [0, *accumulate(sizes)]
    view = memoryview(everything)
    return [pickle.loads(view[start : start + size]) for start, size in zip(starts, sizes)]
