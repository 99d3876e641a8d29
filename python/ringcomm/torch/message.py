"""A message: the work of a send or a receive with a tag, which goes on when somebody looks."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, List, Optional

import torch
from torch._C._distributed_c10d import Work as TorchWork

from .._native import Result
from ..errors import RingError, RingTimeoutError
from .futures import Future
from .types import Staging, check
from .work import Work


class Message(Work):
    """A send or a receive that is on its way."""

    def __init__(
        self, post: Any, tensors: List[torch.Tensor], tag: int, peer: Optional[int]
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
                self._leave(late := self._late())
                if not self._over:
                    raise late
                break
            self.progress(left)
        if self._error is not None:
            raise self._error
        return True

    def _leave(self, late: RingError) -> None:
        """Nobody waits for the message any longer. One that is sent arrives all the same."""

    def _late(self) -> RingTimeoutError:
        who = "any rank" if self.peer is None else f"rank {self.peer}"
        return RingTimeoutError(
            f"timeout: rank {self._post.rank} waited for {who} in a message with tag {self.tag}: "
            "is there one on the other side? Where it is late, give wait() or the group a longer "
            "timeout",
            Result.TIMEOUT,
            rank=self._post.rank,
            peer=self.peer,
        )

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

    def __init__(self, post: Any, tensors: List[torch.Tensor], tag: int, peer: int) -> None:
        super().__init__(post, tensors, tag, peer)
        self.channel = post.sender(peer)
        self.places = [self._staging.source(check(tensor, "send")) for tensor in tensors]
        self.mark: Optional[int] = None
        self.channel.give(self)

    def progress(self, seconds: float) -> None:
        self._post.check_process()
        self.channel.progress(seconds, self)


class Receive(Message):
    """A message that is waited for."""

    def __init__(self, post: Any, tensor: torch.Tensor, tag: int, peer: Optional[int]) -> None:
        super().__init__(post, [tensor], tag, peer)
        self.place = self._staging.target(check(tensor, "recv"))

    def progress(self, seconds: float) -> None:
        self._post.check_process()
        self._post.progress(self, seconds)

    def _leave(self, late: RingError) -> None:
        self._post.withdraw(self, late)

    def source_rank(self) -> int:
        """Who sent it."""
        if self.peer is None:
            raise RuntimeError("the message has not come yet; wait for it first")
        return self.peer
