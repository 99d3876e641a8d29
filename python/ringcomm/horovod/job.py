"""The job that this process is a rank of: what Horovod keeps behind `init()`."""

from __future__ import annotations

import atexit
import logging
import os
import platform
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, cast

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

_log = logging.getLogger("ringcomm.horovod")

_PAGE = (
    "what of Horovod is here, and what takes the place of the rest, is in "
    "docs/python/from-horovod.md"
)


class Job:
    """A communicator, and who is on which host."""

    def __init__(self, comm: Communicator, timeline: Optional[Timeline] = None) -> None:
        self.comm = comm
        places: List[Tuple[str, Optional[int]]] = comm.all_gather_object(_place())
        hosts, order = [host for host, _ in places], _local_ranks(places)
        self.local_rank, self.local_size = order[comm.rank], hosts.count(hosts[comm.rank])
        # As Horovod counts: the hosts that have a rank with this local number.
        same = [host for host, local in zip(hosts, order) if local == self.local_rank]
        self.cross_rank, self.cross_size = same.index(hosts[comm.rank]), len(same)
        self.homogeneous = len({hosts.count(host) for host in hosts}) == 1
        self.process = os.getpid()
        self.settings, self.timeline = from_environment(), timeline or Timeline()
        if len(set(hosts)) > 1:
            self.settings = self.settings._replace(packed_bytes=PACKED_BETWEEN_HOSTS)
        if timeline is None and self.settings.timeline is not None and comm.rank == 0:
            self.timeline.start(self.settings.timeline, self.settings.mark_cycles)
        #: What the launcher calls the ranks, which is not their number where some have gone.
        self.slots: List[str] = []
        if os.environ.get("RINGCOMM_ELASTIC"):
            self.slots = comm.all_gather_object(os.environ.get("RINGCOMM_RANK", ""))
        #: Registered sets by their numbers, and how many there have been; and those of `init`.
        self.process_sets: Dict[int, "ProcessSet"] = {}
        self.sets_made = 0
        self.first_sets: List["ProcessSet"] = []
        everyone = range(comm.nranks)
        self.coordinator = Coordinator(comm, everyone, self.settings, self.timeline)

    def halt(self, broken: bool) -> None:
        """End the operations, on all ranks alike, and forget the process sets; the communicator
        stays. `broken`: the communicator is, so that nobody is told."""
        sets = [*self.process_sets.values()]
        own = [one._coordinator for one in sets if one._coordinator is not None]
        for one in sets:
            one.process_set_id = one._coordinator = None
        self.process_sets.clear()
        for coordinator in own:
            if broken:
                coordinator.comm.abort()
            coordinator.begin_close()
        self.coordinator.begin_close()
        self.coordinator.stop(broken)
        for coordinator in own:
            coordinator.stop(broken)
            coordinator.comm.destroy()

    def register(self, sets: Sequence["ProcessSet"], all_fit: bool) -> None:
        """Make the sets of `init`; unless all have to fit, those with ranks that there are not
        are left out."""
        from .process_sets import add_process_set

        self.first_sets = [*sets]
        for one in sets:
            if all_fit or max(one.ranks, default=0) < self.comm.nranks:
                add_process_set(one)
            else:
                _log.warning("%s is not there, as there are %d ranks", one, self.comm.nranks)


def _place() -> Tuple[str, Optional[int]]:
    """The host that this process is on, as the library tells hosts apart, and its place there.

    Machines of a cluster may have one name, and containers of a machine several.
    """
    local: Optional[int] = None
    if _is_newcomer():
        # The launcher's number of it may be beyond the ranks that the job began with.
        said = os.environ.get("RINGCOMM_LOCAL_RANK", "")
        local = int(said) if said.isdigit() else None
    else:
        try:
            number = launch.launcher().local_rank
            local = number if number >= 0 else None
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


#: A message between hosts takes longer than to copy so much.
PACKED_BETWEEN_HOSTS = 1 << 20
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
    comm = _launched()
    _job = Job(comm)
    _appear()
    if process_sets is not None and process_sets != "dynamic":
        from .process_sets import ProcessSet

        sets = [one if isinstance(one, ProcessSet) else ProcessSet(one) for one in process_sets]
        _job.register(sets, all_fit=not _is_newcomer())


def _is_newcomer() -> bool:
    from .elastic import meeting

    return meeting.is_newcomer()


def _appear() -> None:
    """Show newcomers of an elastic job that it has this rank."""
    from .elastic import meeting

    folder = meeting.here()
    if folder is not None:
        folder.be_rank()
        folder.begin()


def go_on(old: Job) -> None:
    """Have a new job in the place of `old`, whose operations have ended, of the ranks that its
    communicator now has."""
    global _job
    _job = Job(old.comm, old.timeline)
    _job.register(old.first_sets, all_fit=False)


def _launched() -> Communicator:
    if _is_newcomer():
        from .elastic import members

        return members.joined()
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
    if os.environ.get("RINGCOMM_ELASTIC"):
        from .elastic import meeting

        folder = meeting.here()
        if folder is not None:
            folder.leave()


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
