"""The end of a channel that receives: whose message has come, and where it goes."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from typing import Any, Deque, Optional, Tuple

import torch

from .._native import DataType, Result, lib
from ..errors import RingError, RingTimeoutError, RingUsageError
from .channel import BYTE, HEADER_BYTES, LOOK, LOOK_FOR_LIFE, ROOM, Channel, Header
from .comm_stream import CommStream
from .types import movable


#: The longest time between two looks into the store for a channel's key, in seconds.
LONGEST_PAUSE = 20e-3


class Receiver(Channel):
    """The end that receives."""

    def __init__(self, post: Any, peer: int) -> None:
        super().__init__(post, peer)
        self._key = f"{peer}>{post.rank}"
        self._header = Header()
        #: What joins the channel, and when that has to be done.
        self._opening: Optional[threading.Thread] = None
        self._open_until = 0.0
        #: When the store is asked next for the channel's key, and how long after that.
        self._look_at, self._pause = 0.0, LOOK
        #: Whether a thread has its turn: it alone looks into the channel, for all who want some.
        self._taken = False
        self._turns = threading.Condition()
        #: Messages that came before anybody wanted them: tag, type, count, body.
        self._aside: Deque[Tuple[int, int, int, torch.Tensor]] = deque()

    def busy(self) -> bool:
        """Whether somebody wants a message that may come here."""
        return any(wanted.peer in (None, self.peer) for wanted in list(self.post.wanted))

    def look_aside(self) -> None:
        """Give what was put aside to those who want it now; the caller announces it."""
        with self.post.lock:
            for kept in list(self._aside):
                wanted = self._taker(kept[0])
                if wanted is not None:
                    self._aside.remove(kept)
                    self._fits(wanted, kept[1], kept[2])
                    if not wanted._over:
                        wanted.place.view(-1).view(torch.uint8).copy_(kept[3])
                        wanted.settle()

    def _taker(self, tag: int) -> Any:
        """Who has waited longest for a message of this tag from here; it waits no more."""
        for wanted in self.post.wanted:
            if wanted.tag == tag and wanted.peer in (None, self.peer):
                self.post.wanted.remove(wanted)
                wanted.peer = self.peer
                return wanted
        return None

    def _fits(self, wanted: Any, kind: int, count: int) -> None:
        if movable(wanted.place) != (kind, count):
            theirs = f"{count} {DataType(kind).name.lower()}"
            mine = f"{wanted.place.numel()} {wanted.place.dtype}"
            wanted.settle(
                RingUsageError(
                    f"rank {self.peer} sent {theirs} with tag {wanted.tag}, but rank "
                    f"{self.post.rank} receives {mine}: both need the same type and shape",
                    Result.INVALID_USAGE,
                    rank=self.post.rank,
                    peer=self.peer,
                )
            )

    def progress(self, seconds: float, wanted: Any = None) -> bool:
        """Take what has come, or wait a while for the next message, at most so long; whether
        somebody wants one."""
        end = time.monotonic() + min(seconds, LOOK_FOR_LIFE)
        while (wanted is not None or self.busy()) and self._begin_turn(end, wanted):
            # A turn is one message. It may be another thread's, or have a future: who wanted it
            # goes on before this thread waits again, since the next may only come after that.
            try:
                took = self._opened(end) and self._take(end)
            finally:
                self._end_turn()
                self.post.announce()
            if not took:
                break
        self.post.announce()
        return self.busy()

    def _begin_turn(self, end: float, wanted: Any) -> bool:
        """Wait for this thread's turn; False: it has none before the end, or needs none, because
        its message has come."""
        with self._turns:
            while wanted is None or not wanted._over:
                if not self._taken:
                    self._taken = True
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._turns.wait(left)
        return False

    def _end_turn(self) -> None:
        with self._turns:
            self._taken = False
            self._turns.notify_all()

    def _opened(self, end: float) -> bool:
        """Join the channel once the sender has left word in the store."""
        if self.comm_stream is None and self.failure is None:
            if self._opening is None:
                self._look_for(end)
            else:
                self._wait_for_opening(self._opening, end)
        if self.failure is not None:
            self._give_up(self.failure)
            return False
        return self.comm_stream is not None

    def _look_for(self, end: float) -> None:
        while True:
            pause = self._look_at - time.monotonic()
            if pause > 0 and self._look_at >= end:
                time.sleep(max(0, end - time.monotonic()))
                return
            time.sleep(max(pause, 0))
            self.failure = self.failure or self.post.trouble_with(self.peer)
            if self.failure is not None:
                return
            try:
                if self.post.store.check([self._key]):
                    break
            except Exception as error:  # a store of the caller's has errors of its own
                self.failure = self._storeless(error)
                return
            # The store has others to serve: a channel that is not there yet is asked for ever less.
            self._look_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._open_until = time.monotonic() + self.post.seconds
        # A thread of its own: the communicator's deadline is no bound for a sender that left word
        # and then died.
        self._opening = threading.Thread(target=self._open, name="ringcomm channel", daemon=True)
        self._opening.start()
        self._wait_for_opening(self._opening, end)

    def _open(self) -> None:
        self._join(self._key, 1)
        # In this order: whoever gives up says so before it looks for the comm stream.
        if self.failure is not None and self.comm_stream is not None:
            self.comm_stream.abort()

    def _wait_for_opening(self, opening: threading.Thread, end: float) -> None:
        opening.join(max(0, end - time.monotonic()))
        if opening.is_alive():
            trouble = self.post.trouble_with(self.peer)
            if trouble is None and time.monotonic() >= self._open_until:
                trouble = self._unopened()
            self.failure = self.failure or trouble

    def _take(self, end: float) -> bool:
        """Whether a message has come before the end; then it is where it belongs."""
        comm_stream = self.comm_stream
        assert comm_stream is not None
        try:
            if not comm_stream.probe(max(0, int((end - time.monotonic()) * 1000))):
                return False
            comm_stream.run(
                [(lib.ringRecv, (ctypes.addressof(self._header), HEADER_BYTES, BYTE, 0))]
            )
        except RingError as error:
            self._fail(error)
            return False
        self._deliver(comm_stream)
        return True

    def _deliver(self, comm_stream: CommStream) -> None:
        """The header is here: take the body, for whoever wants it or to be put aside."""
        tag, count, kind = self._header.tag, self._header.count, self._header.kind
        with self.post.lock:
            taker = self._taker(tag)
        if taker is not None:
            self._fits(taker, kind, count)
        size = count * DataType(kind).itemsize
        if taker is not None and not taker._over:
            place = taker.place
        else:
            place = torch.empty(size, dtype=torch.uint8, device="cpu")
        if size <= ROOM:
            ctypes.memmove(place.data_ptr(), self._header.body, size)
        else:
            try:
                comm_stream.run([(lib.ringRecv, (place.data_ptr(), count, kind, 0))])
            except RingError as error:
                self._fail(self._unfinished() if isinstance(error, RingTimeoutError) else error)
                if taker is not None:
                    taker.settle(self.failure)
                return
        if taker is not None:
            taker.settle()
        else:
            with self.post.lock:
                self._aside.append((tag, kind, count, place))
            self.look_aside()

    def _unfinished(self) -> RingTimeoutError:
        return RingTimeoutError(
            f"timeout: rank {self.post.rank} waited {self.post.seconds:g} s for the rest of a "
            f"message that rank {self.peer} had begun to send: see what that rank does, or give "
            "the group a longer timeout",
            Result.TIMEOUT,
            rank=self.post.rank,
            peer=self.peer,
        )

    def _fail(self, error: BaseException) -> None:
        # Who ended the channel said why; what the calls say then is that it has ended.
        self.failure = self.failure or error
        self._give_up(self.failure)

    def _give_up(self, error: BaseException) -> None:
        """No message will come from here any more."""
        peers = (self.peer, None) if self.post.nobody_left() else (self.peer,)
        with self.post.lock:
            over = [wanted for wanted in self.post.wanted if wanted.peer in peers]
            for wanted in over:
                self.post.wanted.remove(wanted)
        for wanted in over:
            wanted.settle(error)
