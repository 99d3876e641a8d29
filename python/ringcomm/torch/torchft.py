"""ringcomm under torchft (https://github.com/pytorch/torchft), whose quorum says who is there.

    from torchft import Manager
    from ringcomm.torch.torchft import ProcessGroupRingcomm

    manager = Manager(pg=ProcessGroupRingcomm(), ...)

A group in place of torchft's own for gloo and NCCL, with tensors of the CPU and of CUDA devices. It
needs the package `torchft`, 0.2 or later.
"""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any, Optional

from torch._C._distributed_c10d import Work

from ..errors import RingError
from .group import Group

try:
    _torchft: Any = import_module("torchft.process_group")
except ImportError as error:
    raise ImportError(
        f"ringcomm.torch.torchft needs torchft, which cannot be imported here ({error}): "
        "pip install 'torchft>=0.2'"
    ) from error


class _Group(Group):
    """A group whose failures are the Manager's affair, and not `backward()`'s."""

    _raised_by_backward = False


class _Reported(Work):
    """A work of an all-reduce, whose future and whose group tell of a failure.

    `wait` does not: it returns False. torchft's Manager calls a step off by what the other two say,
    and its DistributedDataParallel takes no exception of `wait`, as NCCL's works raise none.
    """

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        try:
            return self._work.wait() if timeout is None else self._work.wait(timeout)
        except RingError:
            return False

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def get_future(self) -> Any:
        return self._work.get_future()

    def result(self) -> Any:
        return self._work.result()


#: How long a child process's group waits for the others, unless told: as torchft's own do.
_PATIENCE = timedelta(seconds=60)


class ProcessGroupRingcomm(_torchft.ProcessGroupWrapper):  # type: ignore[misc]
    """A group that torchft gives other ranks by `configure`.

    `timeout` is the deadline of meeting and of every operation. `wait` of an all-reduce raises
    nothing: look at its future, or at `errored()`, which Manager does before each step.
    """

    _pg: Optional[Group]

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Group:
        return _Group(store, rank, world_size, self._timeout)

    def allreduce(self, tensors: Any, opts: Any) -> Work:
        """Reduce over all ranks."""
        return _Reported(super().allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Work:
        """Reduce each tensor over all ranks."""
        return _Reported(super().allreduce_coalesced(tensors, opts))

    def getBackendName(self) -> str:
        """`torchft-ringcomm`."""
        return "torchft-ringcomm"

    def set_timeout(self, timeout: timedelta) -> None:
        """The deadline of the groups that `configure` makes from now on."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def errored(self) -> Optional[Exception]:
        """What broke the group, so that it has to be configured anew; None while it works."""
        group = self._pg
        if group is None:
            return None
        try:
            found: Optional[RingError] = group._cpu.communicator.error()
        except RingError as error:
            return error  # it has ended
        return found

    def shutdown(self) -> None:
        """Wait for what runs, then leave the group."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()


class ProcessGroupBabyRingcomm(_torchft.ProcessGroupBaby):  # type: ignore[misc]
    """The same in a child process, which can be killed whatever it does; tensors are shared."""

    @classmethod
    def _create_pg(cls, store: Any, rank: int, world_size: int) -> Group:
        return Group(store, rank, world_size, _PATIENCE)

    def getBackendName(self) -> str:
        """`torchft-baby-ringcomm`."""
        return "torchft-baby-ringcomm"
