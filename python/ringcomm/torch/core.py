"""The state of one rank's group: its lanes, its works, its end.

A lane for each device and each level of callbacks; see `lane` and `work`. The first, of the CPU, is
made with the group, so that a rank that is missing is named there; the others when they are needed.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch._C._distributed_c10d import PrefixStore

from .._native import lib
from ..errors import RingError, RingRemoteError, RingUsageError
from .alive import death_of
from .backward import watch
from .collectives import TELLS
from .futures import level
from .lane import Lane, Step
from .meet import another, join
from .messages import Messages
from .profiling import span, track
from .rooted import RootedCollectives
from .types import Staging
from .work import Done, Finisher, Joined, Work


class Core(RootedCollectives):
    """Collectives and messages of a group; what is of torch's classes is in `group`."""

    def _set_up(
        self, store: Any, rank: int, size: int, timeout: timedelta, device: str = "cpu"
    ) -> None:
        self._store = store
        self._rank, self._size = rank, size
        self._timeout = timeout
        self._lanes: Dict[Tuple[str, int], Lane] = {}
        self._finishers: Dict[Tuple[str, int], Finisher] = {}
        self._making = threading.Lock()
        self._coalescing = threading.local()
        self._scaled: List[Tuple[int, Lane]] = []
        self._messages: Optional[Messages] = None
        self._sequence = 0
        self._barriers = 0
        self._ended = False
        self._cpu = None
        if device == "cpu":
            self._cpu = self._new_lane("cpu", 0)

    def rank(self) -> int:
        """This rank in the group."""
        return self._rank

    def size(self) -> int:
        """The number of ranks of the group."""
        return self._size

    def _lane(self, device: torch.device) -> Lane:
        if level.depth == 0 and device.type == "cpu" and self._cpu is not None:
            return self._cpu
        name = "cpu" if device.type == "cpu" else f"{device.type}:{device.index}"
        lane = self._lanes.get((name, level.depth))
        return self._new_lane(name, level.depth) if lane is None else lane

    def _new_lane(self, device: str, depth: int) -> Lane:
        with self._making:
            lane = self._lanes.get((device, depth))
            if lane is None:
                if self._ended:
                    raise RingUsageError("the process group was destroyed", 5, rank=self._rank)
                # A device's number differs from rank to rank; its kind does not.
                key = f"ringcomm/{device.split(':')[0]}/{depth}"
                if device == "cpu":
                    # Callbacks have threads of their own, beside the program's.
                    store = another(self._store) if depth else self._store
                    lane = Lane(join(store, key, self._rank, self._size, self._timeout))
                else:
                    from .cuda import CudaLane

                    lane = CudaLane(self._store, key, self._rank, self._size, self._timeout, device)
                self._lanes[device, depth] = lane
                if device == "cpu" and depth == 0:
                    self._cpu = lane
            return lane

    def _finisher(self, device: torch.device) -> Finisher:
        key = (str(device), level.depth)
        with self._making:
            return self._finishers.setdefault(key, Finisher(level.depth))

    def _start(
        self,
        name: str,
        tensors: List[torch.Tensor],
        steps: Sequence[Step],
        options: Any,
        staging: Optional[Staging] = None,
        result: Optional[List[torch.Tensor]] = None,
        keep: Any = None,
    ) -> Optional[Work]:
        self._sequence += 1
        result = tensors if result is None else result
        device = (result or tensors)[0].device if (result or tensors) else torch.device("cpu")
        for tensor in (*tensors, *result):
            if tensor.device != device:
                raise ValueError(
                    f"{name}: tensors on different devices, {device} and {tensor.device}"
                )
        lane = self._lane(device)
        after = None if staging is None else staging.after()
        batch = getattr(self._coalescing, "works", None)
        try:
            if getattr(options, "asyncOp", True) or batch is not None:
                held = (tensors, result, None if staging is None else staging.keep)
                mark = lane.give(steps, held)
                work = Work(lane, mark, result, after, self._finisher(device), name)
                track(name, work)
                watch(work)
                if batch is not None:
                    batch.append(work)
                return work
            with span(name, tensors):
                lane.run(steps)
        finally:
            self._forget_scaled()
        if after is not None:
            after()
        return None if TELLS else Done(result)

    def _scaled_sum(self, op: Any, tensor: torch.Tensor) -> int:
        number = super()._scaled_sum(op, tensor)
        self._scaled.append((number, self._lane(tensor.device)))
        return number

    def _forget_scaled(self) -> None:
        while self._scaled:
            number, lane = self._scaled.pop()
            lib.ringRedOpDestroy(number, lane.comm)

    def start_coalescing(self, device: Any = None) -> None:
        """The operations of this thread until `end_coalescing` make one work."""
        self._coalescing.works = []

    def end_coalescing(self, device: Any = None) -> Work:
        """The work of the operations since `start_coalescing`."""
        works, self._coalescing.works = self._coalescing.works, None
        return Joined(works, self._finisher(torch.device("cpu")))

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    def send(self, tensors: Any, target: int, tag: int = 0) -> Work:
        """Send each tensor to a rank."""
        return self._message("send", self._post().send(list(tensors), target, tag))

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Receive each tensor from a rank."""
        return self._message("recv", self._post().receive(list(tensors), source, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive each tensor from whoever sends one."""
        return self._message("recvAnySource", self._post().receive(list(tensors), None, tag))

    recvAnysource = recv_anysource

    def _message(self, name: str, work: Work) -> Work:
        track(name, work)
        batch = getattr(self._coalescing, "works", None)
        if batch is not None:
            batch.append(work)
        return work

    def _post(self) -> Messages:
        if self._messages is None:
            with self._making:
                if self._messages is None:
                    store = PrefixStore("ringcomm/p2p", another(self._store))
                    self._messages = Messages(
                        store, self._rank, self._size, self._timeout, self._trouble
                    )
        return self._messages

    def _trouble(self, peer: int) -> Optional[RingError]:
        """Why messages with this rank have no future, if there is a reason."""
        lane = self._cpu
        if self._ended:
            return RingUsageError("the process group was destroyed", 5, rank=self._rank)
        try:
            error = None if lane is None else lane.communicator.error()
        except RingError:
            return None  # it is ending at this moment
        if lane is None or not isinstance(error, RingRemoteError) or error.peer == peer:
            return error
        return death_of(lane.communicator, peer)

    def shutdown(self) -> None:
        """Wait for what runs, then leave the group."""
        self._end("close")

    def abort(self) -> None:
        """Leave the group at once; what runs fails, here and elsewhere."""
        self._end("abort")

    def _end(self, how: str) -> None:
        with self._making:
            if self._ended:
                return
            self._ended = True
        if self._messages is not None:
            self._messages.close()
        for lane in list(self._lanes.values()):
            getattr(lane, how)()
        for finisher in self._finishers.values():
            finisher.close()

    def getBackendName(self) -> str:
        """`ringcomm`."""
        return "ringcomm"
