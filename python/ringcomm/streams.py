"""Calls that run beside the program: host streams, the handles of what runs on them, and groups.

A stream is a queue with a thread of the library's own, which never needs the GIL. What a queued
call reads and writes is kept alive here until the call is done.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Deque, List, Optional, Type

from ._native import Result, check, lib
from .errors import RingArgumentError, RingError, RingUsageError

#: A stream holds 256 calls that wait, one that runs and one for each thread that waits for a place;
#: what more calls than these used is not in use any more.
_MOST_IN_USE = 512

#: How long a wait goes on before it looks whether somebody pressed Ctrl-C: unnoticed by who did.
_LOOK_MS = 200


class Stream:
    """A host stream: calls given to it return at once and run in order, on a thread of its own.

    The buffers of those calls are left alone until `synchronize`. A context manager: leaving it
    waits for what is queued and ends the stream.
    """

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        check(lib.ringStreamCreate(ctypes.byref(handle)))
        self._handle: Optional[int] = handle.value or 0
        self._error: Optional[RingError] = None
        self._kept: Deque[Any] = deque(maxlen=_MOST_IN_USE)
        self._end = weakref.finalize(self, _destroy_quietly, self._handle)
        # A program that ends waits for its communicators, not for what is queued behind them.
        self._end.atexit = False  # type: ignore[misc,unused-ignore]

    @property
    def handle(self) -> Optional[int]:
        """The library's `ringStream_t`, as a number, for calls of the library itself; None once
        the stream has ended."""
        return self._handle

    def synchronize(self) -> None:
        """Wait for every call given to the stream; raises the first error since the last time."""
        kept = len(self._kept)
        check(lib.ringStreamSynchronize(self._handle))
        for _ in range(min(kept, len(self._kept))):
            self._kept.popleft()

    def query(self) -> bool:
        """Whether every call given to the stream is done; raises the first error of them."""
        result = lib.ringStreamQuery(self._handle)
        if result == Result.IN_PROGRESS:
            return False
        check(result)
        return True

    def mark(self) -> int:
        """A mark behind the calls given so far, for `reached`."""
        mark = ctypes.c_uint64()
        check(lib.ringStreamMark(self._handle, ctypes.byref(mark)))
        return mark.value

    def reached(self, mark: int, timeout: Optional[float] = None) -> bool:
        """Wait until the calls before a mark are done, at most `timeout` seconds; whether they are.

        Raises the first error of those calls since the last `synchronize`.
        """
        if self._handle is None:
            if self._error is not None:
                raise self._error
            return True
        left = None if timeout is None else int(timeout * 1000)
        while True:
            # Python looks at its signals between two calls only.
            piece = _LOOK_MS if left is None else min(left, _LOOK_MS)
            result = lib.ringStreamReached(self._handle, mark, piece)
            if result != Result.IN_PROGRESS:
                check(result)
                return True
            if left is not None:
                left -= piece
                if left <= 0:
                    return False

    def close(self) -> None:
        """Wait as `synchronize` does, then end the stream. A second time it does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        self._end.detach()
        try:
            check(lib.ringStreamDestroy(handle))
        except RingError as error:
            self._error = error
            raise
        finally:
            self._kept.clear()

    def keep(self, owners: Any) -> None:
        """Keep these alive until the calls given so far are done."""
        self._kept.append(owners)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _destroy_quietly(handle: int) -> None:
    lib.ringStreamDestroy(handle)


def handle_of(stream: Any) -> int:
    """The number of a host stream, or of a CUDA stream of PyTorch, CuPy or whoever has one."""
    if isinstance(stream, Stream):
        if stream.handle is None:
            raise RingArgumentError("this stream was closed", Result.INVALID_ARGUMENT)
        return stream.handle
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise RingArgumentError(
        f"{stream!r} is no stream: give a ringcomm.Stream or, on a GPU, a CUDA stream",
        Result.INVALID_ARGUMENT,
    )


class Handle:
    """A call that was made with `async_op=True`: `wait` for it before its buffers are used."""

    def __init__(
        self, stream: Stream, owners: Any, rank: Optional[int], grouped: bool = False
    ) -> None:
        self._stream = stream
        self._owners = owners
        self._rank = rank
        self._error: Optional[RingError] = None
        # A group gives its calls to the stream when it ends.
        self._mark: Optional[int] = None if grouped else stream.mark()
        self._settled = False

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until the call is done, at most `timeout` seconds; whether it is. Raises its error.

        Calls that were made later are not waited for. How long the call itself waits for the other
        ranks is the communicator's `timeout_ms`.
        """
        if not self._settled:
            if self._mark is None:
                raise RingUsageError(
                    "this call waits for the end of its group: wait after `with ringcomm.group():`",
                    Result.INVALID_USAGE,
                )
            try:
                if not self._stream.reached(self._mark, timeout):
                    return False
            except RingError as error:
                error.rank = self._rank if error.rank is None else error.rank
                self._error = error
            self._settled, self._owners = True, None
        if self._error is not None:
            raise self._error
        return True

    def done(self) -> bool:
        """Whether the call is done, without waiting; `wait` says how it went."""
        if self._mark is None:
            return False
        try:
            return self.wait(0)
        except RingError:
            return True

    #: mpi4py's name.
    test = done

    def grouped(self) -> None:
        """The group of the call has ended."""
        self._mark = self._stream.mark()


class _Groups(threading.local):
    """The groups that are open in this thread."""

    depth = 0

    def __init__(self) -> None:
        self.owners: List[Any] = []
        self.streams: List[Stream] = []
        self.handles: List[Handle] = []


groups = _Groups()
#: How many groups are open in all threads: while none is, calls need not look for theirs.
open_groups = 0
_opening = threading.Lock()


def group_start() -> None:
    """Open a group in this thread; see `group`."""
    global open_groups
    check(lib.ringGroupStart())
    with _opening:
        open_groups += 1
    groups.depth += 1


def group_end() -> None:
    """Close the innermost group; the outermost runs what it holds."""
    global open_groups
    with _opening:
        open_groups -= groups.depth > 0
    groups.depth = max(groups.depth - 1, 0)
    result = lib.ringGroupEnd()
    if groups.depth == 0:
        for stream in groups.streams:
            stream.keep(tuple(groups.owners))
        for handle in groups.handles:
            handle.grouped()
        groups.owners, groups.streams, groups.handles = [], [], []
    check(result)


class group:
    """`with ringcomm.group():` the calls in it start together at its end.

    Needed where one thread makes the calls of several ranks, and for sends and receives that wait
    for each other. The buffers of the calls are left alone until the end.
    """

    def __enter__(self) -> "group":
        group_start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        group_end()


def keep_in_group(owners: Any, stream: Optional[Stream]) -> bool:
    """Keep what a call of this thread's group uses; False where the thread has none."""
    if groups.depth == 0:
        return False
    groups.owners.append(owners)
    if stream is not None and stream not in groups.streams:
        groups.streams.append(stream)
    return True
