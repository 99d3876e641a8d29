"""The job that this process is a rank of: what Horovod keeps behind `init()`."""

from __future__ import annotations

import platform
from typing import Any, Dict, List, Optional

from .. import launch
from ..communicator import Communicator
from ..errors import RingArgumentError


class Job:
    """A communicator, and who is on which host."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        hosts: List[str] = comm.all_gather_object(platform.node())
        here = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
        self.local_rank, self.local_size = here.index(comm.rank), len(here)
        # As Horovod counts: the hosts that have a rank with this local number.
        numbers: Dict[str, int] = {}
        same: List[str] = []
        for host in hosts:
            numbers[host] = numbers.get(host, -1) + 1
            if numbers[host] == self.local_rank:
                same.append(host)
        self.cross_rank, self.cross_size = same.index(hosts[comm.rank]), len(same)
        self.homogeneous = len(set(numbers.values())) == 1
        #: What a framework keeps for as long as the job lasts.
        self.kept: Dict[str, Any] = {}


_job: Optional[Job] = None


def init(comm: Any = None) -> None:
    """Join the job that the launcher says; without a launcher it is a job of one rank.

    A second time it does nothing.
    """
    global _job
    if comm is not None:
        raise ValueError("init() takes no ranks here: the launcher says who belongs to the job")
    if _job is None:
        _job = Job(_launched())


def _launched() -> Communicator:
    try:
        launch.launcher()
    except RingArgumentError as error:
        # Variables that say half of it are a mistake, and said to be one.
        if "no launcher's variables are set" not in str(error):
            raise
        return launch.init(nranks=1)
    return launch.init()


def shutdown() -> None:
    """Leave the job; `init` may be called again."""
    global _job
    ended, _job = _job, None
    if ended is not None:
        for kept in ended.kept.values():
            kept.shutdown()
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


def missing(module: str, name: str) -> AttributeError:
    """What is said of a name of Horovod's that is not here."""
    return AttributeError(
        f"{module} has no {name}; what of Horovod is here, and what takes the place of the rest, "
        "is in docs/python/from-horovod.md"
    )
