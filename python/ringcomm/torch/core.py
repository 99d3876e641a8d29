"""The state of one rank's group: its comm streams, its works, its end.

A comm stream for each device and each level of callbacks; see `comm_stream` and `work`. The first,
of the CPU, is made with the group, so that a rank that is missing is named there; the others when
they are needed.

A store may outlive the group, and serve the next one of the same name. So the ranks agree on a word
through their first comm stream, and all keys have it but the one of that stream, which is gone by
then.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import threading
from datetime import timedelta
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch

from .._native import DataType, lib
from ..communicator import Communicator
from .backward import watch
from .barrier import MonitoredBarriers
from .collectives import TELLS
from .futures import level
from .comm_stream import CommStream, Step, check_process, destroyed, unmade
from .meet import Connection, Parent, Part, another, join, join_first
from .messages import Messages
from .profiling import span, track
from .rooted import RootedCollectives
from .sealing import GroupKey
from .types import Staging
from .work import Done, Finisher, Joined, Work


#: Where a group's first communicator comes from: it is there, it has a parent, or it has neither.
First = Union[Parent, Communicator, None]

#: What rank 0 tells the others first: the word in all keys, and the key of further meetings.
WORD_BYTES, KEY_BYTES = 8, 32


class _Scaled(threading.local):
    """The pre-multiplied sums of the call that this thread is about to make."""

    def __init__(self) -> None:
        self.made: List[Tuple[int, CommStream]] = []


class Core(RootedCollectives):
    """Collectives and messages of a group; what is of torch's classes is in `group`."""

    #: Whether `backward()` raises the errors of operations that it has started.
    _raised_by_backward = True

    def _set_up(
        self, store: Any, rank: int, size: int, timeout: timedelta, first: First = None
    ) -> None:
        self._prepare(store, rank, size, timeout)
        self._meet(first)

    def _prepare(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """All that does not need the other ranks."""
        self._store, self._rank, self._size = store, rank, size
        self._first: First = None
        #: Whether the group was made because others had died, and the store may be gone with them.
        self._some_died = False
        #: How long the ranks wait for each other, where that is not the group's deadline.
        self._patience: Optional[timedelta] = None
        self._key: Optional[GroupKey] = None
        self._process = os.getpid()
        self._timeout = timeout
        self._comm_streams: Dict[Tuple[str, int], CommStream] = {}
        self._finishers: Dict[Tuple[str, int], Finisher] = {}
        #: Guards what is looked up here, and is never held while ranks meet.
        self._making = threading.Lock()
        self._turns: Dict[Tuple[str, int], Tuple[threading.Lock, str]] = {}
        self._coalescing = threading.local()
        self._scaled = _Scaled()
        self._messages: Optional[Messages] = None
        self._connection: Optional[Connection] = None
        self._sequence = 0
        self._ended = False
        self._keys = "ringcomm"

    def _meet(self, first: First = None) -> None:
        """Join the other ranks, and agree with them on the word of all keys."""
        self._first = first
        self._cpu = self._new_comm_stream("cpu", 0)
        # Rank 0 says the word when it has deleted the comm stream's key: who goes on finds no old one.
        drawn = secrets.token_bytes(WORD_BYTES + KEY_BYTES)
        word = (ctypes.c_uint8 * len(drawn)).from_buffer_copy(drawn)
        place = ctypes.addressof(word), ctypes.addressof(word)
        self._cpu.run([(lib.ringBroadcast, (*place, len(word), DataType.UINT8.value, 0))])
        self._keys = f"ringcomm/{bytes(word[:WORD_BYTES]).hex()}"
        self._key = GroupKey(self._store, bytes(word[WORD_BYTES:]), self._cpu.communicator)
        place_of_barriers = self._store, f"{self._keys}/monitored"
        self._monitored = MonitoredBarriers(*place_of_barriers, self._rank, self._size)

    def _comm_stream(self, device: torch.device) -> CommStream:
        if level.depth == 0 and device.type == "cpu":
            return self._cpu
        name = "cpu" if device.type == "cpu" else f"{device.type}:{device.index}"
        comm_stream = self._comm_streams.get((name, level.depth))
        return self._new_comm_stream(name, level.depth) if comm_stream is None else comm_stream

    def _new_comm_stream(self, device: str, depth: int) -> CommStream:
        # To the others, who would meet it in the store, a forked child would be its parent.
        check_process(self._process, self._rank)
        turn, key = self._turn(device, depth)
        with turn:
            comm_stream = self._comm_streams.get((device, depth))
            if comm_stream is not None:
                return comm_stream
            if self._ended:
                raise destroyed(self._rank)
            comm_stream = self._join(device, depth, key)
            with self._making:
                if not self._ended:
                    self._comm_streams[device, depth] = comm_stream
                    return comm_stream
        # The group has ended while the ranks met.
        comm_stream.abort()
        raise destroyed(self._rank)

    def _turn(self, device: str, depth: int) -> Tuple[threading.Lock, str]:
        """What who makes this comm stream holds, and the key where its ranks meet."""
        kind = device.split(":")[0]
        with self._making:
            if (device, depth) not in self._turns:
                # A device's number differs from rank to rank; its kind does not, nor how many of
                # that came before.
                before = [at for other, at in self._turns if other.split(":")[0] == kind]
                key = f"{self._keys}/{kind}/{depth}/{before.count(depth)}"
                self._turns[device, depth] = threading.Lock(), key
            return self._turns[device, depth]

    def _join(self, device: str, depth: int, key: str) -> CommStream:
        if (device, depth) == ("cpu", 0):
            where = self._store, key, self._rank, self._size, self._timeout
            first, self._first = self._first, None
            if isinstance(first, Communicator):
                return CommStream(first)
            return CommStream(join_first(*where, first, self._patience))
        # Other threads use the group's connection to the store meanwhile.
        place = self._further(), key, self._rank, self._size, self._shared(), self._timeout
        of_all = self._parent_of(range(self._size))
        if device == "cpu":
            return CommStream(join(*place, parent=of_all))
        from .cuda import CudaCommStream

        return CudaCommStream(*place, device, of_all)

    def _parent_of(self, ranks: Sequence[int]) -> Parent:
        """What a communicator of some of the group's ranks is made of."""
        return Parent(self._cpu.communicator, ranks)

    def _shared(self) -> bytes:
        """The key that the ranks have agreed on."""
        if self._key is None:
            raise unmade(self._rank)
        return self._key.key

    def _further(self) -> Connection:
        if self._connection is None:
            self._connection = another(self._store, self._some_died)
        return self._connection

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
                    f"{name}: tensors on different devices, {device} and {tensor.device}; move "
                    "them to one"
                )
        comm_stream = self._comm_stream(device)
        after = None if staging is None else staging.after()
        batch = getattr(self._coalescing, "works", None)
        try:
            if getattr(options, "asyncOp", True) or batch is not None:
                held = (tensors, result, None if staging is None else staging.keep)
                mark = comm_stream.give(steps, held)
                work = Work(comm_stream, mark, result, after, self._finisher(device), name)
                track(name, work, tensors)
                if self._raised_by_backward:
                    watch(work)
                if batch is not None:
                    batch.append(work)
                return work
            with span(name, tensors):
                comm_stream.run(steps)
        finally:
            self._forget_scaled()
        if after is not None:
            after()
        return None if TELLS else Done(result)

    def _scaled_sum(self, op: Any, tensor: torch.Tensor) -> int:
        number = super()._scaled_sum(op, tensor)
        self._scaled.made.append((number, self._comm_stream(tensor.device)))
        return number

    def _forget_scaled(self) -> None:
        while self._scaled.made:
            number, comm_stream = self._scaled.made.pop()
            lib.ringRedOpDestroy(number, comm_stream.comm)

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
        check_process(self._process, self._rank)
        if self._messages is None and not self._ended:
            store = Part(self._further(), f"{self._keys}/p2p")
            with self._making:
                if self._messages is None and not self._ended:
                    self._messages = Messages(
                        store, self._cpu.communicator, self._shared(), self._timeout
                    )
        if self._ended or self._messages is None:
            raise destroyed(self._rank)
        return self._messages

    def shutdown(self) -> None:
        """Wait for what runs, then leave the group."""
        self._end("close")

    def abort(self) -> None:
        """Leave the group at once; what runs fails, here and elsewhere."""
        self._end("abort")

    def _end(self, how: str) -> None:
        if os.getpid() != self._process:
            return  # all of it is the parent's, which goes on
        with self._making:
            if self._ended:
                return
            self._ended = True
        if self._key is not None:
            self._key.forget()
        if self._messages is not None:
            getattr(self._messages, how)()
        for comm_stream in list(self._comm_streams.values()):
            getattr(comm_stream, how)()
        for finisher in list(self._finishers.values()):
            finisher.close()

    def getBackendName(self) -> str:
        """`ringcomm`."""
        return "ringcomm"
