"""Streams for CUDA tensors: the library gets the device's addresses and torch's streams."""

from __future__ import annotations

import ctypes
import time
from datetime import timedelta
from typing import Any, NamedTuple, Optional, Sequence

import torch

from .._native import Result
from ..errors import RingAbortedError, RingError
from .advice import advised
from .comm_stream import MOST_REMEMBERED, CommStream, Step
from .meet import Parent, join

#: Between two looks at an event, in seconds, where a wait has a limit: that is for what is late.
LOOK = 1e-3


class Moment(NamedTuple):
    """A mark on streams of the device: works hold it, for as long as they may be asked."""

    number: int
    event: Any


class CudaCommStream(CommStream):
    """Calls on one communicator of a CUDA device, on torch's current stream."""

    def __init__(
        self,
        store: Any,
        key: str,
        rank: int,
        size: int,
        shared: bytes,
        timeout: timedelta,
        device: str,
        parent: Optional[Parent] = None,
    ) -> None:
        self.device = torch.device(device)
        place = store, key, rank, size, shared, timeout
        super().__init__(join(*place, device=self.device.index, parent=parent))
        self._number = 0
        #: Up to this number nothing has failed.
        self._went_well = 0

    def run(self, steps: Sequence[Step]) -> None:
        """Put these calls on torch's current stream, as torch's own operations are."""
        self.give(steps, None)

    def _give(self, steps: Sequence[Step], keep: Any) -> Moment:
        stream = torch.cuda.current_stream(self.device)
        for function, arguments in steps:
            result = function(*arguments, self.comm, ctypes.c_void_p(stream.cuda_stream))
            if result:
                raise self.refusal(result)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        self._number += 1
        moment = Moment(self._number, event)
        # The allocator hands memory out again in the order of the stream, so nothing is kept.
        # A stream that is being captured runs nothing yet, and its events cannot be asked.
        if not torch.cuda.is_current_stream_capturing():
            self._running.append((moment, None))
            if len(self._running) > MOST_REMEMBERED:
                self._forget()
        return moment

    def forget(self) -> None:
        """What is remembered keeps no memory."""

    def reached(self, mark: Moment, timeout_ms: int) -> bool:
        """As a CPU comm stream's; without end it makes the current stream wait, not this thread."""
        end = time.monotonic() + timeout_ms / 1000
        while not mark.event.query():
            if timeout_ms < 0:
                torch.cuda.current_stream(self.device).wait_event(mark.event)
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, LOOK))
        self._look_for_failure(mark)
        return True

    def _look_for_failure(self, mark: Moment) -> None:
        """The streams are past the mark: is it because the kernels before it gave up?

        Which of them did is not known: none that was seen to end while all was well.
        """
        if self.error is not None or self.comm is None:
            return
        try:
            found = self.communicator.error()
        except RingError:
            return  # it is ending at this moment
        if found is None:
            self._went_well = max(self._went_well, mark.number)
        else:
            self.error = advised(found.result, found.message, self.rank)

    def error_of(self, mark: Moment) -> Optional[RingError]:
        """As a CPU comm stream's."""
        return self.error if mark.number > self._went_well else None

    def abort(self) -> None:
        """As a CPU comm stream's. What had not ended before it has failed."""
        # As on the CPU: another thread may be looking.
        super().forget()
        running = list(self._running)
        pending = running[0][0] if running and self.comm is not None else None
        super().abort()
        if pending is not None and self.error is None:
            self._went_well = max(self._went_well, pending.number - 1)
            self.error = RingAbortedError(
                f"the communicator of rank {self.rank} was aborted",
                Result.ABORTED,
                rank=self.rank,
            )

    def _see_through(self) -> None:
        """The device's own streams go on without the communicator: nothing to wait for."""
