"""A barrier through torch's store, which knows who is missing: no rank's library has to come for
that."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, List

from .._native import Result
from ..errors import RingTimeoutError
from .meet import forget

#: Between two looks into the store, in seconds: a look is an exchange with the store's host.
LOOK = 0.01


class MonitoredBarriers:
    """The barriers of one rank of a group. `prefix` is what their keys begin with."""

    def __init__(self, store: Any, prefix: str, rank: int, size: int) -> None:
        self._store, self._prefix = store, prefix
        self._rank, self._size = rank, size
        self._count = 0
        #: Rank 0's: keys of barriers that a rank may still be in. Who comes to the next is in none.
        self._leftover: List[str] = []

    def meet(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Return on every rank after all have come; else rank 0 names who did not, and the others
        see that."""
        self._count += 1
        end = time.monotonic() + timeout.total_seconds()
        if self._rank:
            self._store.set(self._key(self._rank), b"here")
            self._wait_for_rank_0(timeout, end)
            return
        absent = list(range(1, self._size))
        missing: List[int] = []
        if timeout.total_seconds() <= 0:
            self._say(b"failed", absent)
            raise RingTimeoutError(
                f"Rank 0 timed out in monitoredBarrier: its timeout of {timeout} leaves the "
                "others no time to come; give a longer one",
                Result.TIMEOUT,
                rank=0,
            )
        for peer in range(1, self._size):
            if _comes(self._store, self._key(peer), end):
                absent.remove(peer)
                forget(self._store, self._key(peer))
                continue
            missing.append(peer)
            if not wait_all_ranks:
                break
        if missing:
            self._say(b"failed", absent)
            names = ", ".join(map(str, missing))
            who = f"Ranks {names}" if wait_all_ranks else f"Rank {names}"
            raise RingTimeoutError(
                f"{who} failed to pass monitoredBarrier in "
                f"{int(timeout.total_seconds() * 1000)} ms: see what they do, or give a longer "
                "timeout",
                Result.TIMEOUT,
                rank=0,
                peer=missing[0],
                missing=missing,
            )
        while self._leftover:
            forget(self._store, self._leftover.pop())
        self._say(b"passed", absent)

    def _key(self, of: Any) -> str:
        return f"{self._prefix}/{self._count}/{of}"

    def _say(self, how: bytes, absent: List[int]) -> None:
        self._store.set(self._key("over"), how)
        self._leftover += [self._key(of) for of in ("over", *absent)]

    def _wait_for_rank_0(self, timeout: timedelta, end: float) -> None:
        # Rank 0 may wait as long as this one does before it says so.
        came = _comes(self._store, self._key("over"), end + 1)
        if came and self._store.get(self._key("over")) == b"passed":
            return
        text = (
            f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while "
            "waiting for send/recv from rank 0, which says which rank is at fault"
        )
        if not came:
            text = (
                f"Rank {self._rank} timed out in monitoredBarrier after {timeout}: rank 0 has not "
                f"said that all came; it is not there, or came later and still waits. {text}"
            )
        raise RingTimeoutError(text, Result.TIMEOUT, rank=self._rank, peer=0)


def _comes(store: Any, key: str, end: float) -> bool:
    while not store.check([key]):
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK)
    return True
