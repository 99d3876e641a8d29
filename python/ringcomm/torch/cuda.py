"""Lanes for CUDA tensors: the library gets the device's addresses and torch's streams."""

from __future__ import annotations

import ctypes
from datetime import timedelta
from typing import Any, NamedTuple, Sequence

import torch

from .._native import lib
from ..errors import RingAbortedError, RingArgumentError
from .lane import MOST_REMEMBERED, Lane, Step
from .meet import join


class Moment(NamedTuple):
    """A mark on streams of the device: works hold it, for as long as they may be asked."""

    number: int
    event: Any


class CudaLane(Lane):
    """Calls on one communicator of a CUDA device, on torch's current stream."""

    def __init__(
        self, store: Any, key: str, rank: int, size: int, timeout: timedelta, device: str
    ) -> None:
        self.device = torch.device(device)
        with torch.cuda.device(self.device):
            super().__init__(join(store, key, rank, size, timeout))
        self._number = 0
        found = ctypes.c_int()
        lib.ringCommCuDevice(self.comm, ctypes.byref(found))
        if found.value < 0:
            # Addresses of a device in a call that reads memory itself would end the process.
            self.abort()
            raise RingArgumentError(
                f"this libringcomm.so does not work on CUDA tensors ({device}): its communicator "
                f"is on the CPU; "
                "use tensors of the CPU, or init_process_group('cpu:ringcomm,cuda:nccl')",
                4,
                rank=rank,
            )

    def run(self, steps: Sequence[Step]) -> None:
        """Put these calls on torch's current stream, as torch's own operations are."""
        self.give(steps, None)

    def _give(self, steps: Sequence[Step], keep: Any) -> Moment:
        stream = torch.cuda.current_stream(self.device)
        for function, arguments in steps:
            result = function(*arguments, self.comm, ctypes.c_void_p(stream.cuda_stream))
            if result:
                raise self.refusal(result)
        event = torch.cuda.Event()
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

    def reached(self, mark: Moment, timeout_ms: int) -> bool:
        """As a CPU lane's; without end it makes the current stream wait, not this thread."""
        if mark.event.query():
            return True
        if timeout_ms < 0:
            torch.cuda.current_stream(self.device).wait_event(mark.event)
            return True
        return False

    def abort(self) -> None:
        """As a CPU lane's. What had not ended before it has failed."""
        self._forget()
        pending = self._running[0][0] if self._running and self.comm is not None else None
        super().abort()
        if pending is not None:
            self._failed_mark = pending
            self.error = RingAbortedError(
                f"the communicator of rank {self.rank} was aborted", 64, rank=self.rank
            )

    def _see_through(self) -> None:
        """The device's own streams go on without the communicator: nothing to wait for."""
