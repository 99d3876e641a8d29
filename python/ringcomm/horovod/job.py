"""The job that this process is a rank of: what Horovod keeps behind `init()`."""

from __future__ import annotations

import functools
import inspect
import os
import platform
from typing import Any, Callable, Dict, List, Optional, Tuple, cast

from .. import launch
from ..buffers import CPU
from ..communicator import Communicator
from ..config import Config
from ..errors import RingUsageError

# What the modules of all frameworks have.
__all__ = [
    "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled",
    "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size",
]  # fmt: skip

_PAGE = (
    "what of Horovod is here, and what takes the place of the rest, is in "
    "docs/python/from-horovod.md"
)


class Job:
    """A communicator, and who is on which host."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        places: List[Tuple[str, Optional[int]]] = comm.all_gather_object(_place())
        hosts, order = [host for host, _ in places], _local_ranks(places)
        self.local_rank, self.local_size = order[comm.rank], hosts.count(hosts[comm.rank])
        # As Horovod counts: the hosts that have a rank with this local number.
        same = [host for host, local in zip(hosts, order) if local == self.local_rank]
        self.cross_rank, self.cross_size = same.index(hosts[comm.rank]), len(same)
        self.homogeneous = len({hosts.count(host) for host in hosts}) == 1
        #: What a framework has for as long as the job lasts, to be shut down with it.
        self.of_framework: Dict[str, Any] = {}


def _place() -> Tuple[str, Optional[int]]:
    """The host that this process is on, as the library tells hosts apart, and its place there.

    Machines of a cluster may have one name, and containers of a machine several.
    """
    local: Optional[int] = None
    try:
        said = launch.launcher().local_rank
        local = said if said >= 0 else None
    except RingUsageError:
        pass
    named = os.environ.get("RINGCOMM_HOSTID")
    if named:
        return f"named {named}", local
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read()} {os.readlink('/proc/self/ns/net')}", local
    except OSError:
        return platform.node(), local


def _local_ranks(places: List[Tuple[str, Optional[int]]]) -> List[int]:
    """Every rank's number on its host: the launcher's, unless its hosts are others than these."""
    found: List[int] = []
    for rank, (host, _) in enumerate(places):
        here = [local for other, local in places if other == host]
        if sorted(local for local in here if local is not None) == list(range(len(here))):
            found.append(cast(int, places[rank][1]))
        else:
            found.append(sum(other == host for other, _ in places[:rank]))
    return found


_job: Optional[Job] = None
#: Objects and arrays of the host are all that goes through it.
_ON_HOST = Config(device=CPU)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job that the launcher says; without a launcher it is a job of one rank.

    A second time it does nothing.
    """
    global _job
    if process_sets:
        raise ValueError(f"init() takes no process sets here; {_PAGE}")
    if comm is not None:
        raise ValueError("init() takes no ranks here: the launcher says who belongs to the job")
    if _job is None:
        _job = Job(_launched())


def _launched() -> Communicator:
    try:
        launch.launcher()
    except RingUsageError:
        # Variables that say half of it are a mistake, and another error says so.
        return launch.init(nranks=1, config=_ON_HOST)
    return launch.init(config=_ON_HOST)


def shutdown() -> None:
    """Leave the job; `init` may be called again."""
    global _job
    ended, _job = _job, None
    if ended is not None:
        for one in ended.of_framework.values():
            one.shutdown()
        ended.comm.destroy()


def is_initialized() -> bool:
    """Whether this process has joined a job."""
    return _job is not None


def job() -> Job:
    """The job; says what to do where there is none."""
    if _job is None:
        raise ValueError("ringcomm.horovod has not been initialized; call init() first")
    return _job


def rank() -> int:
    """This rank."""
    return job().comm.rank


def size() -> int:
    """The number of ranks."""
    return job().comm.nranks


def local_rank() -> int:
    """This rank among those of its host."""
    return job().local_rank


def local_size() -> int:
    """The number of ranks of this host."""
    return job().local_size


def cross_rank() -> int:
    """This host among those that have a rank with this local rank."""
    return job().cross_rank


def cross_size() -> int:
    """The number of hosts that have a rank with this local rank."""
    return job().cross_size


def is_homogeneous() -> bool:
    """Whether every host has as many ranks."""
    return job().homogeneous


def _built() -> bool:
    """False: what Horovod may be built with does not matter here."""
    return False


mpi_threads_supported = mpi_enabled = mpi_built = gloo_enabled = gloo_built = _built
nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _built


def without_process_sets(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which says of Horovod's `process_set` what to do instead."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        if "process_set" in named:
            raise ValueError(f"{function.__name__}() takes no process_set here; {_PAGE}")
        return function(*arguments, **named)

    return called


def refuse_process_sets(module: Dict[str, Any], names: List[str]) -> None:
    """Give the functions of these names in a module an answer to `process_set`."""
    for name in names:
        if inspect.isfunction(module[name]):
            module[name] = without_process_sets(module[name])


def missing(module: str, name: str) -> AttributeError:
    """What is said of a name of Horovod's that is not here."""
    return AttributeError(f"{module} has no {name}; {_PAGE}")
