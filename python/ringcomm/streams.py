"""Calls that run beside the program: host streams, and the handles of what runs on them.

A stream is a queue with a thread of the library's own, which never needs the GIL. What a queued
call reads and writes is kept alive here until the call is done.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any, Callable, Dict, Optional, Sequence

from ._native import Result, check, failure, last_error, lib
from .errors import RingArgumentError, RingError, RingUsageError

#: How long a wait goes on before it looks whether somebody pressed Ctrl-C: unnoticed by who did.
_LOOK_MS = 200
#: In a mark for the library: the call just before the mark is asked for alone, not all before it
#: (`ALONE` in `src/communicator/enqueue/host_stream/mod.rs`).
_ALONE = 1 << 63


class Given:
    """What a stream was given, a call or those of a group: what it uses, and how it went."""

    def __init__(self, owners: Any, comms: Sequence[Any]) -> None:
        self.owners = owners
        self.rank: Optional[int] = comms[0].rank if len(comms) == 1 else None
        #: The stream's marks before and behind it; None while it is being given.
        self.before: Optional[int] = None
        self.mark: Optional[int] = None
        self.settled = False
        self.error: Optional[RingError] = None

    def settle(self, error: Optional[RingError]) -> None:
        """It is over, in this way, unless somebody was faster to see how it went."""
        if not self.settled:
            if error is not None and error.rank is None:
                error.rank = self.rank
            self.error = error
            self.settled = True
        self.owners = None


class Stream:
    """A host stream: calls given to it return at once and run in order, on a thread of its own.

    The buffers of those calls are left alone until `synchronize`. A context manager: leaving it
    waits for what is queued and ends the stream.
    """

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        check(lib.ringStreamCreate(ctypes.byref(handle)))
        self._native = handle.value or 0
        self._error: Optional[RingError] = None
        #: What may be under way, in the order in which it came: a set, which threads change at
        #: once.
        self._given: Dict[Given, None] = {}
        #: Held while a call is given, so that between its marks lies no other thread's. An
        #: interrupted thread may give one of its own in between.
        self._giving = threading.RLock()
        #: No more calls are taken; and then, all that were taken are done.
        self._closing, self._ended = False, threading.Event()
        self._end = weakref.finalize(self, _destroy_quietly, self._native)
        # A program that ends waits for its communicators, not for what is queued behind them.
        self._end.atexit = False  # type: ignore[misc,unused-ignore]
        _living.add(self)

    @property
    def handle(self) -> Optional[int]:
        """The library's `ringStream_t`, as a number, for calls of the library itself; None once
        the stream has ended."""
        return None if self._closing else self._native

    def synchronize(self) -> None:
        """Wait for every call given to the stream; raises the first error since the last time."""
        self._settle_all()
        check(lib.ringStreamSynchronize(self.handle))

    def query(self) -> bool:
        """Whether every call given to the stream is done; raises the first error of them."""
        result = lib.ringStreamQuery(self.handle)
        if result == Result.IN_PROGRESS:
            return False
        check(result)
        return True

    def mark(self) -> int:
        """A mark behind the calls given so far, for `reached`."""
        mark = ctypes.c_uint64()
        check(lib.ringStreamMark(self.handle, ctypes.byref(mark)))
        return mark.value

    def reached(self, mark: int, timeout: Optional[float] = None) -> bool:
        """Wait until the calls before a mark are done, at most `timeout` seconds; whether they are.

        Raises the first error of those calls since the last `synchronize`.
        """
        result = self._until(
            lambda piece: lib.ringStreamReached(self._native, mark, piece), timeout
        )
        if result == Result.IN_PROGRESS:
            return False
        if self._ended.is_set():
            if self._error is not None:
                raise self._error
            return True
        check(result)
        return True

    def close(self) -> None:
        """Wait as `synchronize` does, then end the stream. A second time it does nothing."""
        if self._closing:
            return
        self._closing = True
        self._end.detach()
        try:
            self._settle_all()
        finally:
            try:
                check(lib.ringStreamDestroy(self._native))
            except RingError as error:
                self._error = error
                raise
            finally:
                self._ended.set()
                self._given.clear()

    def give(
        self, given: Given, call: Callable[[], Optional[RingError]]
    ) -> Optional[RingError]:
        """Make a call that is for this stream, and keep what it uses until it is done."""
        with self._giving:
            self.begin(given)
            try:
                error = call()
            finally:
                # Also where Ctrl-C has come in between.
                self.began(given)
        if error is not None:
            self.refused(given, error)
        return error

    def begin(self, given: Given) -> None:
        """Keep what is about to be given alive until it is done."""
        if self._given:
            self._let_go()
        given.before = self._count()
        self._given[given] = None

    def began(self, given: Given) -> bool:
        """What was about to be given has been: whether it was taken."""
        given.mark = self._count()
        return given.before is not None and given.mark != given.before

    def refused(self, given: Given, error: RingError) -> None:
        """What was about to be given was not taken: nothing of it runs."""
        given.settle(error)
        self._given.pop(given, None)

    def settle(self, given: Given, timeout: Optional[float] = None) -> bool:
        """Wait until this is done, at most `timeout` seconds, and see how it went; whether it is
        done."""
        result = self._until(lambda piece: self._went(given, piece), timeout)
        if result == Result.IN_PROGRESS:
            return False
        if not given.settled:
            given.settle(self._error if self._ended.is_set() else _told(given, result))
        self._given.pop(given, None)
        if self._given:
            self._let_go()
        return True

    def _until(self, ask: Callable[[int], int], timeout: Optional[float]) -> int:
        """What the library says of calls, once they are done or time is over: `ask` waits for them
        so many milliseconds."""
        # To the library a negative time has no end.
        left = None if timeout is None else max(int(timeout * 1000), 0)
        result: int
        while True:
            # Python looks at its signals between two calls only.
            piece = _LOOK_MS if left is None else min(left, _LOOK_MS)
            if self._closing:
                # Who closes the stream waits for what it was given.
                result = Result.SUCCESS if self._ended.wait(piece / 1000) else Result.IN_PROGRESS
            else:
                result = ask(piece)
                if self._closing:
                    continue  # the answer may only be that the stream ends
            if result != Result.IN_PROGRESS:
                return result
            if left is not None:
                left -= piece
                if left <= 0:
                    return result

    def _went(self, given: Given, timeout_ms: int) -> int:
        """What the library says of what was given, and of nothing else, after at most so long."""
        # Only a stream that is closing has given it no marks, and that is waited for elsewhere.
        before, mark = given.before or 0, given.mark or 0
        result: int = lib.ringStreamReached(self._native, mark | _ALONE, timeout_ms)
        # Between its marks there may be calls of another thread, if one of both was a group, which
        # nobody else waits for. Their error is taken for its own, lest its own is for theirs.
        while not result and before + 1 < mark:
            before += 1
            result = lib.ringStreamReached(self._native, before | _ALONE, 0)
        return result

    def _let_go(self) -> None:
        """Let go of what is done."""
        for given in list(self._given):
            if given.mark is None:
                continue
            result = self._went(given, 0)
            # Who closes the stream sees to the rest.
            if result == Result.IN_PROGRESS or self._closing:
                return
            given.settle(_told(given, result))
            self._given.pop(given, None)

    def _settle_all(self) -> None:
        """Wait for what was given so far, and see how each went."""
        for given in list(self._given):
            if given.mark is None:
                continue
            result: int = Result.IN_PROGRESS
            while result == Result.IN_PROGRESS:
                result = self._went(given, _LOOK_MS)
            given.settle(_told(given, result))
            self._given.pop(given, None)

    def _count(self) -> Optional[int]:
        """As `mark`; None where the stream takes no more calls."""
        mark = ctypes.c_uint64()
        return None if lib.ringStreamMark(self._native, ctypes.byref(mark)) else mark.value

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _destroy_quietly(handle: int) -> None:
    lib.ringStreamDestroy(handle)


def _told(given: Given, result: int) -> Optional[RingError]:
    """The error of what is done, of which the library has just said this to this thread."""
    return failure(result, last_error(), given.rank) if result else None


#: The streams of this process.
_living: "weakref.WeakSet[Stream]" = weakref.WeakSet()


def _forked() -> None:
    """A child has no thread that would give its locks back; what it gives the library refuses."""
    for stream in list(_living):
        stream._giving = threading.RLock()


os.register_at_fork(after_in_child=_forked)


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

    def __init__(self, stream: Stream, given: Optional[Given]) -> None:
        self._stream = stream
        #: None until the end of the call's group, which then gives it to the stream.
        self._given = given

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until the call is done, at most `timeout` seconds; whether it is. Raises its error.

        Calls that were made later are not waited for. How long the call itself waits for the other
        ranks is the communicator's `timeout_ms`.
        """
        given = self._given
        if given is None:
            raise RingUsageError(
                "this call waits for the end of its group: wait after `with ringcomm.group():`",
                Result.INVALID_USAGE,
            )
        if not given.settled and not self._stream.settle(given, timeout):
            return False
        if given.error is not None:
            raise given.error
        return True

    def done(self) -> bool:
        """Whether the call is done, without waiting; `wait` says how it went."""
        if self._given is None:
            return False
        try:
            return self.wait(0)
        except RingError:
            return True

    #: mpi4py's name.
    test = done

    def comes_before(self, stream: Any) -> bool:
        """Whether a call that goes elsewhere, to this stream or to none, has to wait for it."""
        return self._given is not None and self._stream is not stream

    def grouped(self, given: Dict[Stream, Given]) -> None:
        """The group of the call has ended, and has given this to the streams."""
        self._given = given[self._stream]
