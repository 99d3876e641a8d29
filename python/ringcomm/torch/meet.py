"""How ranks that share a store of torch find each other: the unique id goes through the store.

So whatever torch meets by (env://, tcp://, file://, a store of the caller's) serves as it is, and
whoever can read that store can join: it is what the job trusts.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Optional

from .._native import Result
from ..buffers import CPU
from ..communicator import Communicator, get_unique_id
from ..config import Config
from ..errors import RingError, RingTimeoutError
from .advice import advised

#: The longest deadline that is asked of the library, in milliseconds: 50 days, longer than jobs
#: run.
LONGEST_MS = 50 * 24 * 3600 * 1000
LONGEST = timedelta(milliseconds=LONGEST_MS)


def milliseconds(limit: Optional[timedelta]) -> int:
    """A deadline as the library takes it."""
    if limit is None:
        return LONGEST_MS
    return max(1, min(int(limit.total_seconds() * 1000), LONGEST_MS))


def join(
    store: Any,
    key: str,
    rank: int,
    size: int,
    timeout: Optional[timedelta],
    patience: Optional[timedelta] = None,
    device: int = CPU,
) -> Communicator:
    """The communicator of the ranks that meet under `key`, for tensors of this device; `patience`
    is its deadline afterwards."""
    if size == 1:
        unique_id = get_unique_id()
    elif rank == 0:
        unique_id = get_unique_id()
        store.set(key, unique_id)
    else:
        unique_id = _wait_for_id(store, key, rank, timeout)
    config = Config(
        timeout_ms=milliseconds(patience or timeout),
        init_timeout_ms=milliseconds(timeout),
        device=device,
    )
    try:
        return Communicator.init(size, rank, bytes(unique_id), config)
    except RingError as error:
        raise advised(error.result, error.message, rank) from None
    finally:
        if rank == 0 and size > 1:
            # All have read it, or it is of no use. Nobody is to find it under this key later on.
            forget(store, key)


def _wait_for_id(store: Any, key: str, rank: int, timeout: Optional[timedelta]) -> bytes:
    try:
        if timeout is not None:
            store.wait([key], timeout)
        unique_id: bytes = store.get(key)
        return unique_id
    except Exception as error:  # a store of the caller's has errors of its own
        raise RingTimeoutError(
            f"rank {rank} found no word of rank 0 in torch's store "
            f"({said(error)}): see whether rank 0 is there, and makes the same "
            "groups in the same order",
            Result.TIMEOUT,
            rank=rank,
            peer=0,
        ) from error


def said(error: BaseException) -> str:
    """What an error says, in a line; where it says nothing, what it is."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def forget(store: Any, key: str) -> None:
    """Delete a key that has served."""
    try:
        store.delete_key(key)
    except Exception:
        pass  # stores that cannot delete give every job a store of its own


def another(store: Any) -> Any:
    """The same store over a connection of its own, where torch can have that.

    A thread that waits for a key keeps the connection from all others.
    """
    try:
        return store.clone()
    except Exception:  # the store is asked again where it is used
        return store
