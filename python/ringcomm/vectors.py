"""The collectives whose blocks have different lengths on different ranks: the `v` forms."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Optional, Sequence, Tuple

from ._native import ReduceOp, counts_array, lib
from .buffers import Buffer, belong, source, target, unfit
from .collectives import Collectives, count_of, wrong
from .integers import RANK, integer, operation
from .streams import Handle

_SUM = ReduceOp.SUM
_Counts = Optional[Sequence[int]]


class Vectors(Collectives):
    """The `v` forms. Counts and displacements are in elements; displacements that are not given are
    those of blocks one after the other."""

    def all_gather_v(
        self,
        send: Any,
        recv: Any,
        counts: Sequence[int],
        displacements: _Counts = None,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Every rank gets the `send` of all ranks: `counts[r]` elements of rank r, the same
        everywhere.

        `send` None: in place, the rank's own block of `recv`.
        """
        into = target(recv)
        self._placed(into[3], recv)
        counts, starts = self._blocks(recv, into[1], counts, displacements)
        own = counts[self._rank]
        address = into[0] + starts[self._rank] * into[2].itemsize
        owner = None
        if send is not None:
            address, owner = self._own(send, into, own, "recv")
        arguments = (address, own, into[0], counts_array(counts), counts_array(starts), into[2])
        return self._run(lib.ringAllGatherv, arguments, (owner, into[4]), stream, async_op)

    def reduce_scatter_v(
        self,
        send: Any,
        recv: Any,
        counts: Sequence[int],
        op: int = _SUM,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Reduce `send`; rank r gets the `counts[r]` elements of block r of the result.

        `recv` None: in place, the rank's own block of `send`.
        """
        found = target(send) if recv is None else source(send)
        self._placed(found[3], send)
        counts, starts = self._blocks(send, found[1], counts, None)
        count_of(send, sum(counts), found[1], "sum of counts")
        into = found[0] + starts[self._rank] * found[2].itemsize
        owner = None
        if recv is not None:
            into, owner = self._own(recv, found, counts[self._rank], "send")
        arguments = (found[0], into, counts_array(counts), found[2], operation(op))
        return self._run(lib.ringReduceScatterv, arguments, (found[4], owner), stream, async_op)

    def all_to_all_v(
        self,
        send: Any,
        send_counts: Sequence[int],
        recv: Any,
        recv_counts: Sequence[int],
        send_displacements: _Counts = None,
        recv_displacements: _Counts = None,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """`send_counts[d]` elements go to rank d, `recv_counts[s]` elements come from rank s."""
        found, into = source(send), target(recv)
        self._placed(found[3], send)
        self._placed(into[3], recv)
        belong(found, into)
        out, out_starts = self._blocks(send, found[1], send_counts, send_displacements)
        back, back_starts = self._blocks(recv, into[1], recv_counts, recv_displacements)
        arguments = (
            found[0], counts_array(out), counts_array(out_starts),
            into[0], counts_array(back), counts_array(back_starts), found[2],
        )  # fmt: skip
        return self._run(lib.ringAllToAllv, arguments, (found[4], into[4]), stream, async_op)

    def gather_v(
        self,
        send: Any,
        recv: Any = None,
        counts: _Counts = None,
        displacements: _Counts = None,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """The root gets the `send` of all ranks; `recv`, `counts` and `displacements` are the
        root's.

        `send` None on the root: in place, its own block of `recv`.
        """
        arguments: Tuple[Any, ...]
        root = integer(root, "root", RANK)
        if self._rank == root:
            into = target(recv)
            self._placed(into[3], recv)
            counts, starts = self._blocks(recv, into[1], _given(counts), displacements)
            address, owner = into[0] + starts[root] * into[2].itemsize, None
            if send is not None:
                address, owner = self._own(send, into, counts[root], "recv")
            listed = counts_array(counts), counts_array(starts)
            arguments = (address, counts[root], into[0], *listed, into[2], root)
            owners = (owner, into[4])
        else:
            found = source(send)
            self._placed(found[3], send)
            arguments = (found[0], found[1], None, None, None, found[2], root)
            owners = (found[4], None)
        return self._run(lib.ringGatherv, arguments, owners, stream, async_op)

    def scatter_v(
        self,
        send: Any,
        recv: Any = None,
        counts: _Counts = None,
        displacements: _Counts = None,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Rank r gets its block of the root's `send`; `counts` and `displacements` are the root's.

        `recv` None on the root: in place, its own block of `send`.
        """
        arguments: Tuple[Any, ...]
        root = integer(root, "root", RANK)
        if self._rank == root:
            found = source(send) if recv is not None else target(send)
            self._placed(found[3], send)
            counts, starts = self._blocks(send, found[1], _given(counts), displacements)
            into, owner = found[0] + starts[root] * found[2].itemsize, None
            if recv is not None:
                into, owner = self._own(recv, found, counts[root], "send")
            listed = counts_array(counts), counts_array(starts)
            arguments = (found[0], *listed, into, counts[root], found[2], root)
            owners = (found[4], owner)
        else:
            received = target(recv)
            self._placed(received[3], recv)
            arguments = (None, None, None, received[0], received[1], received[2], root)
            owners = (None, received[4])
        return self._run(lib.ringScatterv, arguments, owners, stream, async_op)

    def _blocks(
        self, buffer: Any, count: int, counts: Sequence[int], starts: _Counts
    ) -> Tuple[Sequence[int], Sequence[int]]:
        """Counts and displacements of all ranks, which lie inside the buffer."""
        counts = [int(length) for length in counts]
        starts = (
            [0, *accumulate(counts[:-1])] if starts is None else [int(start) for start in starts]
        )
        if len(counts) != self._nranks or len(starts) != self._nranks:
            raise wrong(
                f"{len(counts)} counts and {len(starts)} displacements for {self._nranks} ranks; "
                "give one of each for every rank"
            )
        if min(counts) < 0 or min(starts) < 0:
            raise wrong("counts and displacements are not negative")
        end = max(start + length for start, length in zip(starts, counts))
        if end > count:
            raise unfit(buffer, f"it has {count} elements, and its blocks reach to element {end}")
        return counts, starts

    def _own(self, part: Any, whole: Buffer, count: int, side: str) -> Tuple[int, Any]:
        """This rank's part, checked against the whole and its count: address and owner."""
        found = self._part(part, whole, side)
        count_of(part, count, found[1], "count of this rank")
        return found[0], found[4]


def _given(counts: _Counts) -> Sequence[int]:
    if counts is None:
        raise wrong("the root gives counts: how many elements of each rank")
    return counts
