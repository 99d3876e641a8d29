"""Horovod's process sets: some ranks of the job, with operations of their own."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Union

from . import job as _job
from .coordinator import Coordinator
from .requests import Request, Signature


class ProcessSet:
    """Some ranks of the job. `hvd.init(process_sets=...)` or `add_process_set` makes it usable."""

    def __init__(self, ranks: Sequence[int]) -> None:
        if not all(isinstance(rank, int) for rank in ranks):
            raise ValueError("a process set is made of ranks: of integers")
        self.ranks: List[int] = sorted(set(ranks))
        #: The set's number; None while it is not registered.
        self.process_set_id: Optional[int] = None
        self._coordinator: Optional[Coordinator] = None

    @property
    def coordinator(self) -> Coordinator:
        """What orders the operations of the set."""
        if self._coordinator is not None:
            return self._coordinator
        _job.job()
        if self.process_set_id is None:
            raise ValueError(f"{self} is not registered: give it to init() or add_process_set()")
        raise ValueError(f"rank {_job.rank()} is not in {self}")

    def size(self) -> int:
        """The number of its ranks."""
        if self.process_set_id is None:
            raise ValueError(f"{self} is not registered: give it to init() or add_process_set()")
        return len(self.ranks)

    def rank(self) -> int:
        """This rank's place in it."""
        return self.coordinator.rank

    def included(self) -> bool:
        """Whether this rank is in it."""
        self.size()
        return self._coordinator is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return self.process_set_id == other.process_set_id and self.ranks == other.ranks

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return "the set of all ranks" if self.process_set_id == 0 else f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _Global(ProcessSet):
    """All ranks of the job that there is at the time."""

    def __init__(self) -> None:
        self.process_set_id = 0

    @property
    def ranks(self) -> List[int]:  # type: ignore[override]
        return list(range(_job.size()))

    @property
    def coordinator(self) -> Coordinator:
        return _job.job().coordinator

    def size(self) -> int:
        return _job.size()

    def included(self) -> bool:
        return _job.is_initialized()


#: All ranks.
global_process_set: ProcessSet = _Global()


def ranks_of(process_set: ProcessSet) -> List[int]:
    """The ranks of a set, by their numbers in the job."""
    return process_set.coordinator.ranks


def place_of(root_rank: int, process_set: ProcessSet) -> int:
    """A root's place in a set, of its number in the job."""
    ranks = ranks_of(process_set)
    if root_rank not in ranks:
        raise ValueError(f"root_rank {root_rank} is none of the ranks {ranks}")
    return ranks.index(root_rank)


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Register a set of ranks; every rank of the job calls it, also those that are not in it."""
    given = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    here = _job.job()
    ranks = given.ranks
    if given.process_set_id is not None:
        raise ValueError(f"{given} is registered already")
    for registered in here.process_sets.values():
        if registered.ranks == ranks:
            raise ValueError(f"there is a process set of these ranks already: {registered}")
    if not ranks or not 0 <= ranks[0] <= ranks[-1] < here.comm.nranks:
        raise ValueError(f"a process set is made of ranks 0 to {here.comm.nranks - 1}; not {ranks}")
    coordinator = here.coordinator

    def run() -> None:
        member = here.comm.rank in ranks
        comm = here.comm.split(0 if member else None)
        if comm is not None:
            given._coordinator = Coordinator(comm, ranks, here.settings, here.timeline)

    name = coordinator.name("add_process_set", None)
    signature = Signature.of("add_process_set", (), (("ranks", str(ranks)),))
    coordinator.submit(Request(name, signature, lambda: None, run), soon=True).wait()
    here.sets_made += 1
    given.process_set_id = here.sets_made
    here.process_sets[given.process_set_id] = given
    return given


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; every rank calls it. False for the set of all ranks, and for one that is not
    registered."""
    here = _job.job()
    number = process_set.process_set_id
    if number is None or number not in here.process_sets:
        return False

    def run() -> None:
        ended, process_set._coordinator = process_set._coordinator, None
        if ended is not None:
            ended.close()

    name = here.coordinator.name("remove_process_set", None)
    signature = Signature.of("remove_process_set", (), (("number", number),))
    here.coordinator.submit(Request(name, signature, lambda: None, run), soon=True).wait()
    del here.process_sets[number]
    process_set.process_set_id = None
    return True


def process_set_by_id(number: int) -> Any:
    """The registered set of this number."""
    sets: Dict[int, ProcessSet] = {0: global_process_set, **_job.job().process_sets}
    if number not in sets:
        raise ValueError(f"there is no process set {number}; there are {sorted(sets)}")
    return sets[number]
