"""How ranks that share a store of torch find each other: the unique id goes through the store.

So whatever torch meets by (env://, tcp://, file://, a store of the caller's) serves as it is, and
whoever can read that store can join: it is what the job trusts.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, List, Optional

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

#: Between two looks for a key, in seconds: the store has others to serve.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.2e-3, 20e-3


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


class Connection:
    """A connection to a store beside torch's own, for all groups of this process that use the store.

    Threads of all of them share it, so none waits in it for a key: they ask again and again. Their
    keys begin with the word of their group, which no other has.
    """

    def __init__(self, store: Any) -> None:
        #: Kept, so that no other store has its identity meanwhile.
        self._origin = store
        try:
            self._store = store.clone()
        except Exception:  # the store is asked again where it is used
            self._store = store

    def set(self, key: str, value: bytes) -> None:
        """As the store's."""
        self._store.set(key, value)

    def get(self, key: str) -> Any:
        """As the store's, of a key that is there."""
        return self._store.get(key)

    def check(self, keys: List[str]) -> bool:
        """As the store's."""
        return bool(self._store.check(keys))

    def delete_key(self, key: str) -> None:
        """As the store's."""
        self._store.delete_key(key)

    def wait(self, keys: List[str], timeout: timedelta) -> None:
        """As the store's, with the connection free for others meanwhile."""
        end, pause = time.monotonic() + timeout.total_seconds(), SHORTEST_PAUSE
        while not self._store.check(keys):
            left = end - time.monotonic()
            if left <= 0:
                raise RuntimeError(f"wait timeout after {timeout}, keys: {', '.join(keys)}")
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


class Part:
    """The keys of a connection's store that begin with a prefix."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection, self._prefix = connection, prefix

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def set(self, key: str, value: bytes) -> None:
        """As the store's."""
        self._connection.set(self._key(key), value)

    def get(self, key: str) -> Any:
        """As the store's, of a key that is there."""
        return self._connection.get(self._key(key))

    def check(self, keys: List[str]) -> bool:
        """As the store's."""
        return self._connection.check([self._key(key) for key in keys])

    def delete_key(self, key: str) -> None:
        """As the store's."""
        self._connection.delete_key(self._key(key))

    def wait(self, keys: List[str], timeout: timedelta) -> None:
        """As the connection's."""
        self._connection.wait([self._key(key) for key in keys], timeout)


#: The connections of this process, by the identity of the store. Groups keep them.
_connections: "weakref.WeakValueDictionary[int, Connection]" = weakref.WeakValueDictionary()
_connecting = threading.Lock()


def another(store: Any) -> Connection:
    """The process's further connection to the store behind this one, made when it is first wanted.

    A thread that waits for a key of torch's own connection keeps it from all others.
    """
    base = getattr(store, "_underlying_non_prefix_store", store)
    with _connecting:
        found = _connections.get(id(base))
        if found is None:
            found = _connections[id(base)] = Connection(base)
        return found


def _in_child() -> None:
    """A forked child makes connections of its own: the parent's are in use there."""
    global _connecting
    _connecting = threading.Lock()
    _connections.clear()


os.register_at_fork(after_in_child=_in_child)
