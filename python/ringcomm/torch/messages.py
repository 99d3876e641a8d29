"""Send and receive, with tags and from any source, over one channel for each ordered pair of ranks.

A channel is a communicator of two ranks, made when the first message goes that way, so that a
receive that waits keeps nothing else waiting. Every message is a header and a body. One that waits
for nobody is sent at once, by the thread that asks for it. Whoever waits for a message, or the
group's `Carrier` where nobody does, looks whether it came, finds the receive that it is for, and
receives the body into its tensor. A message that nobody asked for is put aside when the next one is
wanted.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from datetime import timedelta
from typing import Any, Callable, Deque, Dict, List, Optional

import torch

from .._native import Result
from ..communicator import Communicator
from ..errors import RingAbortedError, RingError, RingRemoteError, RingTimeoutError
from . import alive
from .channel import Sender
from .comm_stream import check_process, destroyed
from .message import Message, Receive, Send
from .receiver import Receiver
from .work import Work

#: Between two looks at several channels, in seconds: short at first, for messages that are under
#: way.
SHORTEST, LONGEST = 20e-6, 2e-3


class Messages:
    """The channels of one rank, and the receives that wait for a message."""

    def __init__(
        self,
        store: Any,
        communicator: Communicator,
        key: bytes,
        timeout: timedelta,
    ) -> None:
        self.store, self.communicator, self.key = store, communicator, key
        self.rank, self.size = communicator.rank, communicator.nranks
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
        self._process = os.getpid()
        _living.add(self)

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
        self._check_peer(peer, "send", "to send to")
        return Send(self, tensors, tag, peer)

    def receive(self, tensors: List[torch.Tensor], peer: Optional[int], tag: int) -> Work:
        """Receive one message; from any rank where `peer` is None."""
        if len(tensors) != 1:
            raise ValueError(
                f"recv: a receive has one tensor, and this has {len(tensors)}; give each a receive"
            )
        if peer is not None:
            self._check_peer(peer, "recv", "to receive from")
        wanted = Receive(self, tensors[0], tag, peer)
        channels = self.receivers(peer)
        with self.lock:
            self.wanted.append(wanted)
        for channel in channels:
            channel.look_aside()
        self.announce()
        self._carrier.wake()
        return wanted

    def check_process(self) -> None:
        """Refuse what a forked child asks of its parent's messages."""
        check_process(self._process, self.rank)

    def _check_peer(self, peer: int, call: str, what: str) -> None:
        if not 0 <= peer < self.size:
            raise ValueError(
                f"{call}: there is no rank {peer} {what}; give one from 0 to {self.size - 1}"
            )

    def withdraw(self, wanted: Receive, error: RingError) -> None:
        """A receive has waited long enough: what comes with its tag is the next one's. Where its
        message has begun to come, it keeps that."""
        with self.lock:
            if wanted not in self.wanted:
                return
            self.wanted.remove(wanted)
        wanted.settle(error)
        self.announce()

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
        return destroyed(self.rank) if self.ended else alive.trouble_with(self.communicator, peer)

    def gone(self, peer: int) -> Optional[RingError]:
        """Why this rank receives no more, if there is a reason; costs more than `trouble_with`."""
        found = alive.trouble_with(self.communicator, peer)
        found = found or alive.departure_of(self.communicator, peer)
        if found is None and self._ends(peer):
            found = RingRemoteError(
                f"rank {peer} ends the group, and has not received what rank {self.rank} sent: "
                "receive it there before that",
                Result.REMOTE_ERROR,
                rank=self.rank,
                peer=peer,
            )
        return found

    def _ends(self, peer: int) -> bool:
        try:
            return bool(self.store.check([f"ends/{peer}"]))
        except Exception:
            return False  # the store is gone; the communicator knows who else is

    def late(self, peer: int) -> RingError:
        """The error of a message that is not received before the deadline."""
        return RingTimeoutError(
            f"timeout: rank {self.rank} ended the group and waited {self.seconds:.0f} s for rank "
            f"{peer} to receive what it was sent: receive it there, or end the group with abort()",
            Result.TIMEOUT,
            rank=self.rank,
            peer=peer,
        )

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
        self._stop()
        with self._making:
            senders = list(self._senders.values())
        if any(sender.busy() for sender in senders):
            # Others that wait here as well learn that nothing is received any more.
            try:
                self.store.set(f"ends/{self.rank}", b"")
            except Exception:
                pass  # the store is gone
        deadline = time.monotonic() + self.seconds
        for sender in senders:
            sender.close(deadline)
        self._settle_all(destroyed(self.rank))

    def abort(self) -> None:
        """End the channels at once; what has not arrived fails."""
        self._stop()
        text = f"the process group of rank {self.rank} was aborted; make another to go on"
        self._settle_all(RingAbortedError(text, Result.ABORTED, rank=self.rank))

    def end_with_program(self, end: Callable[["Messages"], None]) -> None:
        """End what the program has left, unless this is a copy of it that it has forked."""
        if not self.ended and self._process == os.getpid():
            end(self)

    def _stop(self) -> None:
        self.ended = True
        self._carrier.stop()

    def _settle_all(self, error: RingError) -> None:
        """Nothing is sent or received any more."""
        for channel in self.all_channels():
            channel.abort(error)
        with self.lock:
            over = list(self.wanted)
            self.wanted.clear()
        for wanted in over:
            wanted.settle(error)
        self.announce()


#: What the end of the program has to end.
_living: "weakref.WeakSet[Messages]" = weakref.WeakSet()


# Registered after the one of `communicator`, and so called before it: that ends the communicators
# by which what was sent still has to arrive.
@atexit.register
def _end_all() -> None:
    """As at the end of each group; after an exception nothing is waited for."""
    failed = getattr(sys, "last_value", None) is not None
    for messages in list(_living):
        try:
            messages.end_with_program(Messages.abort if failed else Messages.close)
        except RingError:
            pass


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
