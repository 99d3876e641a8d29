"""What ranks have in common, and can go back to: `State`, and `ObjectState` of Python objects."""

from __future__ import annotations

import copy
import queue
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from .. import job as _job
from .. import objects
from ..exceptions import HostsUpdatedInterrupt
from . import members


class HostUpdateResult:
    """What has become of the job's hosts; numbers that are joined by `|`."""

    no_update, removed, added, mixed = 0, members.REMOVED, members.ADDED, 3


class State:
    """What a training is made of. `save` and `restore` are of this rank, `sync` is of all ranks.

    Args:
        bcast_object: gives every rank rank 0's object.
        get_rank: this rank's number.
    """

    def __init__(
        self,
        bcast_object: Optional[Callable[[Any], Any]] = None,
        get_rank: Optional[Callable[[], int]] = None,
    ) -> None:
        self._bcast_object = bcast_object or objects.broadcast_object
        self._rank = get_rank or _job.rank
        self._host_messages: "queue.Queue[Tuple[float, int]]" = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these when ranks have come or gone, before the state is synchronized."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Ranks have come or gone."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Have the next commit begin a reset; a program calls it that watches hosts by itself."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save, and look for ranks that want to come or are to go; every rank calls it."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise `HostsUpdatedInterrupt` on every rank, where ranks want to come or are to go."""
        before = latest = self._last_updated_timestamp
        update = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, one = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                update |= one
        if self._rank() == 0:
            update |= members.news()
        before, latest, update = self._bcast_object((before, latest, update))
        self._last_updated_timestamp = latest
        if latest > before or update:
            raise HostsUpdatedInterrupt(update == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep a copy of what there is now."""
        raise NotImplementedError(f"{type(self).__name__} has to define save()")

    def restore(self) -> None:
        """Go back to what was saved last."""
        raise NotImplementedError(f"{type(self).__name__} has to define restore()")

    def sync(self) -> None:
        """Give every rank what rank 0 has."""
        raise NotImplementedError(f"{type(self).__name__} has to define sync()")

    def reset(self) -> None:
        """Adapt to another number of ranks; a class that has to do so defines it."""


class ObjectState(State):
    """Python objects that ranks have in common: each keyword argument becomes an attribute.

    They are copied when they are saved and restored, so that they may be changed in place.
    """

    def __init__(
        self,
        bcast_object: Optional[Callable[[Any], Any]] = None,
        get_rank: Optional[Callable[[], int]] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state: Dict[str, Any] = copy.deepcopy(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Keep a copy of every object."""
        self._saved_state = copy.deepcopy(
            {name: getattr(self, name) for name in self._saved_state}
        )

    def restore(self) -> None:
        """Go back to the copies."""
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Give every rank rank 0's objects as they are now, and save them."""
        if not self._saved_state:
            return
        mine = {name: getattr(self, name) for name in self._saved_state}
        for name, value in self._bcast_object(mine).items():
            setattr(self, name, value)
        ObjectState.save(self)
