"""The job that this process is a rank of: what Horovod keeps behind `init()`."""

from __future__ import annotations

import atexit
import os
import platform
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, cast

from .. import launch
from ..buffers import CPU
from ..communicator import Communicator
from ..config import Config
from ..errors import RingUsageError
from .coordinator import Coordinator
from .settings import from_environment
from .timeline import Timeline

if TYPE_CHECKING:
    from .process_sets import ProcessSet

# What the modules of all frameworks have.
__all__ = [
    "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled",
    "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size",
    "start_timeline", "stop_timeline",
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
        self.process = os.getpid()
        self.settings, self.timeline = from_environment(), Timeline()
        if self.settings.timeline is not None and comm.rank == 0:
            self.timeline.start(self.settings.timeline, self.settings.mark_cycles)
        #: Registered sets by their numbers, and how many there have been.
        self.process_sets: Dict[int, "ProcessSet"] = {}
        self.sets_made = 0
        everyone = range(comm.nranks)
        self.coordinator = Coordinator(comm, everyone, self.settings, self.timeline)


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

    A second time it does nothing. `process_sets` are sets to register, the same on every rank, or
    "dynamic", as they are in any case: sets can always be added later.
    """
    global _job
    if comm is not None and comm != []:
        raise ValueError("init() takes no ranks here: the launcher says who belongs to the job")
    if _job is not None:
        return
    _job = Job(_launched())
    if process_sets is None or process_sets == "dynamic":
        return
    from .process_sets import add_process_set

    for one in process_sets:
        add_process_set(one)


def _launched() -> Communicator:
    try:
        launch.launcher()
    except RingUsageError:
        # Variables that say half of it are a mistake, and another error says so.
        return launch.init(nranks=1, config=_ON_HOST)
    return launch.init(config=_ON_HOST)


@atexit.register
def shutdown() -> None:
    """Leave the job; what other ranks still submit then fails there. `init` may be called again."""
    global _job
    ended, _job = _job, None
    if ended is None or ended.process != os.getpid():
        return
    sets = [*ended.process_sets.values()]
    coordinators = [one._coordinator for one in sets if one._coordinator is not None]
    for one in sets:
        one.process_set_id = one._coordinator = None
    coordinators.append(ended.coordinator)
    for coordinator in coordinators:
        coordinator.begin_close()
    for coordinator in coordinators:
        coordinator.finish_close()
    ended.timeline.stop()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a timeline from now on; rank 0 does."""
    here = job()
    if here.comm.rank == 0:
        here.timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Complete the timeline's file."""
    job().timeline.stop()


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


def gloo_built() -> bool:
    """True: as with Horovod on gloo, ranks need no MPI."""
    return True


gloo_enabled = gloo_built
mpi_threads_supported = mpi_enabled = mpi_built = _built
nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _built


def missing(module: str, name: str) -> AttributeError:
    """What is said of a name of Horovod's that is not here."""
    return AttributeError(f"{module} has no {name}; {_PAGE}")
