"""`Communicator`: one rank's end of a communicator, from its making to its end."""

from __future__ import annotations

import atexit
import ctypes
import json
import sys
import threading
import weakref
from dataclasses import replace
from types import TracebackType
from typing import Any, Dict, List, Optional, Sequence, Type

from . import _native, groups, interrupts
from ._native import Collective, DataType, ReduceOp, Result, check, lib
from .buffers import CPU
from .collectives import wrong
from .config import Config, Explanation, pointer
from .errors import RingError, RingUsageError
from .integers import RANK, SIZE_MOST, integer, operation
from .memory import PreMulSum, Registration
from .objects import Objects
from .streams import Handle, Stream


#: What to give instead of an integer that cannot be one of these.
_RANKS = "how many ranks there are"
_DEVICE = "the number of a CUDA device, or -1 for the CPU"
_COLOR = "a number from 0 to 2147483647, the same to those who belong together, or None"
_KEY = "a number from -2147483648 to 2147483647, in whose order the ranks will be"


class Communicator(Objects):
    """One rank's end of a communicator.

    Made by `ringcomm.init()`, which finds the launcher; by `Communicator.init`, from a unique id;
    or by `Communicator.all`, for many ranks in one process. A context manager: leaving it destroys
    the communicator, leaving it by an exception aborts it, so that the other ranks learn of it at
    once.
    """

    def __init__(self, handle: int) -> None:
        """Take over a `ringComm_t`; programs use `ringcomm.init`, `init` or `all`."""
        self._handle: Optional[int] = handle
        self._boxed: Optional[ctypes.c_void_p] = ctypes.c_void_p(handle)
        interrupts.watch(self)
        number = ctypes.c_int()
        check(lib.ringCommUserRank(handle, ctypes.byref(number)))
        self._rank = number.value
        check(lib.ringCommCount(handle, ctypes.byref(number)))
        self._nranks = number.value
        check(lib.ringCommCuDevice(handle, ctypes.byref(number)))
        self._device = number.value
        self._stream: Optional[Stream] = None
        self._behind: Optional[Handle] = None
        #: The buffers that the library was told about, by its handles.
        self._registered: Dict[Optional[int], Any] = {}
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _destroy_quietly, handle)
        self._end.atexit = False  # type: ignore[misc,unused-ignore]
        _living.add(self)

    @classmethod
    def init(
        cls, nranks: int, rank: int, unique_id: bytes, config: Optional[Config] = None
    ) -> "Communicator":
        """Join `nranks` ranks as rank `rank`; returns when all have come.

        `unique_id` is what `ringcomm.get_unique_id()` gave on one rank.
        """
        made = _place()
        nranks, rank = integer(nranks, "nranks", _RANKS), integer(rank, "rank", RANK)
        native = _native.unique_id_of(unique_id)
        check(
            lib.ringCommInitRankConfig(ctypes.byref(made), nranks, native, rank, pointer(config)),
            rank,
        )
        return cls(made.value or 0)

    @classmethod
    def from_url(
        cls,
        url: Optional[str] = None,
        nranks: int = -1,
        rank: int = -1,
        config: Optional[Config] = None,
    ) -> "Communicator":
        """Join the ranks that meet at `url`; None: where the launcher says. As `ringcomm.init`."""
        made = _place()
        nranks, rank = integer(nranks, "nranks", _RANKS), integer(rank, "rank", RANK)
        text = None if url is None else url.encode()
        check(lib.ringCommInitUrl(ctypes.byref(made), text, nranks, rank, pointer(config)))
        return cls(made.value or 0)

    @classmethod
    def all(
        cls,
        nranks: int,
        devices: Optional[Sequence[int]] = None,
        config: Optional[Config] = None,
    ) -> List["Communicator"]:
        """A communicator whose ranks are all in this process: every rank's end, for a thread each.

        `devices` names the device of each rank; -1 is the CPU. Where it is None all are on the
        config's device, or else on the CPU.
        """
        nranks = integer(nranks, "nranks", _RANKS)
        if devices is not None:
            if len(devices) != nranks:
                raise wrong(f"{len(devices)} devices for {nranks} ranks; give one for each")
            devices = [integer(device, "a device", _DEVICE) for device in devices]
        _place()
        made = (ctypes.c_void_p * max(nranks, 1))()
        if config is None:
            listed = None if devices is None else (ctypes.c_int * nranks)(*devices)
            check(lib.ringCommInitAll(made, nranks, listed))
            return [cls(handle or 0) for handle in made]
        if devices is None:
            devices = [CPU if config.device is None else config.device] * nranks
        native = _native.unique_id_of(get_unique_id())
        # A setting that is refused here must not leave this thread's group open.
        settings = [pointer(replace(config, device=device)) for device in devices]
        check(lib.ringGroupStart())
        for rank, setting in enumerate(settings):
            place = ctypes.cast(
                ctypes.byref(made, rank * ctypes.sizeof(ctypes.c_void_p)), _native.OUT
            )
            # A call that is refused makes the whole group fail.
            lib.ringCommInitRankConfig(place, nranks, native, rank, setting)
        check(lib.ringGroupEnd())
        return [cls(handle or 0) for handle in made]

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def nranks(self) -> int:
        """The number of ranks."""
        return self._nranks

    @property
    def size(self) -> int:
        """The number of ranks, under mpi4py's name."""
        return self._nranks

    @property
    def device(self) -> int:
        """The CUDA device whose memory this rank's calls take beside the host's; -1: none."""
        return self._device

    @property
    def handle(self) -> Optional[int]:
        """The library's `ringComm_t`, as a number; None once destroyed or aborted."""
        return self._handle

    def split(
        self, color: Optional[int], key: int = 0, config: Optional[Config] = None
    ) -> Optional["Communicator"]:
        """The ranks that give the same `color` form a new communicator, ordered by `key`, then
        rank.

        Every rank calls it. A rank whose color is None joins none, and gets None.
        """
        self._catch_up()
        made = _place()
        number = _native.SPLIT_NOCOLOR if color is None else integer(color, "color", _COLOR)
        key = integer(key, "key", _KEY)
        self._check(
            lib.ringCommSplit(self._handle, number, key, ctypes.byref(made), pointer(config))
        )
        return None if number == _native.SPLIT_NOCOLOR else type(self)(made.value or 0)

    def shrink(
        self, exclude: Sequence[int] = (), *, abort: bool = False, config: Optional[Config] = None
    ) -> "Communicator":
        """A communicator of the ranks that are left, in their old order.

        Without `exclude` the survivors agree on who is dead, up to 4,096 ranks. Where a network
        comes apart both sides may do so: look at the new `size` before you write a checkpoint.
        `abort` aborts first what is running, as after a failure.
        """
        if not abort:
            self._catch_up()
        made = _place()
        numbers = [integer(rank, "a rank to exclude", RANK) for rank in exclude]
        ranks = (ctypes.c_int * max(len(numbers), 1))(*numbers)
        flags = _native.SHRINK_ABORT if abort else _native.SHRINK_DEFAULT
        self._check(
            lib.ringCommShrink(
                self._handle, ranks, len(numbers), ctypes.byref(made), pointer(config), flags
            )
        )
        return type(self)(made.value or 0)

    def get_unique_id(self, ranks: Sequence[int]) -> bytes:
        """As `ringcomm.get_unique_id()`, for a new communicator of some ranks of this one.

        Ranks that share a host meet without the network then, which takes a fraction of the time.
        """
        native = _native.UniqueId()
        numbers = [integer(rank, "a rank", RANK) for rank in ranks]
        listed = (ctypes.c_int * max(len(numbers), 1))(*numbers)
        self._check(
            lib.ringCommGetUniqueId(self._handle, listed, len(numbers), ctypes.byref(native))
        )
        return bytes(native.internal)

    def finalize(self) -> None:
        """Wait for every call that was started on this rank, then say goodbye to the others."""
        self._check(lib.ringCommFinalize(self._handle))

    def destroy(self) -> None:
        """End this rank's part. What is queued is done first. A second time it does nothing."""
        handle, self._handle, self._boxed = self._handle, None, None
        if handle is None:
            return
        self._end.detach()
        result = lib.ringCommDestroy(handle)
        text = _native.last_error() if result else ""
        self._end_stream()
        self._registered.clear()
        if result:
            raise _native.failure(result, text, self._rank)

    close = destroy

    def abort(self) -> None:
        """Make every call that runs here fail soon, tell the others, and end this rank's part."""
        handle, self._handle, self._boxed = self._handle, None, None
        if handle is None:
            return
        self._end.detach()
        check(lib.ringCommAbort(handle), self._rank)
        self._end_stream()
        self._registered.clear()

    def error(self) -> Optional[RingError]:
        """The error that broke the communicator on this rank; None while it works."""
        result = ctypes.c_int()
        self._check(lib.ringCommGetAsyncError(self._handle, ctypes.byref(result)))
        if not result.value:
            return None
        return _native.failure(result.value, _native.last_error(self._handle), self._rank)

    def explain(
        self,
        collective: Collective,
        count: int,
        datatype: DataType = DataType.FLOAT32,
        op: int = ReduceOp.SUM,
        root: int = 0,
    ) -> Explanation:
        """How a collective of `count` elements would run: algorithm, transport, time."""
        native = _native.new_explain()
        kind = integer(collective, "collective", "one of ringcomm.Collective")
        count = integer(count, "count", "a number of elements", 0, SIZE_MOST)
        element = integer(datatype, "datatype", "one of ringcomm.DataType")
        op, root = operation(op), integer(root, "root", RANK)
        self._check(
            lib.ringCommExplain(self._handle, kind, count, element, op, root, ctypes.byref(native))
        )
        return Explanation.of(native)

    def pre_mul_sum(self, factor: Any, datatype: DataType = DataType.FLOAT32) -> PreMulSum:
        """A reduction that multiplies this rank's input by `factor` before summing; pass it as
        `op`.

        `factor` is a number, or an array of one element. Each rank makes its own, and they may
        differ.
        """
        return PreMulSum(self, factor, datatype)

    def register(self, buffer: Any) -> Registration:
        """Tell the communicator about a buffer that is used again and again; never needed.

        The buffer is whole pages of private memory, as an anonymous `mmap.mmap` has; or use
        `Memory`. It stays alive until the registration is closed or the communicator ends.
        """
        return Registration(self, buffer)

    def dump(self) -> Dict[str, Any]:
        """The flight record: the last operations, and who waits for whom. Never waits."""
        found: Dict[str, Any] = json.loads(_native.text_of(lib.ringCommDump, self._handle))
        return found

    def trace(self) -> str:
        """The same operations as JSON trace events, for ui.perfetto.dev."""
        return _native.text_of(lib.ringCommTrace, self._handle)

    def _own_stream(self) -> Stream:
        with self._lock:
            if self._stream is None:
                self._stream = Stream()
            return self._stream

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except RingError:
                pass  # each call's own error is what its handle raises

    def _check(self, result: int) -> None:
        if result:
            raise _native.failure(result, _native.last_error(), self._rank)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if kind is None:
            self.destroy()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = "" if self._handle is not None else ", ended"
        return f"<ringcomm.Communicator rank {self._rank} of {self._nranks}{state}>"


def _place() -> ctypes.c_void_p:
    """Where the library writes a new communicator: at once, which it would not do in a group."""
    if groups.here.depth:
        raise RingUsageError(
            "communicators cannot be made inside ringcomm.group(): make them before it, those of "
            "one process together by Communicator.all, or in a thread for each rank",
            Result.INVALID_USAGE,
        )
    return ctypes.c_void_p()


def _destroy_quietly(handle: int) -> None:
    lib.ringCommDestroy(handle)


#: What the end of the program has to end.
_living: "weakref.WeakSet[Communicator]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Say goodbye to the other ranks; by an exception they are told at once, and nothing is waited
    for."""
    failed = getattr(sys, "last_value", None) is not None
    for comm in list(_living):
        try:
            comm.abort() if failed else comm.destroy()
        except RingError:
            pass


def get_unique_id() -> bytes:
    """128 bytes that lead the ranks of one new communicator together; they carry a secret."""
    native = _native.UniqueId()
    check(lib.ringGetUniqueId(ctypes.byref(native)))
    return bytes(native.internal)


def free_unique_id(unique_id: bytes) -> None:
    """Give up the sockets of an id that `get_unique_id` gave here and no rank will use."""
    check(lib.ringFreeUniqueId(_native.unique_id_of(unique_id)))
