"""What an asynchronous operation leaves in the caller's hand: c10d's Work, and its future.

`wait` and `is_completed` ask the library, so neither needs another thread to get the GIL. A future
has nobody who asks; a `Finisher` completes those, in the order of the operations.
"""

from __future__ import annotations

import queue
import threading
import time
from datetime import timedelta
from typing import Callable, List, Optional

import torch
from torch._C._distributed_c10d import Work as TorchWork

from .._native import Result
from ..errors import RingError, RingTimeoutError
from .futures import Future, level
from .comm_stream import CommStream
from .older import OLD, outlive


class Work(TorchWork):
    """An operation that is on its way."""

    def __init__(
        self,
        comm_stream: CommStream,
        mark: int,
        tensors: List[torch.Tensor],
        after: Optional[Callable[[], None]] = None,
        finisher: Optional["Finisher"] = None,
        name: str = "",
    ) -> None:
        super().__init__()
        self._comm_stream = comm_stream
        self._mark = mark
        self._tensors = tensors
        self._after = after
        self._finisher = finisher
        self._name = name
        self._over = False
        self._waited = False
        self._error: Optional[BaseException] = None
        self._ending = threading.Lock()
        self._future: Optional[Future] = None

    def is_completed(self) -> bool:
        """Whether the operation is done. Does not wait."""
        if not self._over and self._comm_stream.reached(self._mark, 0):
            self.finish()
        return self._over

    def is_success(self) -> bool:
        """Whether the operation is done and went well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """What went wrong, if anything has."""
        return self._error

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Wait until the operation is done; raises its error."""
        if not self._over:
            limit = -1
            if timeout is not None and timeout.total_seconds() > 0:
                limit = max(1, int(timeout.total_seconds() * 1000))
            if not self._comm_stream.reached(self._mark, limit):
                raise RingTimeoutError(
                    f"timeout: rank {self._comm_stream.rank} waited {limit} ms for its "
                    f"{self._name or 'operation'}; give wait() a longer timeout where it is late",
                    Result.TIMEOUT,
                    rank=self._comm_stream.rank,
                )
            self.finish()
        self._waited = True
        if self._error is not None:
            raise self._error
        if self._future is not None and self._finisher is not None and not self._finisher.is_here():
            self._future.wait()
        return True

    def is_asked_for(self) -> bool:
        """Whether somebody has its future, which completes by itself."""
        return self._future is not None

    def failure(self) -> Optional[BaseException]:
        """Wait until the calls are done; their error."""
        if not self._over:
            self._comm_stream.reached(self._mark, -1)
        return self._error or self._comm_stream.error_of(self._mark)

    def finish(self) -> None:
        """The calls are done: see how they went, and bring the results where they belong."""
        with self._ending:
            if self._over:
                return
            self._error = self._comm_stream.error_of(self._mark)
            if self._error is None and self._after is not None:
                try:
                    self._after()
                except BaseException as error:  # the caller gets it where it waits
                    self._error = error
            self._after = None
            self._over = True
        self._comm_stream.forget()

    def get_future(self) -> Future:
        """A future with the list of the result's tensors; completes by itself."""
        if self._future is None:
            depth = 0 if self._finisher is None else self._finisher.depth
            self._future = Future(self._tensors, depth)
            # What was waited for is done for every rank at this point of the program; what merely
            # happens to be done is not, and must not run its callbacks here.
            if self._finisher is None or self._waited:
                self.complete()
            else:
                self._finisher.add(self)
        return self._future

    def complete(self) -> None:
        """Give the future its value."""
        if not self._over:
            self._comm_stream.reached(self._mark, -1)
            self.finish()
        assert self._future is not None
        self._future.settle(self._error)

    def result(self) -> List[torch.Tensor]:
        """The tensors that hold the result."""
        return self._tensors

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`: the CPU has no streams to block."""
        self.wait()

    def source_rank(self) -> int:
        """Who sent the message, for a receive."""
        raise RuntimeError("only a receive has a source; ask the work of a receive")

    def _source_rank(self) -> int:
        return self.source_rank()

    if OLD:
        __del__ = outlive


class Done(Work):
    """An operation that was done before it was handed out."""

    def __init__(self, tensors: List[torch.Tensor]) -> None:
        TorchWork.__init__(self)
        self._tensors = tensors
        self._over = self._waited = True
        self._error = None
        self._finisher = None
        self._future = None

    def failure(self) -> Optional[BaseException]:
        return None


class Joined(Work):
    """Several works as one, done when all of them are."""

    def __init__(self, works: List[Work], finisher: Optional["Finisher"]) -> None:
        TorchWork.__init__(self)
        self._works = works
        self._tensors = [tensor for work in works for tensor in work.result()]
        self._over = self._waited = False
        self._error = None
        self._finisher = finisher
        self._future = None

    def is_completed(self) -> bool:
        if not self._over and all([work.is_completed() for work in self._works]):
            self._collect()
        return self._over

    def _collect(self) -> None:
        errors = [work.exception() for work in self._works]
        self._error = next((error for error in errors if error is not None), None)
        self._over = True

    def failure(self) -> Optional[BaseException]:
        try:
            self.wait()
        except RingError:
            pass  # kept
        return self._error

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        end = None
        if timeout is not None and timeout.total_seconds() > 0:
            end = time.monotonic() + timeout.total_seconds()
        try:
            for work in self._works:
                # What is left of the time; none at all would be without end.
                left = None if end is None else max(1e-3, end - time.monotonic())
                work.wait(None if left is None else timedelta(seconds=left))
        except BaseException:
            self.is_completed()
            raise
        self._waited = True
        self._collect()
        return True

    def complete(self) -> None:
        try:
            self.wait()
        except RingError as error:
            self._error = error
        self._over = True
        assert self._future is not None
        self._future.settle(self._error)


class Finisher:
    """A thread that completes futures, one after another, and runs their callbacks.

    A callback may start operations and wait for their futures. Those are one level deeper, where
    another comm stream and another finisher serve them; so neither waits for itself.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._queue: "queue.SimpleQueue[Optional[Work]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._starting = threading.Lock()

    def add(self, work: Work) -> None:
        """Complete this work's future when its turn comes."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._serve, name="ringcomm futures", daemon=True
                    )
                    self._thread.start()
        self._queue.put(work)

    def is_here(self) -> bool:
        """Whether this is the finisher's own thread."""
        return threading.current_thread() is self._thread

    def _serve(self) -> None:
        level.depth = self.depth + 1
        while True:
            work = self._queue.get()
            if work is None:
                return
            try:
                work.complete()
            except RuntimeError:
                pass  # completed by somebody else
            del work

    def close(self) -> None:
        """Complete what was added, then end the thread."""
        thread = self._thread
        if thread is not None:
            self._queue.put(None)
            if not self.is_here():
                thread.join(timeout=1)
            self._thread = None
