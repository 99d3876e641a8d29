"""A comm stream: a communicator, a host stream, and the order of what goes through both.

A call that its caller waits for is made directly, on the caller's thread. One that nobody waits for
yet goes to the stream, whose thread needs no GIL; a mark behind it tells when it is done. A direct
call waits behind what is on the stream, so all ranks see the order in which the calls were made.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Optional, Sequence, Tuple

from .._native import Result, last_error, lib
from ..communicator import Communicator
from ..errors import RingError, RingUsageError
from ..streams import Stream
from .advice import advised

#: A call of the library without its last two arguments, the communicator and the stream.
Step = Tuple[Callable[..., int], Tuple[Any, ...]]

#: Works that may be remembered before those that are done are looked for: a few buckets of a step.
MOST_REMEMBERED = 16

#: The mark of what was sent at once: it lies before every other.
SENT = 0


def destroyed(rank: int) -> RingUsageError:
    """The error of what comes after the group's end."""
    return RingUsageError(
        f"the process group was destroyed: rank {rank} cannot use it any more; make another with "
        "init_process_group or new_group",
        Result.INVALID_USAGE,
        rank=rank,
    )


def unmade(rank: int) -> RingUsageError:
    """The error of what comes before the ranks of a group are known."""
    return RingUsageError(
        f"the process group has no ranks yet: rank {rank} has to call reconfigure() before anything "
        "else, since the group was made with enable_reconfigure=True",
        Result.INVALID_USAGE,
        rank=rank,
    )


def forked(rank: int) -> RingUsageError:
    """The error of what a forked child asks of its parent's group: half of that is the parent's."""
    return RingUsageError(
        "this process is a fork of the one that made the process group; use the group in the "
        "parent only, or start processes that make their own by torch.multiprocessing.spawn",
        Result.INVALID_USAGE,
        rank=rank,
    )


def check_process(process: int, rank: int) -> None:
    """Refuse what is asked in another process than this one, which has the group."""
    if os.getpid() != process:
        raise forked(rank)


class CommStream:
    """Calls on one communicator, in the order in which they come."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.comm: Optional[int] = communicator.handle
        self.rank = communicator.rank
        self.lock = threading.Lock()
        self.stream: Optional[Stream] = None
        #: What is, or was a moment ago, on the stream, with the mark behind it. Taken out under the
        #: lock only.
        self._running: Deque[Tuple[Any, Any]] = deque()
        self._mark = ctypes.c_uint64()
        #: What went wrong first in a call on the stream, and the first mark behind that call.
        self.error: Optional[RingError] = None
        self._failed_mark: Any = None
        self._ended = False
        self._process = os.getpid()
        _living.add(self)

    def run(self, steps: Sequence[Step]) -> None:
        """Make these calls, one after another, and return when they are done."""
        refused: Optional[RingError] = None
        with self.lock:
            if self._running and not self.idle():
                try:
                    mark = self._give(steps, None)
                except RingError as error:
                    # What came before it reads and writes the caller's tensors.
                    refused, mark = error, self._running[-1][0]
            else:
                for function, arguments in steps:
                    result = function(*arguments, self.comm, None)
                    if result:
                        raise self.refusal(result)
                return
        self.reached(mark, -1)
        failed = refused or self.error_of(mark)
        if failed is not None:
            raise failed

    def give(self, steps: Sequence[Step], keep: Any) -> Any:
        """Put these calls on the stream as one; the mark behind them."""
        with self.lock:
            return self._give(steps, keep)

    def send(self, place: int, count: int, kind: int, keep: Any) -> Any:
        """Send this to rank 1: at once, where that waits for nobody and nothing is on the stream,
        else by the stream; the mark behind it."""
        arguments = (place, count, kind, 1)
        with self.lock:
            if self.idle():
                result = lib.ringTrySend(*arguments, self.comm)
                if result != Result.IN_PROGRESS:
                    if result:
                        raise self.refusal(result)
                    return SENT
            return self._give([(lib.ringSend, arguments)], keep)

    def probe(self, timeout_ms: int) -> bool:
        """Whether a message of rank 0 has come, after at most so long."""
        result = lib.ringProbe(0, timeout_ms, self.comm)
        if result and result != Result.IN_PROGRESS:
            raise self.refusal(result)
        return bool(result == Result.SUCCESS)

    def _give(self, steps: Sequence[Step], keep: Any) -> Any:
        if self.stream is None:
            self.stream = Stream()
        stream = self.stream.handle
        result = lib.ringStreamMark(stream, ctypes.byref(self._mark))
        if result:
            raise self.refusal(result)
        # Nobody else uses this stream, so the mark behind these calls is known before them, and
        # their memory is kept whatever comes in between, as Ctrl-C.
        before = self._mark.value
        mark = before + len(steps)
        self._running.append((mark, (steps, keep)))
        for index, (function, arguments) in enumerate(steps):
            result = function(*arguments, self.comm, stream)
            if result:
                refused = self.refusal(result)
                # The steps before one that is refused run all the same.
                self._running[-1] = (before + index, (steps, keep))
                raise refused
        if len(self._running) > MOST_REMEMBERED:
            self._forget()
        return mark

    def forget(self) -> None:
        """Let go of what is done; where a call is being made, which may wait for other ranks, that
        is left for later."""
        if self.lock.acquire(blocking=False):
            try:
                self._forget()
            finally:
                self.lock.release()

    def _forget(self) -> None:
        while self._running and self.reached(self._running[0][0], 0):
            self._running.popleft()

    def idle(self) -> bool:
        """Whether nothing is on the stream; the lock is held."""
        if self._running:
            if not self.reached(self._running[-1][0], 0):
                return False
            self._running.clear()
        return True

    def reached(self, mark: Any, timeout_ms: int) -> bool:
        """Whether the calls before the mark are done, after at most so long; -1 is without end.

        What went wrong in one of them is `error_of` from then on.
        """
        stream = None if self.stream is None else self.stream.handle
        if stream is None:
            return True
        result = lib.ringStreamReached(stream, mark, timeout_ms)
        if result == Result.IN_PROGRESS:
            return False
        # A stream that has just ended knows no marks; how they went was asked before.
        if result and self.error is None and not self._ended:
            self._fail(mark, self._named(result, last_error()))
        return True

    def _fail(self, mark: Any, error: RingError) -> None:
        """Something has gone wrong before this mark: find the first mark behind it."""
        stream = None if self.stream is None else self.stream.handle
        for earlier, _ in list(self._running):
            if earlier >= mark or lib.ringStreamReached(stream, earlier, 0):
                mark = min(mark, earlier)
                break
        self._failed_mark = mark
        self.error = error

    def error_of(self, mark: Any) -> Optional[RingError]:
        """What went wrong before a mark that is reached, if anything has."""
        error = self.error
        return error if error is not None and mark >= self._failed_mark else None

    def refusal(self, result: int) -> RingError:
        """The error of the call that this thread has just made."""
        if self.comm is None:
            return destroyed(self.rank)
        return self._named(result, last_error())

    def _named(self, result: int, text: str) -> RingError:
        # The library speaks of communicators and streams there, which a program of torch has not.
        if os.getpid() != self._process:
            return forked(self.rank)
        return advised(result, text, self.rank)

    def close(self) -> None:
        """Wait for what is on the stream, then say goodbye to the other ranks."""
        self._end(self.communicator.destroy)

    def abort(self) -> None:
        """End what runs, at once, and tell the other ranks."""
        self._end(self.communicator.abort)

    def _end(self, end: Callable[[], None]) -> None:
        if self.comm is None:
            return
        self.comm = None
        try:
            end()
        except RingError:
            pass  # each call's own error is raised where it is waited for
        self._see_through()
        self._ended = True
        if self.stream is not None:
            try:
                self.stream.close()
            except RingError:
                pass  # seen above
        # Not by hand: another thread may be looking at the first of them.
        self.forget()

    def _see_through(self) -> None:
        """The communicator has ended, and so will what is still on the stream: see how."""
        for mark, _ in list(self._running):
            self.reached(mark, -1)


#: The comm streams of this process.
_living: "weakref.WeakSet[CommStream]" = weakref.WeakSet()


def _in_child() -> None:
    """A forked child has no thread that would give a lock back; what it asks the library for is
    refused there."""
    for comm_stream in list(_living):
        comm_stream.lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
