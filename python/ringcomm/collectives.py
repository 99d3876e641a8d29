"""The collectives: each checks its buffers, and makes one call of the library.

The checks are those that need no other rank: that buffers are buffers, of one type, of lengths that
belong together and on the communicator's device. Whether ranks agree the library finds out itself.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from . import streams
from ._native import DataType, ReduceOp, Result, failure, last_error, lib
from .buffers import CPU, source, target, unfit
from .errors import RingArgumentError, RingError
from .streams import Handle, Stream, keep_in_group

_SUM = ReduceOp.SUM
#: Buffers of a call and their facts, as `source` and `target` answer.
_Facts = Tuple[int, int, DataType, int, Any]


def wrong(text: str) -> RingArgumentError:
    """The error for an argument that can never be right."""
    return RingArgumentError(text, Result.INVALID_ARGUMENT)


def count_of(buffer: Any, needed: int, have: int, what: str) -> None:
    """Refuse a buffer that is too short or too long."""
    if have != needed:
        raise unfit(buffer, f"it has {have} elements, and {what} needs {needed}")


class Collectives:
    """The calls of a communicator that move data; `Communicator` has them all.

    For every one: buffers are anything contiguous with the buffer protocol, `__dlpack__`,
    `__array_interface__` or `__cuda_array_interface__`, or a PyTorch tensor, and nothing is copied. All
    ranks make the same calls in the same order. `stream=` queues the call on a host stream; with
    `async_op=True` it returns a `Handle` at once. Otherwise it returns None when it is done.
    """

    _handle: Optional[int]
    _device: int
    _rank: int
    _nranks: int
    #: What `async_op` calls run on, and the last of them, unless it is known to be done.
    _stream: Optional[Stream]
    _behind: Optional[Handle]

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        op: int = _SUM,
        *,
        stream: Optional[Stream] = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Reduce `send` over all ranks into `recv` on every rank; without `recv`, in place."""
        if recv is None:
            address, count, datatype, device, owner = target(send)
            into = address
        else:
            address, count, datatype, device, owner = source(send)
            into, room, kind, where, _ = target(recv)
            if kind is not datatype or room != count or where != device:
                self._refuse(send, recv, count)
        if device != self._device:
            self._misplaced(send, device)
        if stream is None and not async_op and not streams.open_groups and self._behind is None:
            result = lib.ringAllReduce(address, into, count, datatype, op, self._handle, None)
            if result:
                raise failure(result, last_error(), self._rank)
            return None
        return self._run(
            lib.ringAllReduce, (address, into, count, datatype, op), (send, recv), stream, async_op
        )

    def broadcast(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Optional[Stream] = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Every rank gets the root's `send` in `recv`; without `recv`, in place in `send`.

        On ranks other than the root `send` may be None where `recv` is given.
        """
        if recv is None:
            found = target(send)
            address = found[0]
        else:
            found = target(recv)
            address = found[0]
            if self._rank == root:
                address = self._pair(send, recv, source(send), found, found[1])
        self._placed(found, send if recv is None else recv)
        return self._run(
            lib.ringBroadcast, (address, found[0], found[1], found[2], root), (send, recv), stream, async_op
        )

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        op: int = _SUM,
        root: int = 0,
        *,
        stream: Optional[Stream] = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Reduce `send` over all ranks into the root's `recv`; without, in place on the root."""
        here = self._rank == root
        if recv is None and here:
            found = target(send)
            into = found[0]
        else:
            found = source(send)
            into = found[0]
            if here:
                received = target(recv)
                self._pair(send, recv, found, received, found[1])
                into = received[0]
        self._placed(found, send)
        arguments = (found[0], into, found[1], found[2], op, root)
        return self._run(lib.ringReduce, arguments, (send, recv), stream, async_op)

    def all_gather(
        self,
        send: Any,
        recv: Any,
        *,
        stream: Optional[Stream] = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Every rank gets the `send` of all ranks, in the order of ranks, in `recv`.

        `recv` holds nranks times as many elements. `send` None: in place, the rank's own block of
        `recv`.
        """
        into = target(recv)
        address, count = self._block(send, recv, into, self._rank)
        return self._run(
            lib.ringAllGather, (address, into[0], count, into[2]), (send, recv), stream, async_op
        )

    def reduce_scatter(
        self,
        send: Any,
        recv: Any = None,
        op: int = _SUM,
        *,
        stream: Optional[Stream] = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Reduce `send` over all ranks; rank r gets block r of the result in `recv`.

        `send` holds nranks times as many elements. Without `recv`: in place, in the rank's own block of
        `send`, which is all of it that means anything afterwards.
        """
        found = target(send) if recv is None else source(send)
        into, count = self._block(recv, send, found, self._rank, write=True)
        return self._run(
            lib.ringReduceScatter, (found[0], into, count, found[2], op), (send, recv), stream, async_op
        )

    def all_to_all(
        self,
        send: Any,
        recv: Any = None,
        *,
        stream: Optional[Stream] = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Block d of `send` goes to rank d; the block from rank s becomes block s of `recv`.

        Without `recv`: in place.
        """
        found = target(send) if recv is None else source(send)
        into = found[0]
        if recv is not None:
            received = target(recv)
            self._pair(send, recv, found, received, found[1])
            into = received[0]
        self._placed(found, send)
        count = self._divided(send, found[1])
        return self._run(
            lib.ringAllToAll, (found[0], into, count, found[2]), (send, recv), stream, async_op
        )

    def gather(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Optional[Stream] = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """The root gets the `send` of all ranks, in the order of ranks, in `recv`.

        `recv` counts on the root only. `send` None on the root: in place, its own block of `recv`.
        """
        arguments: Tuple[Any, ...]
        if self._rank == root:
            into = target(recv)
            address, count = self._block(send, recv, into, root)
            arguments = (address, into[0], count, into[2], root)
        else:
            found = source(send)
            self._placed(found, send)
            arguments = (found[0], None, found[1], found[2], root)
        return self._run(lib.ringGather, arguments, (send, recv), stream, async_op)

    def scatter(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Optional[Stream] = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Rank r gets block r of the root's `send` in `recv`.

        `send` counts on the root only. `recv` None on the root: in place, its own block of `send`.
        """
        arguments: Tuple[Any, ...]
        if self._rank == root:
            found = source(send)
            into, count = self._block(recv, send, found, root, write=True)
            arguments = (found[0], into, count, found[2], root)
        else:
            received = target(recv)
            self._placed(received, recv)
            arguments = (None, received[0], received[1], received[2], root)
        return self._run(lib.ringScatter, arguments, (send, recv), stream, async_op)

    def send(
        self, buffer: Any, peer: int, *, stream: Optional[Stream] = None, async_op: bool = False
    ) -> Optional[Handle]:
        """Send a buffer to `peer`, which receives it with `recv`.

        Sends and receives that wait for each other belong in one `ringcomm.group()`.
        """
        found = source(buffer)
        self._placed(found, buffer)
        return self._run(lib.ringSend, (found[0], found[1], found[2], peer), buffer, stream, async_op)

    def recv(
        self, buffer: Any, peer: int, *, stream: Optional[Stream] = None, async_op: bool = False
    ) -> Optional[Handle]:
        """Receive into a buffer what `peer` sends, of the same length and type."""
        found = target(buffer)
        self._placed(found, buffer)
        return self._run(lib.ringRecv, (found[0], found[1], found[2], peer), buffer, stream, async_op)

    def barrier(self, *, stream: Optional[Stream] = None, async_op: bool = False) -> Optional[Handle]:
        """Return on every rank after every rank has called."""
        return self._run(lib.ringBarrier, (), None, stream, async_op)

    def _run(
        self, function: Any, arguments: Tuple[Any, ...], owners: Any, stream: Optional[Stream], async_op: bool
    ) -> Optional[Handle]:
        """Make the call now, in the thread's group, or on a stream."""
        if async_op and stream is None:
            stream = self._own_stream()
        elif self._behind is not None:
            self._catch_up()
        where = None if stream is None else stream.handle
        result = function(*arguments, self._handle, where)
        if result:
            raise failure(result, last_error(), self._rank)
        grouped = bool(streams.open_groups) and keep_in_group(owners, stream)
        if stream is None:
            return None
        if not grouped:
            stream.keep(owners)
        if not async_op:
            return None
        handle = Handle(stream, owners, self._rank, grouped)
        if grouped:
            streams.groups.handles.append(handle)
        if stream is self._stream:
            self._behind = handle
        return handle

    def _catch_up(self) -> None:
        """Wait for what `async_op` has under way: all ranks must make their calls in one order."""
        handle, self._behind = self._behind, None
        if handle is not None:
            try:
                handle.wait()
            except RingError:
                pass  # the handle's owner is told; this call fails by itself if the communicator has

    def _own_stream(self) -> Stream:
        raise NotImplementedError

    def _block(
        self, part: Any, whole: Any, facts: _Facts, index: int, write: bool = False
    ) -> Tuple[int, int]:
        """Address and elements of one rank's part, which without `part` is block `index` of `whole`."""
        self._placed(facts, whole)
        count = self._divided(whole, facts[1])
        if part is None:
            return facts[0] + index * count * facts[2].itemsize, count
        found = target(part) if write else source(part)
        return self._pair(part, whole, found, facts, count), count

    def _pair(self, first: Any, second: Any, facts: _Facts, others: _Facts, count: int) -> int:
        """Check that two buffers belong together, and the first one's length; its address."""
        if facts[2] is not others[2] or facts[3] != others[3]:
            self._refuse(first, second, facts[1])
        count_of(first, count, facts[1], "this call")
        if count == facts[1] and others[1] not in (count, count * self._nranks):
            count_of(second, count, others[1], "this call")
        return facts[0]

    def _refuse(self, send: Any, recv: Any, count: int) -> None:
        one, other = source(send), source(recv)
        if one[2] is not other[2]:
            raise wrong(f"send is {one[2].name.lower()} and recv is {other[2].name.lower()}; use one type")
        if one[3] != other[3]:
            raise wrong(f"send lies on {place(one[3])} and recv on {place(other[3])}; use one device")
        count_of(recv, count, other[1], "this call")

    def _divided(self, buffer: Any, count: int) -> int:
        if count % self._nranks:
            raise unfit(
                buffer,
                f"its {count} elements do not divide among {self._nranks} ranks; pad it, or use the _v form",
            )
        return count // self._nranks

    def _placed(self, facts: _Facts, buffer: Any) -> None:
        if facts[3] != self._device:
            self._misplaced(buffer, facts[3])

    def _misplaced(self, buffer: Any, device: int) -> None:
        raise unfit(
            buffer,
            f"it lies on {place(device)}, and rank {self._rank} of this communicator works on "
            f"{place(self._device)}; move it there first",
        )


def place(device: int) -> str:
    """A device's name."""
    return "the CPU" if device == CPU else f"CUDA device {device}"
