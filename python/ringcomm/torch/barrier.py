"""A barrier through torch's store, which knows who is missing: no rank's library has to come for
that."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, List

from ..errors import RingTimeoutError

#: Between two looks into the store, in seconds: a look is an exchange with the store's host.
LOOK = 0.01


def monitored_barrier(
    store: Any, number: int, rank: int, size: int, timeout: timedelta, wait_all_ranks: bool
) -> None:
    """Return on every rank after all have come; else rank 0 names who did not, and the others see
    that."""
    end = time.monotonic() + timeout.total_seconds()
    prefix = f"ringcomm/monitored/{number}"
    if rank:
        store.set(f"{prefix}/{rank}", b"here")
        _wait_for_rank_0(store, prefix, rank, timeout, end)
        return
    missing: List[int] = []
    if timeout.total_seconds() <= 0:
        store.set(f"{prefix}/over", b"failed")
        text = (
            f"Rank {rank} timed out in monitoredBarrier: its timeout of {timeout} leaves no time "
            f"to come"
        )
        raise RingTimeoutError(text, 8, rank=rank)
    for peer in range(1, size):
        came = _comes(store, f"{prefix}/{peer}", end)
        if not came:
            missing.append(peer)
            if not wait_all_ranks:
                break
    if missing:
        store.set(f"{prefix}/over", b"failed")
        who = (
            f"Rank {missing[0]}" if not wait_all_ranks else f"Ranks {', '.join(map(str, missing))}"
        )
        raise RingTimeoutError(
            f"{who} failed to pass monitoredBarrier in {int(timeout.total_seconds() * 1000)} ms",
            8,
            rank=rank,
            peer=missing[0],
            missing=missing,
        )
    store.set(f"{prefix}/over", b"passed")


def _wait_for_rank_0(store: Any, prefix: str, rank: int, timeout: timedelta, end: float) -> None:
    # Rank 0 may wait as long as this one does before it says so.
    came = _comes(store, f"{prefix}/over", end + 1)
    if came and store.get(f"{prefix}/over") == b"passed":
        return
    text = (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
        f"for rank 0, "
        "which says which rank is at fault"
    )
    if not came:
        text = (
            f"Rank {rank} timed out in monitoredBarrier after {timeout}: rank 0 did not come. "
            f"{text}"
        )
    raise RingTimeoutError(text, 8, rank=rank, peer=0)


def _comes(store: Any, key: str, end: float) -> bool:
    while not store.check([key]):
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK)
    return True
