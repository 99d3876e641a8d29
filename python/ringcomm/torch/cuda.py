"""Lanes for CUDA tensors: the library gets the device's addresses and torch's streams."""

from __future__ import annotations

import ctypes
from datetime import timedelta
from typing import Any, Sequence

import torch

from .._native import lib
from ..errors import RingArgumentError
from .lane import Lane, Step
from .meet import join


class CudaLane(Lane):
    """Calls on one communicator of a CUDA device, on torch's current stream."""

    def __init__(
        self, store: Any, key: str, rank: int, size: int, timeout: timedelta, device: str
    ) -> None:
        self.device = torch.device(device)
        with torch.cuda.device(self.device):
            super().__init__(join(store, key, rank, size, timeout))
        self._events: dict = {}
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

    def _give(self, steps: Sequence[Step], keep: Any) -> int:
        stream = torch.cuda.current_stream(self.device)
        for function, arguments in steps:
            result = function(*arguments, self.comm, ctypes.c_void_p(stream.cuda_stream))
            if result:
                raise self.refusal(result)
        event = torch.cuda.Event()
        event.record(stream)
        self._number += 1
        # The allocator hands memory out again in the order of the stream, so nothing is kept.
        self._events[self._number] = event
        for old in [number for number in self._events if number < self._number - 1024]:
            del self._events[old]
        return self._number

    def reached(self, mark: int, timeout_ms: int) -> bool:
        """As a CPU lane's; without end it makes the current stream wait, not this thread."""
        event = self._events.get(mark)
        if event is None or event.query():
            return True
        if timeout_ms < 0:
            torch.cuda.current_stream(self.device).wait_event(event)
            return True
        return False
