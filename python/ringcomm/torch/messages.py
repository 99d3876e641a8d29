"""Send and receive, with tags and from any source, over one channel for each ordered pair of ranks.

A channel is a communicator of two ranks, made when the first message goes that way, so that a
receive that waits keeps nothing else waiting. Every message is a header and a body. The receiving
end has always asked for the next header; whoever waits for a message, or the group's `Carrier`
where nobody does, looks whether it came, finds the receive that it is for, and fetches the body
into its tensor. A message that nobody asked for is put aside when the next one is wanted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from datetime import timedelta
from typing import Any, Callable, Deque, Dict, List, Optional

import torch

from ..errors import RingError, RingRemoteError, RingTimeoutError
from .channel import Sender
from .futures import Future
from .receiver import Receiver
from .types import Staging, check
from .work import TorchWork, Work

#: Between two looks at several channels, in seconds: short at first, for messages that are under
#: way.
SHORTEST, LONGEST = 20e-6, 2e-3


class Message(Work):
    """A send or a receive that is on its way."""

    def __init__(
        self, post: "Messages", tensors: List[torch.Tensor], tag: int, peer: Optional[int]
    ) -> None:
        TorchWork.__init__(self)
        self._post = post
        self._tensors = tensors
        self._staging = Staging(on_host=True)
        self.tag, self.peer = tag, peer
        self._over = False
        self._error: Optional[BaseException] = None
        self._future: Optional[Future] = None
        self._ending = threading.Lock()

    def is_completed(self) -> bool:
        if not self._over:
            self.progress(0)
        return self._over

    def progress(self, seconds: float) -> None:
        """Look, or wait so long, whether the message can go on."""
        raise NotImplementedError

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        limit = timeout.total_seconds() if timeout is not None else 0
        end = time.monotonic() + (limit if limit > 0 else self._post.seconds)
        while not self._over:
            left = end - time.monotonic()
            if left <= 0:
                raise RingTimeoutError(self._late(), 8, rank=self._post.rank, peer=self.peer)
            self.progress(left)
        if self._error is not None:
            raise self._error
        return True

    def _late(self) -> str:
        who = "any rank" if self.peer is None else f"rank {self.peer}"
        return f"timeout: rank {self._post.rank} waited for {who} in a message with tag {self.tag}"

    def settle(self, error: Optional[BaseException] = None) -> None:
        """The message is done, or will never be; `announce` then completes its future."""
        with self._ending:
            if self._over:
                return
            after = self._staging.after()
            if error is None and after is not None:
                after()
            self._error = error
            self._over = True
            if self._future is not None:
                self._post.settled.append(self)

    def complete(self) -> None:
        assert self._future is not None
        self._future.settle(self._error)

    def get_future(self) -> Future:
        with self._ending:
            if self._future is not None:
                return self._future
            self._future = Future(self._tensors, 0)
            over = self._over
        if over:
            self.complete()
        else:
            self._post.carry()
        return self._future


class Send(Message):
    """A message that is being sent."""

    def __init__(self, post: "Messages", tensors: List[torch.Tensor], tag: int, peer: int) -> None:
        super().__init__(post, tensors, tag, peer)
        self.channel = post.sender(peer)
        self.places = [self._staging.source(check(tensor, "send")) for tensor in tensors]
        self.mark: Optional[int] = None
        self.channel.give(self)

    def progress(self, seconds: float) -> None:
        self.channel.progress(seconds, self)


class Receive(Message):
    """A message that is waited for."""

    def __init__(
        self, post: "Messages", tensor: torch.Tensor, tag: int, peer: Optional[int]
    ) -> None:
        super().__init__(post, [tensor], tag, peer)
        self.place = self._staging.target(check(tensor, "recv"))

    def progress(self, seconds: float) -> None:
        self._post.progress(self, seconds)

    def source_rank(self) -> int:
        """Who sent it."""
        if self.peer is None:
            raise RuntimeError("the message has not come yet")
        return self.peer


class Messages:
    """The channels of one rank, and the receives that wait for a message."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        trouble: Callable[[int], Optional[RingError]],
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._trouble = trouble
        self.timeout = timeout
        self.seconds = timeout.total_seconds()
        #: Guards `wanted` and what receivers put aside.
        self.lock = threading.Lock()
        self.wanted: List[Receive] = []
        #: Messages that are over and whose futures are not complete yet.
        self.settled: Deque[Message] = deque()
        self._senders: Dict[int, Sender] = {}
        self._receivers: Dict[int, Receiver] = {}
        self._making = threading.Lock()
        self._carrier = Carrier(self)
        self.ended = False

    def sender(self, peer: int) -> Sender:
        """The channel to this rank."""
        with self._making:
            if peer not in self._senders:
                self._senders[peer] = Sender(self, peer)
            return self._senders[peer]

    def receivers(self, peer: Optional[int]) -> List[Receiver]:
        """The channel from this rank; None: from every other."""
        peers = (
            [other for other in range(self.size) if other != self.rank] if peer is None else [peer]
        )
        with self._making:
            for each in peers:
                if each not in self._receivers:
                    self._receivers[each] = Receiver(self, each)
            return [self._receivers[each] for each in peers]

    def send(self, tensors: List[torch.Tensor], peer: int, tag: int) -> Work:
        """Send these tensors, a message each."""
        return Send(self, tensors, tag, peer)

    def receive(self, tensors: List[torch.Tensor], peer: Optional[int], tag: int) -> Work:
        """Receive one message; from any rank where `peer` is None."""
        if len(tensors) != 1:
            raise ValueError("a receive has one tensor")
        if peer is not None and not 0 <= peer < self.size:
            raise ValueError(f"there is no rank {peer} among {self.size} to receive from")
        wanted = Receive(self, tensors[0], tag, peer)
        channels = self.receivers(peer)
        with self.lock:
            self.wanted.append(wanted)
        for channel in channels:
            channel.look_aside()
        self.announce()
        self._carrier.wake()
        return wanted

    def progress(self, wanted: Receive, seconds: float) -> None:
        """Bring on the channels from which this message may come."""
        channels = self.receivers(wanted.peer)
        if len(channels) == 1:
            channels[0].progress(seconds, wanted)
            return
        end, pause = time.monotonic() + seconds, SHORTEST
        while True:
            for channel in channels:
                channel.progress(0)
            if wanted._over or time.monotonic() >= end:
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)

    def trouble_with(self, peer: int) -> Optional[RingError]:
        """Why a channel with this rank will never open, if there is a reason: what the group's
        communicator has noticed. An open channel notices by itself."""
        error = self._trouble(peer)
        return error if self.ended or isinstance(error, RingRemoteError) else None

    def nobody_left(self) -> bool:
        """Whether no other rank can send any more."""
        return all(channel.failure is not None for channel in self.receivers(None))

    def announce(self) -> None:
        """Complete the futures of what is over. Their callbacks send and receive, so no lock of a
        channel is held here."""
        while self.settled:
            try:
                message = self.settled.popleft()
            except IndexError:
                return  # another thread was faster
            message.complete()

    def carry(self) -> None:
        """Somebody has a future of a message: bring all on in the background."""
        self._carrier.wake()

    def all_channels(self) -> List[Any]:
        """Every channel that there is."""
        with self._making:
            return [*self._senders.values(), *self._receivers.values()]

    def close(self) -> None:
        """End the channels, when what was sent has arrived."""
        self.ended = True
        self._carrier.stop()
        for channel in self.all_channels():
            channel.close()
        self.announce()


class Carrier:
    """A thread that brings messages on while nobody waits for them."""

    def __init__(self, post: Messages) -> None:
        self._post = post
        self._event = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def wake(self) -> None:
        """There is something to bring on."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="ringcomm messages", daemon=True
            )
            self._thread.start()
        if not self._event.is_set():
            self._event.set()

    def stop(self) -> None:
        """End the thread."""
        self._event.set()

    def _serve(self) -> None:
        while not self._post.ended:
            self._event.wait()
            idle = 0
            while idle < 16 and not self._post.ended:
                # First a pause: whoever waits for its message at once is faster by itself.
                time.sleep(LONGEST)
                busy = [channel.progress(0) for channel in self._post.all_channels()]
                idle = 0 if any(busy) else idle + 1
            self._event.clear()
            if self._post.wanted or any(channel.busy() for channel in self._post.all_channels()):
                self._event.set()
