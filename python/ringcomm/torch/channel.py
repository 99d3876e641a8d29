"""A channel: messages from one rank to another, in order, with tags. Here is the end that sends."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections import deque
from typing import Any, Deque, List, Optional

from .._native import DataType, Result
from ..communicator import Communicator
from ..errors import RingError, RingRemoteError, RingTimeoutError
from .comm_stream import SENT, CommStream
from .meet import Parent, join, said
from .types import movable

BYTE = DataType.UINT8.value
#: Between two looks into the store for a channel's key, in seconds.
LOOK = 1e-3
#: Between two looks at whether the other end of a channel is gone, in seconds: whoever waits for it
#: notices no shorter time.
LOOK_FOR_LIFE = 0.1


#: Bytes of a body that come with its header: a further message takes longer than so many bytes in
#: every header.
ROOM = 1000


class Header(ctypes.Structure):
    """What comes before a body: whose it is, and the body itself where it is short."""

    _fields_ = [
        ("tag", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("body", ctypes.c_uint8 * ROOM),
    ]


HEADER_BYTES = ctypes.sizeof(Header)


class ChannelStream(CommStream):
    """The comm stream of a channel. There the sender is rank 0; in errors, whoever it is."""

    def __init__(self, communicator: Communicator, ranks: List[int]) -> None:
        super().__init__(communicator)
        self.rank, self._ranks = ranks[communicator.rank], ranks

    def _named(self, result: int, text: str) -> RingError:
        theirs = re.sub(r"\brank ([01])\b", lambda end: f"rank {self._ranks[int(end[1])]}", text)
        return super()._named(result, theirs)


class Channel:
    """What both ends have: a comm stream, once the other end is there too."""

    def __init__(self, post: Any, peer: int) -> None:
        self.post, self.peer = post, peer
        self.comm_stream: Optional[CommStream] = None
        self.failure: Optional[BaseException] = None

    def _join(self, key: str, end: int) -> None:
        ranks = [self.post.rank, self.peer][:: 1 if end == 0 else -1]
        try:
            where = self.post.store, key, end, 2, self.post.key
            parent = Parent(self.post.communicator, ranks)
            made = join(*where, self.post.timeout, parent=parent)
        except RingTimeoutError as error:
            cause = error.__cause__
            # A store of torch's says that time is over as it says anything else.
            if isinstance(cause, Exception) and not isinstance(cause, RuntimeError):
                self.failure = self.failure or self._storeless(cause)
            else:
                self.failure = self.failure or self._unopened()
            return
        except RingError as error:
            self.failure = self.failure or error
            return
        except Exception as error:  # a store of the caller's has errors of its own
            self.failure = self.failure or self._storeless(error)
            return
        self.comm_stream = ChannelStream(made, ranks)

    def _unopened(self) -> RingTimeoutError:
        return RingTimeoutError(
            f"timeout: rank {self.post.rank} waited for rank {self.peer} to open the channel "
            "of their messages: does it send or receive what this rank does?",
            Result.TIMEOUT,
            rank=self.post.rank,
            peer=self.peer,
        )

    def _storeless(self, error: Exception) -> RingError:
        """The error of a channel whose ends cannot meet, because torch's store has said this."""
        gone: Optional[RingError] = self.post.gone(self.peer)
        return gone or RingRemoteError(
            f"rank {self.post.rank} cannot open the channel of its messages with rank {self.peer}: "
            f"torch's store has failed ({said(error)}); see whether the process that holds it, "
            "rank 0's or the launcher's, has ended, and restart the job",
            Result.REMOTE_ERROR,
            rank=self.post.rank,
        )

    def abort(self, error: RingError) -> None:
        """End the channel at once, for this reason."""
        self.failure = self.failure or error
        if self.comm_stream is not None:
            self.comm_stream.abort()


class Sender(Channel):
    """The end that sends."""

    def __init__(self, post: Any, peer: int) -> None:
        super().__init__(post, peer)
        self.lock = threading.Lock()
        self._waiting: Deque[Any] = deque()
        self._sent: Deque[Any] = deque()
        self._given_up = False
        self._opening = threading.Thread(target=self._open, name="ringcomm channel", daemon=True)
        self._opening.start()

    def _open(self) -> None:
        self._join(f"{self.post.rank}>{self.peer}", 0)
        with self.lock:
            if self._given_up and self.comm_stream is not None:
                self.comm_stream.abort()
            self._submit_all()
        self.post.announce()

    def give(self, message: Any) -> None:
        """Send this after what was given before."""
        with self.lock:
            # Behind those that the opening thread is about to submit.
            self._waiting.append(message)
            if self.comm_stream is not None or self.failure is not None:
                self._submit_all()
        self.post.announce()

    def _submit_all(self) -> None:
        while self._waiting:
            self._submit(self._waiting.popleft())

    def _submit(self, message: Any) -> None:
        if self.comm_stream is None or self._given_up:
            message.settle(self.failure)
            return
        send, mark = self.comm_stream.send, SENT
        try:
            for place in message.places:
                kind, count = movable(place)
                header = Header(message.tag, count, kind)
                message._staging.keep.append(header)
                size = place.numel() * place.element_size()
                if size <= ROOM:
                    ctypes.memmove(header.body, place.data_ptr(), size)
                mark = send(ctypes.addressof(header), HEADER_BYTES, BYTE, message)
                if size > ROOM:
                    mark = send(place.data_ptr(), count, kind, message)
        except RingError as error:
            message.settle(error)
            return
        # Once only, when all of it is given: who waits looks at the mark without the lock.
        message.mark = mark
        if mark == SENT:
            message.settle()
        else:
            self._sent.append(message)

    def progress(self, seconds: float, message: Any = None) -> bool:
        """Settle what has been sent, or wait so long for this message; whether anything is under
        way."""
        if message is not None and message.mark is None:
            self._opening.join(min(seconds, LOOK_FOR_LIFE))
            if message.mark is None or self.comm_stream is None:
                self._look_for_life()
                return True
        if message is not None:
            assert self.comm_stream is not None
            if self.comm_stream.reached(message.mark, int(seconds * 1000)):
                message.settle(self.comm_stream.error_of(message.mark))
        with self.lock:
            while self.comm_stream is not None and self._sent:
                first = self._sent[0]
                if not self.comm_stream.reached(first.mark, 0):
                    break
                self._sent.popleft()
                first.settle(self.comm_stream.error_of(first.mark))
        if self.comm_stream is not None:
            self.comm_stream.forget()
        self.post.announce()
        return self.busy()

    def _look_for_life(self) -> None:
        """Give up if the other end is gone before it was there."""
        trouble = self.post.trouble_with(self.peer) or self.post.gone(self.peer)
        if trouble is not None and self.comm_stream is None:
            self.abort(trouble)
        self.post.announce()

    def busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._waiting or self._sent)

    def close(self, deadline: float) -> None:
        """Wait until what was sent has arrived, as long as the other end may still take it; then
        end the channel. The deadline is one of `time.monotonic`."""
        look = time.monotonic()
        while self.busy() and self.failure is None and look < deadline:
            gone = self.post.gone(self.peer)
            if gone is not None:
                self.abort(gone)
            until = min(look + LOOK_FOR_LIFE, deadline)
            while self.progress(0) and time.monotonic() < until:
                time.sleep(LOOK)
            look = time.monotonic()
        if self.busy():
            self.abort(self.post.late(self.peer))
        # What lies in the channel's slots is still received when this end has said goodbye.
        elif self.comm_stream is not None:
            self.comm_stream.close()

    def abort(self, error: RingError) -> None:
        """End the channel at once; what has not arrived fails."""
        with self.lock:
            self._given_up = True
            super().abort(error)
            self._submit_all()
            while self._sent:
                first = self._sent.popleft()
                assert self.comm_stream is not None
                # What its comm stream says of itself is that it was aborted, and not why.
                first.settle(self.failure if self.comm_stream.error_of(first.mark) else None)
