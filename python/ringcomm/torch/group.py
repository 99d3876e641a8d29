"""The two shapes in which torch takes a backend, and which of them it gets.

`Group` is a whole ProcessGroup: calls from Python reach it with nothing between, and its works are
the caller's own. `Inner` is a Backend, for one device of a group that torch makes:
`cpu:gloo,cuda:ringcomm`. Where torch looks for the Backend of a `Group`, it finds an `Inner` on the
same comm streams.
"""

from __future__ import annotations

import sys
import warnings
from datetime import timedelta
from types import FrameType
from typing import Any, List, Optional

import torch
from torch.distributed import distributed_c10d as dist
from torch._C._distributed_c10d import Backend as TorchBackend
from torch._C._distributed_c10d import PrefixStore, ProcessGroup

from .core import First
from .dispatched import dispatches
from .comm_stream import check_process
from .meet import Parent
from .membership import ABORT, Membership
from .sealing import group_of_all
from . import shrunk

DEVICES = ["cpu", "cuda"]


class _Common(Membership):
    """What both shapes answer. torch's own properties would ask Python again, for ever."""

    supports_splitting = property(lambda self: True)
    supports_coalescing = property(lambda self: False)
    supports_shrinking = property(lambda self: True)
    supports_reconfigure = property(lambda self: False)
    supports_window = property(lambda self: False)
    supports_abort_hooks = property(lambda self: True)
    _supports_time_estimate = property(lambda self: False)

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Whether tensors are to be allocated by the backend."""
        return False

    @property
    def options(self) -> Any:
        """c10d's options of this backend."""
        made = TorchBackend.Options("ringcomm", self._timeout)
        return made

    def name(self) -> str:
        """`ringcomm`."""
        return "ringcomm"

    def set_timeout(self, timeout: timedelta) -> None:
        """The deadline of what is made from now on: comm streams, barriers, messages."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _wait_for_pending_works(self) -> None:
        return None

    def eager_connect_single_device(self, device: Any) -> None:
        """Nothing to do: ranks meet when the group is made."""

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that did not come."""
        check_process(self._process, self._rank)
        limit = getattr(timeout, "timeout", timeout)
        limit = self._timeout if limit is None else limit
        self._monitored.meet(limit, wait_all_ranks)


class Inner(_Common, TorchBackend):
    """ringcomm as the Backend of one device, or of all."""

    #: Whether it is shown by a whole group.
    _whole = False
    #: For torch, once it has been made by shrinking: its group, and what the ranks are called.
    _whole_group: Optional["Group"] = None
    _global_ranks: List[int] = []

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, first: First = None
    ) -> None:
        TorchBackend.__init__(self, rank, size)
        self._set_up(store, rank, size, timeout, first)

    @classmethod
    def of(cls, group: "Group") -> "Inner":
        """The Backend that a group shows, on the group's own comm streams."""
        made = cls.__new__(cls)
        TorchBackend.__init__(made, group.rank(), group.size())
        made.__dict__ = group.__dict__
        return made

    def split(self, store: Any, ranks: List[int], options: Any) -> Optional["Inner"]:
        """The Backend of some of the ranks; for a rank that is not among them, none."""
        if self._rank not in ranks:
            return None
        place, parent = PrefixStore("split", store), self._parent_of(ranks)
        number = ranks.index(self._rank)
        return Inner(place, number, len(ranks), self._timeout, parent)

    def shrink(self, ranks_to_exclude: List[int], flags: int = 0, options: Any = None) -> "Inner":
        """The Backend of the other ranks, which call this; those that are left out do not."""
        check_process(self._process, self._rank)
        limit: timedelta = self._timeout if options is None else options._timeout
        kept = shrunk.global_ranks(self, ranks_to_exclude)
        communicator = self._without(ranks_to_exclude, bool(flags & ABORT), limit)
        place = self._store, communicator.rank, communicator.nranks, limit, communicator
        whole = Group(*place) if self._whole else None
        made = Inner(*place) if whole is None else whole._inner
        if self._of_all:
            made._is_world()
        made._some_died = True
        made._whole_group, made._global_ranks = whole, kept
        return made


# torch calls these with any of its overloads' arguments.
class Group(_Common, ProcessGroup):  # type: ignore[misc]
    """ringcomm as a whole ProcessGroup."""

    supports_reconfigure = property(lambda self: True)

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        first: First = None,
        leave_open: bool = False,
    ) -> None:
        try:
            ProcessGroup.__init__(self, store, rank, size)
        except TypeError:
            ProcessGroup.__init__(self, rank, size)
        self._set_up(store, rank, size, timeout, first, leave_open)
        if HAS_INNER:
            self._whole = True
            self._inner = Inner.of(self)
            for device in DEVICES:
                kind = ProcessGroup.BackendType.CUSTOM
                self._register_backend(torch.device(device), kind, self._inner)
            self._set_default_backend(ProcessGroup.BackendType.CUSTOM)

    def getRank(self) -> int:
        """This rank, for torch's C++ code."""
        return self._rank

    def getSize(self) -> int:
        """The number of ranks, for torch's C++ code."""
        return self._size

    def get_group_store(self) -> Any:
        """The store in which the ranks of the group met."""
        return self._store

    def split_group(
        self,
        new_ranks: List[int],
        timeout: Optional[timedelta] = None,
        opts: Any = None,
        group_name: Optional[str] = None,
        group_desc: Optional[str] = None,
        device_types: Any = None,
    ) -> Optional["Group"]:
        """A group of some of the ranks, in the order given; for a rank that is not among them,
        none."""
        if self._rank not in new_ranks:
            return None
        name: Any = group_name or f"{self.group_name}:split:{'_'.join(map(str, new_ranks))}"
        store = PrefixStore(f"split/{name}", self._store)
        number, parent = new_ranks.index(self._rank), self._parent_of(new_ranks)
        limit = timeout or self._timeout
        made = type(self)(store, number, len(new_ranks), limit, parent)
        made._set_group_name(name)
        made._set_group_desc(group_desc or f"{self.group_desc}:split")
        return made


class OldGroup(Group):
    """A Group for releases of torch in which a Backend cannot be made in Python.

    There the Backend keeps the group's names, so here the group does.
    """

    supports_shrinking = supports_reconfigure = property(lambda self: False)
    _name = _text = ""
    _device_types = property(lambda self: [torch.device(device) for device in DEVICES])

    def getGroupName(self) -> str:
        """The name that torch gave the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Torch names the group."""
        self._name = name

    def getGroupDesc(self) -> str:
        """What torch says that the group is for."""
        return self._text

    def setGroupDesc(self, text: str) -> None:
        """Torch says what the group is for."""
        self._text = text

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc  # type: ignore[assignment]
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def _get_backend(self, device: Any) -> "OldGroup":  # type: ignore[override]
        return self


def _has_inner() -> bool:
    """Whether this release of torch lets Python make a Backend."""
    try:
        TorchBackend.__init__(Inner.__new__(Inner), 0, 1)
    except TypeError:
        return False
    return True


HAS_INNER = _has_inner()
if HAS_INNER:
    # Without a Backend the operators have nobody to call.
    dispatches(Group)
    shrunk.prepare(Inner)


def create(options: Any, backend_options: Any = None) -> Any:
    """What torch calls for every group of backend `ringcomm`."""
    beside_others = _beside_others()
    if beside_others and not HAS_INNER:
        raise RuntimeError(
            f"torch {torch.__version__} cannot have ringcomm beside another backend in one group: "
            "give it a group of its own, or use torch 2.14 or later"
        )
    leave_open = getattr(options, "enable_reconfigure", False)
    if beside_others and leave_open:
        raise RuntimeError(
            "a group of several backends cannot change its ranks: give enable_reconfigure=True to "
            "a group of ringcomm alone"
        )
    # The group of all ranks is the one for which torch lists none.
    ranks: Any = getattr(options, "global_ranks_in_group", None)
    world = group_of_all(options.store) if ranks else None
    parent = None if world is None else Parent(world.communicator, ranks)
    place = options.store, options.group_rank, options.group_size, options.timeout, parent
    made: Any
    if beside_others:
        made = Inner(*place)
    else:
        kind = Group if HAS_INNER else OldGroup
        made = kind(*place, leave_open=leave_open)
    if ranks == []:
        made._is_world()
    return made


def _beside_others() -> bool:
    """Whether the group that torch makes has other backends as well.

    torch does not say; it is in the variables of its function that asks.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        config = frame.f_locals.get("backend_config")
        if config is not None and frame.f_globals.get("__name__") == dist.__name__:
            return len(set(config.get_device_backend_map().values())) > 1
        frame = frame.f_back
    warnings.warn(
        f"torch {torch.__version__} does not tell ringcomm whether its group has other backends: "
        "it takes all of it; for another backend beside it, make a group of that backend alone",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
