"""How a group's ranks change: abort hooks, shrinking, and torch's reconfigure.

`dist.shrink_group` asks the Backend for one without some ranks: the library's shrink makes it, so
it needs neither the store nor the ranks that are left out. `reconfigure` gives a group other ranks,
with new ones among them; these meet through the store.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from .._native import Result
from ..communicator import Communicator
from ..config import Config
from ..errors import RingError, RingUsageError
from .advice import advised
from .comm_stream import unmade
from .core import Core, First
from .meet import milliseconds
from .sealing import keep_for_new_groups
from .work import Done, Work

#: torch's `SHRINK_ABORT`: end first what is running.
ABORT = 1


class Unmade:
    """In the place of what is not there before `reconfigure`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __getattr__(self, name: str) -> NoReturn:
        raise unmade(self._rank)


class Membership(Core):
    """What a group does as its ranks change."""

    def _set_up(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        first: First = None,
        leave_open: bool = False,
    ) -> None:
        self._abort_hooks: Dict[int, Callable[[], None]] = {}
        #: The dead on whom the survivors have agreed, and the survivors' communicator.
        self._agreed: Optional[Tuple[List[int], Communicator]] = None
        #: Where ranks meet for a reconfiguration, and the numbers of those that were.
        self._meeting_place = store
        self._uuids: Set[int] = set()
        self._of_all = self._configured = False
        self._prepare(store, rank, size, timeout)
        self._draw_handle()
        if leave_open:
            self._leave_open()
        else:
            self._meet(first)

    def _leave_open(self) -> None:
        nobody: Any = Unmade(self._rank)
        self._cpu = self._monitored = nobody

    def _meet(self, first: First = None) -> None:
        super()._meet(first)
        self._configured = True
        self._draw_handle()
        if self._of_all:
            self._is_world()

    def _is_world(self) -> None:
        """The group has all ranks: further groups are sealed with its key."""
        self._of_all = True
        if self._key is not None:
            keep_for_new_groups(self._key)

    # Abort hooks

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Call `hook` before the group aborts."""
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Call the hook of this number no more."""
        if self._abort_hooks.pop(hook_id, None) is None:
            raise ValueError(f"no abort hook has the number {hook_id}: register_abort_hook first")

    def _run_abort_hooks(self) -> None:
        for hook in list(self._abort_hooks.values()):
            hook()

    def abort(self) -> None:
        """Run the abort hooks, then leave the group at once; what runs fails here and elsewhere."""
        try:
            if not self._ended:
                self._run_abort_hooks()
        finally:
            super().abort()

    def _end(self, how: str) -> None:
        super()._end(how)
        if self._agreed is not None:
            (_, communicator), self._agreed = self._agreed, None
            communicator.abort()

    # Shrinking

    def _dead(self) -> List[int]:
        """The ranks that have died, on which the others agree."""
        if self._agreed is None:
            made = self._smaller([], True, self._timeout)
            here = made.all_gather_object(self._rank)
            self._agreed = [rank for rank in range(self._size) if rank not in here], made
        return list(self._agreed[0])

    def _without(self, exclude: Sequence[int], abort: bool, limit: timedelta) -> Communicator:
        """A communicator of the other ranks."""
        gone = sorted(set(exclude))
        self._check_excluded(gone)
        agreed, self._agreed = self._agreed, None
        if agreed is not None and agreed[0] == gone and limit == self._timeout:
            return agreed[1]
        if agreed is not None:
            agreed[1].abort()
        return self._smaller(gone, abort, limit)

    def _check_excluded(self, gone: List[int]) -> None:
        if self._rank in gone:
            raise ValueError(
                f"rank {self._rank} is to be left out of the group, so it does not call shrink: "
                "let it end its part by destroy_process_group or abort"
            )
        if not gone or gone[0] < 0 or gone[-1] >= self._size:
            raise ValueError(
                f"ranks {gone} cannot be left out of a group of {self._size}: name some of ranks 0 "
                f"to {self._size - 1}; ringcomm.torch.dead_ranks() tells who has died"
            )

    def _smaller(self, exclude: List[int], abort: bool, limit: timedelta) -> Communicator:
        if abort:
            self._run_abort_hooks()
        most = milliseconds(limit)
        config = Config(timeout_ms=most, init_timeout_ms=most)
        try:
            return self._cpu.communicator.shrink(exclude, abort=abort, config=config)
        except RingError as error:
            raise advised(error.result, error.message, self._rank) from None

    # Reconfiguring

    def _draw_handle(self) -> None:
        # Of handles in a set, those come first that were in the group, in their old order.
        new = 0 if self._configured else 1
        self._handle = f"ringcomm:{new}:{self._rank:08}:{secrets.token_hex(8)}"

    def get_reconfigure_handle(self) -> str:
        """What stands for this rank in the next `reconfigure`."""
        return self._handle

    def reconfigure(self, options: Any) -> Work:
        """Make the group one of the ranks whose handles these are; what runs is aborted."""
        order = self._order(options.handles)
        if options.uuid in self._uuids:
            raise ValueError(
                f"the uuid {options.uuid} was used before: give every reconfigure() of a group "
                "another, the same on all of its ranks"
            )
        self._uuids.add(options.uuid)
        self._end("abort")
        place = PrefixStore(f"reconfigure/{options.uuid}", self._meeting_place)
        self._configured = False
        self._prepare(place, order.index(self._handle), len(order), self._timeout)
        self._leave_open()
        self._patience = options.timeout
        self._meet()
        return Done([])

    def _order(self, handles: Any) -> List[str]:
        order = list(handles) if isinstance(handles, list) else sorted(handles)
        if len(set(order)) != len(order):
            raise ValueError("reconfigure() got a handle twice: give one for each rank")
        if self._handle not in order:
            raise ValueError(
                "reconfigure() got no handle of this rank: give what get_reconfigure_handle() "
                "says now, since each reconfigure() changes it"
            )
        return order


def dead_ranks(group: Optional[dist.ProcessGroup] = None) -> List[int]:
    """The ranks of the group that have died, for `shrink_group`. Every survivor calls it, after a
    failure: they agree, and what runs in the group is aborted. None: the default group."""
    process_group: Any = dist.group.WORLD if group is None else group
    if process_group is None:
        raise ValueError("there is no process group: call init_process_group first")
    found = process_group
    if not isinstance(found, Membership):
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        try:
            found = process_group._get_backend(device)
        except RuntimeError:
            found = process_group._get_backend(torch.device("cpu"))
    if not isinstance(found, Membership):
        raise TypeError(
            f"dead_ranks() got a group of {process_group.name()}, which is not ringcomm's: give a "
            "group of backend ringcomm"
        )
    return found._dead()
