"""The collectives: each checks its buffers, and makes one call of the library.

The checks are those that need no other rank: that buffers are buffers, of one type, of lengths that
belong together and on the communicator's device. Whether ranks agree the library finds out itself.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

from . import groups, streams
from ._native import ReduceOp, Result, failure, last_error, lib, quick_all_reduce
from .buffers import CPU, Buffer, belong, pair, place, source, target, unfit
from .errors import RingArgumentError, RingError
from .integers import RANK, integer, operation
from .streams import Given, Handle, Stream

_SUM = ReduceOp.SUM
_all_reduce = lib.ringAllReduce


def wrong(text: str) -> RingArgumentError:
    """The error for an argument that can never be right."""
    return RingArgumentError(text, Result.INVALID_ARGUMENT)


def count_of(buffer: Any, needed: int, have: int, what: str) -> None:
    """Refuse a buffer that is too short or too long."""
    if have != needed:
        raise unfit(buffer, f"it has {have} elements, and the {what} has {needed}")


class Collectives:
    """The calls of a communicator that move data; `Communicator` has them all.

    For every one: buffers are anything contiguous with the buffer protocol, `__dlpack__`,
    `__array_interface__` or `__cuda_array_interface__`, or a PyTorch tensor, and nothing is copied.
    All ranks make the same calls in the same order. `stream=` queues the call on a host stream;
    with `async_op=True` it returns a `Handle` at once. Otherwise it returns None when it is done.

    A rank on a CUDA device takes that device's memory and the host's. `stream=` may then be a CUDA
    stream, and None is the device's default stream: a call on device memory returns None once it is
    given to the stream, and what is put there later sees its result.
    """

    #: The library's communicator, as a number and as ctypes' pointer; None once it has ended.
    _handle: Optional[int]
    _boxed: Optional[ctypes.c_void_p]
    _device: int
    _rank: int
    _nranks: int
    #: What `async_op` calls run on, and the last call on any host stream, unless it is known to be
    #: done.
    _stream: Optional[Stream]
    _behind: Optional[Handle]

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        op: int = _SUM,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Reduce `send` over all ranks into `recv` on every rank; without `recv`, in place."""
        if recv is None:
            address, count, datatype, device, owners = target(send)
            into = address
        else:
            address, into, count, datatype, device, owners = pair(send, recv)
        if device != self._device and device != CPU:
            self._misplaced(send, device)
        alone = stream is None and not async_op and self._behind is None
        if alone and type(op) is ReduceOp and not groups.open_groups:
            result = quick_all_reduce(address, into, count, datatype, op, self._boxed, None)
            if result:
                raise failure(result, last_error(), self._rank)
            return None
        return self._run(
            _all_reduce,
            (address, into, count, datatype, operation(op)),
            owners,
            stream,
            async_op,
        )

    def broadcast(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Every rank gets the root's `send` in `recv`; without `recv`, in place in `send`.

        On ranks other than the root `send` may be None where `recv` is given.
        """
        root = integer(root, "root", RANK)
        if recv is None:
            found = target(send)
            address, into, count, datatype, device = found[0], *found[:4]
            owners = found[4]
        elif self._rank == root:
            address, into, count, datatype, device, owners = pair(send, recv)
        else:
            into, count, datatype, device, owners = target(recv)
            address = into
        self._placed(device, send)
        arguments = (address, into, count, datatype, root)
        return self._run(lib.ringBroadcast, arguments, owners, stream, async_op)

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        op: int = _SUM,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Reduce `send` over all ranks into the root's `recv`; without, in place on the root."""
        root = integer(root, "root", RANK)
        if self._rank == root and recv is not None:
            address, into, count, datatype, device, owners = pair(send, recv)
        else:
            found = target(send) if self._rank == root else source(send)
            address, count, datatype, device, owners = found
            into = address
        self._placed(device, send)
        op = op if type(op) is ReduceOp else operation(op)
        arguments = (address, into, count, datatype, op, root)
        return self._run(lib.ringReduce, arguments, owners, stream, async_op)

    def all_gather(
        self,
        send: Any,
        recv: Any,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Every rank gets the `send` of all ranks, in the order of ranks, in `recv`.

        `recv` holds nranks times as many elements. `send` None: in place, the rank's own block of
        `recv`.
        """
        into = target(recv)
        address, count, owner = self._block(send, into, self._rank, "recv")
        arguments = (address, into[0], count, into[2])
        return self._run(lib.ringAllGather, arguments, (owner, into[4]), stream, async_op)

    def reduce_scatter(
        self,
        send: Any,
        recv: Any = None,
        op: int = _SUM,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Reduce `send` over all ranks; rank r gets block r of the result in `recv`.

        `send` holds nranks times as many elements. Without `recv`: in place, in the rank's own
        block of `send`, which is all of it that means anything afterwards.
        """
        found = target(send) if recv is None else source(send)
        into, count, owner = self._block(recv, found, self._rank, "send")
        op = op if type(op) is ReduceOp else operation(op)
        arguments = (found[0], into, count, found[2], op)
        return self._run(lib.ringReduceScatter, arguments, (found[4], owner), stream, async_op)

    def all_to_all(
        self,
        send: Any,
        recv: Any = None,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Block d of `send` goes to rank d; the block from rank s becomes block s of `recv`.

        Without `recv`: in place.
        """
        if recv is None:
            address, count, datatype, device, owners = target(send)
            into = address
        else:
            address, into, count, datatype, device, owners = pair(send, recv)
        self._placed(device, send)
        arguments = (address, into, self._divided(send, count), datatype)
        return self._run(lib.ringAllToAll, arguments, owners, stream, async_op)

    def gather(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """The root gets the `send` of all ranks, in the order of ranks, in `recv`.

        `recv` counts on the root only. `send` None on the root: in place, its own block of `recv`.
        """
        arguments: Tuple[Any, ...]
        root = integer(root, "root", RANK)
        if self._rank == root:
            into = target(recv)
            address, count, owner = self._block(send, into, root, "recv")
            arguments, owners = (address, into[0], count, into[2], root), (owner, into[4])
        else:
            found = source(send)
            self._placed(found[3], send)
            arguments, owners = (found[0], None, found[1], found[2], root), found[4]
        return self._run(lib.ringGather, arguments, owners, stream, async_op)

    def scatter(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
    ) -> Optional[Handle]:
        """Rank r gets block r of the root's `send` in `recv`.

        `send` counts on the root only. `recv` None on the root: in place, its own block of `send`.
        """
        arguments: Tuple[Any, ...]
        root = integer(root, "root", RANK)
        if self._rank == root:
            found = source(send) if recv is not None else target(send)
            into, count, owner = self._block(recv, found, root, "send")
            arguments, owners = (found[0], into, count, found[2], root), (found[4], owner)
        else:
            received = target(recv)
            self._placed(received[3], recv)
            arguments, owners = (None, received[0], received[1], received[2], root), received[4]
        return self._run(lib.ringScatter, arguments, owners, stream, async_op)

    def send(
        self, buffer: Any, peer: int, *, stream: Any = None, async_op: bool = False
    ) -> Optional[Handle]:
        """Send a buffer to `peer`, which receives it with `recv`.

        Sends and receives that wait for each other belong in one `ringcomm.group()`.
        """
        peer = integer(peer, "peer", RANK)
        found = source(buffer)
        self._placed(found[3], buffer)
        return self._run(
            lib.ringSend, (found[0], found[1], found[2], peer), found[4], stream, async_op
        )

    def recv(
        self, buffer: Any, peer: int, *, stream: Any = None, async_op: bool = False
    ) -> Optional[Handle]:
        """Receive into a buffer what `peer` sends, of the same length and type."""
        peer = integer(peer, "peer", RANK)
        found = target(buffer)
        self._placed(found[3], buffer)
        return self._run(
            lib.ringRecv, (found[0], found[1], found[2], peer), found[4], stream, async_op
        )

    def barrier(self, *, stream: Any = None, async_op: bool = False) -> Optional[Handle]:
        """Return on every rank after every rank has called."""
        return self._run(lib.ringBarrier, (), None, stream, async_op)

    def _run(
        self,
        function: Any,
        arguments: Tuple[Any, ...],
        owners: Any,
        stream: Any,
        async_op: bool,
    ) -> Optional[Handle]:
        """Make the call now, in the thread's group, or on a stream."""
        if self._device == CPU and isinstance(stream, int) and stream:
            # Its number keeps neither the stream nor what a call on it uses.
            raise wrong(f"stream={stream} is only the number of a stream; give the ringcomm.Stream")
        if async_op and stream is None:
            stream = self._own_stream()
        if self._behind is not None:
            self._catch_up(stream)
        where = None if stream is None else streams.handle_of(stream)
        host = stream if isinstance(stream, Stream) else None
        grouped = bool(groups.open_groups) and groups.here.depth > 0
        given: Optional[Given] = None
        if grouped:
            groups.here.calls.append((owners, host, self))
        if host is None or grouped:
            error = self._call(function, arguments, where)
        else:
            given = Given(owners, [self])
            error = host.give(given, lambda: self._call(function, arguments, where))
        if error is not None:
            raise error
        if host is None:
            # A device's stream knows when its memory may be used again.
            return None
        self._behind = handle = Handle(host, given)
        if grouped:
            groups.here.handles.append(handle)
        return handle if async_op else None

    def _call(
        self, function: Any, arguments: Tuple[Any, ...], where: Optional[int]
    ) -> Optional[RingError]:
        result = function(*arguments, self._handle, where)
        return failure(result, last_error(), self._rank) if result else None

    def _catch_up(self, stream: Any = None) -> None:
        """Wait for what is under way elsewhere: all ranks must make their calls in one order."""
        handle = self._behind
        if handle is None or not handle.comes_before(stream):
            return
        self._behind = None
        try:
            handle.wait()
        except RingError:
            # Whoever has the handle is told; a broken communicator refuses this call, too.
            pass

    def _own_stream(self) -> Stream:
        raise NotImplementedError

    def _block(self, part: Any, whole: Buffer, index: int, side: str) -> Tuple[int, int, Any]:
        """One rank's part of a call whose other buffer, `side`, is the whole: address, elements,
        owner.

        Without `part` it is block `index` of the whole.
        """
        self._placed(whole[3], whole[4])
        count = self._divided(whole[4], whole[1])
        if part is None:
            return whole[0] + index * count * whole[2].itemsize, count, None
        found = self._part(part, whole, side)
        count_of(part, count, found[1], f"block of {side}")
        return found[0], count, found[4]

    def _part(self, part: Any, whole: Buffer, side: str) -> Buffer:
        """A part, of the type and on the device of the whole."""
        found = source(part) if side == "recv" else target(part)
        if side == "recv":
            belong(found, whole)
        else:
            belong(whole, found)
        return found

    def _divided(self, buffer: Any, count: int) -> int:
        if count % self._nranks:
            raise unfit(
                buffer,
                f"its {count} elements do not divide among {self._nranks} ranks; pad it, or use "
                "the _v form",
            )
        return count // self._nranks

    def _placed(self, device: int, buffer: Any) -> None:
        # The library takes host memory on every rank.
        if device != self._device and device != CPU:
            self._misplaced(buffer, device)

    def _misplaced(self, buffer: Any, device: int) -> None:
        raise unfit(
            buffer,
            f"it lies {place(device)}, and rank {self._rank} of this communicator works "
            f"{place(self._device)}; make the communicator with Config(device={device}), or after "
            "that device is current",
        )
