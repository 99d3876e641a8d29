"""What torch 2.6 leaves undone for a backend in Python, and later releases do.

It drops the Python half of a work. A work that is written in Python has two halves, each an object
of its own: Python's holds C++'s. From 2.7 on C++ that is handed a work holds the Python half, too;
2.6 does not, and once the last reference of Python's is gone it waits for a bare C++ work, which
nobody ends: so DistributedDataParallel did. Here a Python half that is about to go lives on while
somebody else holds the C++ half. How many do is in no interface, but in the work's memory;
`prepare` tries whether it is found there.

And it does not tell a group of its end: `destroy_process_group` knows NCCL's only.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from typing import Any, Deque

import torch
from torch._C._distributed_c10d import Work as TorchWork
from torch.distributed import distributed_c10d as dist

#: Whether this is such a release.
OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)

#: Where pybind11 has the address of the C++ half: behind what begins every object of Python's.
_ADDRESS = object.__basicsize__

#: Where c10::intrusive_ptr_target counts who holds it: behind the address of its virtual functions.
_COUNT = ctypes.sizeof(ctypes.c_void_p)

#: How many of the halves that live on are looked at when another work goes. More than one, or
#: there would be no end of them; not all, or hundreds that C++ holds would make each work slow.
_LOOKED_AT = 8

_living_on: Deque[Any] = deque()


def holders(work: Any) -> int:
    """How many hold the C++ half; one is the Python half."""
    half = ctypes.c_void_p.from_address(id(work) + _ADDRESS).value
    if half is None:
        return 0  # its making failed
    return ctypes.c_uint32.from_address(half + _COUNT).value


def outlive(work: Any) -> None:
    """Called when nothing in Python refers to the work any more: its half lives on while C++
    holds the other."""
    _look()
    if holders(work) > 1:
        _living_on.append(work)


def _look() -> None:
    """Let some of the halves go whose time has come."""
    # A work may go anywhere, here and on any thread: each step is one that nothing comes between.
    for _ in range(min(_LOOKED_AT, len(_living_on))):
        try:
            work = _living_on.popleft()
        except IndexError:
            return
        # Python calls back once only for each object. So while anything in Python refers to it
        # again, it stays: the two references are this function's and that of `getrefcount`.
        if holders(work) > 1 or sys.getrefcount(work) > 2:
            _living_on.append(work)


def prepare(group: type) -> None:
    """See to it that groups of this class are told of their end, and that works can live on."""
    _check()
    shut_down: Any = getattr(dist, "_shutdown_backend")

    def _shutdown_backend(ended: Any) -> None:
        if isinstance(ended, group):
            ended.shutdown()  # type: ignore[attr-defined]
        else:
            shut_down(ended)

    setattr(dist, "_shutdown_backend", _shutdown_backend)


def _check() -> None:
    class Tried(TorchWork):
        pass

    work = Tried()
    counts = [holders(work)]
    boxed = work.boxed()
    counts.append(holders(work))
    del boxed
    counts.append(holders(work))
    if counts != [1, 2, 1]:
        raise ImportError(
            f"ringcomm.torch does not know this build of PyTorch {torch.__version__}: use 2.7 or "
            "later"
        )
