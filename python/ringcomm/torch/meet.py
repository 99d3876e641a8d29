"""How ranks that share a store of torch find each other: the unique id goes through the store.

So whatever torch meets by (env://, tcp://, file://, a store of the caller's) serves as it is. The id
is sealed there (`sealing`).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, List, NamedTuple, Optional, Sequence

from .._native import Result
from ..buffers import CPU
from ..communicator import Communicator, get_unique_id
from ..config import Config
from ..errors import RingError, RingTimeoutError, RingUsageError
from .advice import advised
from .sealing import (
    NONCE_BYTES,
    PUBLIC_BYTES,
    Exchange,
    key_for_first_meeting,
    nonce,
    seal,
    unseal,
)

#: The longest deadline that is asked of the library, in milliseconds: 50 days, longer than jobs
#: run.
LONGEST_MS = 50 * 24 * 3600 * 1000

#: Between two looks for a key, in seconds: the store has others to serve.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.2e-3, 20e-3


def milliseconds(limit: Optional[timedelta]) -> int:
    """A deadline as the library takes it."""
    if limit is None:
        return LONGEST_MS
    return max(1, min(int(limit.total_seconds() * 1000), LONGEST_MS))


class Parent(NamedTuple):
    """A communicator that has the ranks of a new one, and their numbers there."""

    communicator: Communicator
    ranks: Sequence[int]

    def unique_id(self) -> bytes:
        """An id for the new one: without the network, where these ranks share a host."""
        try:
            return self.communicator.get_unique_id(self.ranks)
        except RingError:  # a group may outlive the group that it is made of
            return get_unique_id()


def join_first(
    store: Any,
    key: str,
    rank: int,
    size: int,
    timeout: Optional[timedelta],
    parent: Optional[Parent] = None,
    patience: Optional[timedelta] = None,
) -> Communicator:
    """The first communicator of a group's ranks. Where they share no key yet, they exchange some
    through the store. They wait for each other until the group's deadline, or so long."""
    shared, limit = key_for_first_meeting(store), patience or timeout
    if size == 1 or shared is not None:
        place = store, key, rank, size, shared or b"", timeout
        return join(*place, parent=parent, patience=patience)
    if rank > 0:
        return _init(_ask(store, key, rank, limit), rank, size, timeout, CPU, patience)
    answers = [f"{key}/answer/{other}" for other in range(1, size)]
    try:
        return _init(_serve(store, key, answers, limit), rank, size, timeout, CPU, patience)
    finally:
        # Before this rank says anything to the others: who goes on finds no old answer.
        for answer in answers:
            forget(store, answer)


def join(
    store: Any,
    key: str,
    rank: int,
    size: int,
    shared: bytes,
    timeout: Optional[timedelta],
    device: int = CPU,
    parent: Optional[Parent] = None,
    patience: Optional[timedelta] = None,
) -> Communicator:
    """The communicator of the ranks that meet under `key`, for tensors of this device; `shared` is
    the key of their group."""
    if rank == 0:
        unique_id = get_unique_id() if parent is None else parent.unique_id()
        if size > 1:
            store.set(key, seal(shared, key, unique_id))
    else:
        found = unseal(shared, key, _wait_for(store, key, rank, patience or timeout))
        if found is None:
            raise _other_secret(rank)
        unique_id = found
    try:
        return _init(unique_id, rank, size, timeout, device, patience)
    finally:
        if rank == 0 and size > 1:
            # All have read it, or it is of no use. Nobody is to find it under this key later on.
            forget(store, key)


def _init(
    unique_id: bytes,
    rank: int,
    size: int,
    timeout: Optional[timedelta],
    device: int,
    patience: Optional[timedelta] = None,
) -> Communicator:
    config = Config(
        timeout_ms=milliseconds(timeout),
        init_timeout_ms=milliseconds(patience or timeout),
        device=device,
    )
    try:
        return Communicator.init(size, rank, bytes(unique_id), config)
    except RingError as error:
        raise advised(error.result, error.message, rank) from None


def _serve(store: Any, key: str, answers: List[str], timeout: Optional[timedelta]) -> bytes:
    """Rank 0's part: for every other rank the id, sealed with the key of its exchange."""
    unique_id, own = get_unique_id(), Exchange.of_process()
    asks = [f"{key}/ask/{other}" for other in range(1, len(answers) + 1)]
    _wait_for_all(store, asks, timeout)
    for ask, answer in zip(asks, answers):
        asked, drawn = bytes(store.get(ask)), nonce()
        shared = own.key(asked[:PUBLIC_BYTES], asked[PUBLIC_BYTES:], drawn)
        if shared is None:
            raise _other_secret(0)
        store.set(answer, own.public + drawn + seal(shared, answer, unique_id))
    return unique_id


def _ask(store: Any, key: str, rank: int, timeout: Optional[timedelta]) -> bytes:
    """The part of any other rank. What it has asked is gone before the ranks have met."""
    own, drawn = Exchange.of_process(), nonce()
    ask, answer = f"{key}/ask/{rank}", f"{key}/answer/{rank}"
    store.set(ask, own.public + drawn)
    try:
        told = _wait_for(store, answer, rank, timeout)
    finally:
        forget(store, ask)
    theirs, sealed = told[PUBLIC_BYTES:][:NONCE_BYTES], told[PUBLIC_BYTES + NONCE_BYTES :]
    shared = own.key(told[:PUBLIC_BYTES], drawn, theirs)
    found = None if shared is None else unseal(shared, answer, sealed)
    if found is None:
        raise _other_secret(rank)
    return found


def _other_secret(rank: int) -> RingUsageError:
    return RingUsageError(
        f"rank {rank} cannot open what it found in torch's store: give every rank of the job the "
        "same RINGCOMM_SECRET, or none; where they have the same, somebody else has written there",
        Result.INVALID_USAGE,
        rank=rank,
    )


#: What keeps ranks from finding each other's word.
_HINT = (
    "is there, makes the same groups in the same order, and has RINGCOMM_SECRET set where the others "
    "have; or give the group a longer timeout in init_process_group"
)


def _wait_for(store: Any, key: str, rank: int, timeout: Optional[timedelta]) -> bytes:
    try:
        if timeout is not None:
            store.wait([key], timeout)
        return bytes(store.get(key))
    except Exception as error:  # a store of the caller's has errors of its own
        raise RingTimeoutError(
            f"rank {rank} found no word of rank 0 in torch's store "
            f"({said(error)}): see whether rank 0 {_HINT}",
            Result.TIMEOUT,
            rank=rank,
            peer=0,
        ) from error


def _wait_for_all(store: Any, asks: List[str], timeout: Optional[timedelta]) -> None:
    """Until every other rank has asked rank 0."""
    try:
        if timeout is not None:
            store.wait(asks, timeout)
    except Exception as error:  # a store of the caller's has errors of its own
        missing = [other for other, ask in enumerate(asks, 1) if not store.check([ask])]
        if not missing:
            raise
        size = len(asks) + 1
        ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing[:8]))}"
        ranks += f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise RingTimeoutError(
            f"only {size - len(missing)} of {size} ranks came: rank 0 found no word of {ranks} in "
            f"torch's store ({said(error)}): see whether each {_HINT}",
            Result.TIMEOUT,
            rank=0,
            peer=missing[0],
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

    def __init__(self, store: Any, in_doubt: bool) -> None:
        #: Kept, so that no other store has its identity meanwhile.
        self._origin = store
        try:
            if in_doubt:
                # A connection that is there knows at once; another is tried until a deadline.
                store.check(["ringcomm"])
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


def another(store: Any, in_doubt: bool = False) -> Connection:
    """The process's further connection to the store behind this one, made when it is first wanted.

    A thread that waits for a key of torch's own connection keeps it from all others. `in_doubt`: the
    store's host may have died.
    """
    base = getattr(store, "_underlying_non_prefix_store", store)
    with _connecting:
        found = _connections.get(id(base))
        if found is None:
            found = _connections[id(base)] = Connection(base, in_doubt)
        return found


def _in_child() -> None:
    """A forked child makes connections of its own: the parent's are in use there."""
    global _connecting
    _connecting = threading.Lock()
    _connections.clear()


os.register_at_fork(after_in_child=_in_child)
