"""How the ranks of a job change: survivors shrink it, newcomers join it, some are told to go.

All of it is done by every rank together, in the order of its calls.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional

from ...communicator import Communicator, free_unique_id, get_unique_id
from ...errors import RingError
from .. import job as _job
from .. import objects
from ..exceptions import HorovodInternalError
from ..requests import internal
from . import meeting

#: What there is news of: ranks that are to go, and newcomers.
REMOVED, ADDED = 1, 2
#: The least and the most ranks; the launcher sets them.
LEAST, MOST = "RINGCOMM_MIN_NP", "RINGCOMM_MAX_NP"
#: Seconds that fewer than the least ranks wait for newcomers, under Horovod's name and with its
#: default.
PATIENCE, USUAL_PATIENCE_S = "HOROVOD_ELASTIC_TIMEOUT", 600.0
#: A newcomer that was let in so often and has not come is let in no more.
MOST_TRIES = 2

_log = logging.getLogger("ringcomm.horovod")
#: Newcomers that were let in and did not come, and how often.
_missed: Dict[str, int] = {}
#: Whether this process has the state that the ranks have in common.
_has_state = False


class Plan(NamedTuple):
    """What rank 0 has found: who goes, who comes and where they meet, or why nothing helps."""

    leaving: List[str]
    newcomers: List[str]
    unique_id: bytes
    problem: str


def news() -> int:
    """What the folder says, to rank 0."""
    folder = meeting.here()
    if folder is None or not _job.is_initialized():
        return 0
    leaving = REMOVED if _leaving(folder) else 0
    return leaving | (ADDED if _welcome(folder, _job.size()) else 0)


def _leaving(folder: meeting.Meeting) -> List[str]:
    present = _job.job().slots
    return [one for one in folder.leaving() if one in present]


def _welcome(folder: meeting.Meeting, there: int) -> List[str]:
    """The newcomers for whom there is room beside so many ranks."""
    most = _number(MOST, sys.maxsize)
    come = [one for one in folder.waiting() if _missed.get(one, 0) < MOST_TRIES]
    return come[: int(max(0, most - there))]


def _number(name: str, otherwise: float) -> float:
    text = os.environ.get(name, "")
    try:
        number = float(text) if text else otherwise
    except ValueError:
        number = -1
    if not number >= 0:
        raise ValueError(f"{name}={text}: give a number that is not negative")
    return number


def state_is_there() -> None:
    """Refuse to go on where nobody has the state: those who had it have died."""
    if meeting.is_newcomer() and not _has_state and _job.rank() == 0:
        raise RuntimeError(
            "the ranks that had the state of the training have died before this newcomer got it; "
            "start the job again from a checkpoint"
        )


def synced() -> None:
    """This rank has the state."""
    global _has_state
    _has_state = True


def over() -> None:
    """The training is done: newcomers are sent home."""
    folder = meeting.here()
    if folder is not None and _job.is_initialized() and _job.rank() == 0:
        folder.end()


class Change(NamedTuple):
    """What has become of the job: whether ranks have died, and whether others have come."""

    died: bool
    grown: bool


def reset(broken: bool) -> Change:
    """Make the job one of those who are there; `broken`: an operation has failed. A rank that is to
    go ends its process here."""
    died = grown = False
    while True:
        try:
            if broken:
                died = _shrink() or died
                broken = False
            grown = _change() or grown
            return Change(died, grown)
        except HorovodInternalError as error:
            _log.warning("ranks have died while others came or went: %s", error)
            broken = True


def _shrink() -> bool:
    """A job of the survivors; whether somebody has died."""
    old = _job.job()
    try:
        comm = old.comm.shrink(abort=True)
    except RingError as error:
        raise RuntimeError(
            f"the ranks that are left of {old.comm.nranks} could not go on together: {error}"
        ) from error
    died = comm.nranks < old.comm.nranks
    if died:
        _log.warning("%d ranks of %d go on", comm.nranks, old.comm.nranks)
    old.halt(broken=True)
    old.comm.abort()
    old.comm = comm
    _renew(old)
    return died


def _renew(old: "_job.Job") -> None:
    """A new job on the communicator that this one has now."""
    try:
        _job.go_on(old)
    except RingError as error:
        raise internal(error) from error


def _change() -> bool:
    """Let ranks go and newcomers in, as rank 0 finds; where there is nothing to do, the job's
    operations begin anew. Whether newcomers have come."""
    mine = _plan() if _job.rank() == 0 else None
    plan: Plan = objects.broadcast_object(mine, name="elastic.plan")
    if plan.problem:
        raise RuntimeError(plan.problem)
    old = _job.job()
    old.halt(broken=False)
    try:
        if plan.leaving:
            old = _part(old, plan)
        made = _grown(old, plan) if plan.newcomers else None
    except RingError as error:
        raise internal(error) from error
    if made is not None:
        old.comm.destroy()
        old.comm = made
    _renew(old)
    return made is not None


def _plan() -> Plan:
    """Look into the folder, until there are enough ranks."""
    least = int(_number(LEAST, 1))
    until = time.monotonic() + _number(PATIENCE, USUAL_PATIENCE_S)
    folder = meeting.here()
    while True:
        leaving = _leaving(folder) if folder is not None else []
        left = _job.size() - len(leaving)
        come = _welcome(folder, left) if folder is not None else []
        if left + len(come) >= least:
            break
        if folder is None or time.monotonic() >= until:
            return Plan([], [], b"", _too_few(left, least, folder is None))
        time.sleep(meeting.GLANCE_S)
    if not left:
        # Newcomers get the state from those who go; these go at the next commit.
        leaving = []
    return Plan(leaving, come, get_unique_id() if come else b"", "")


def _too_few(left: int, least: int, closed: bool) -> str:
    why = (
        f"nobody can join, as {meeting.FOLDER} names no folder"
        if closed
        else f"nobody has come within {PATIENCE} "
        f"({_number(PATIENCE, USUAL_PATIENCE_S):g} s)"
    )
    ranks = "1 rank is" if left == 1 else f"{left} ranks are"
    return f"{ranks} left of an elastic job of at least {least} ({LEAST}, --min-np), and {why}"


def _part(old: "_job.Job", plan: Plan) -> "_job.Job":
    """The job without those who are to go; one of them ends here."""
    goes = old.slots[old.comm.rank] in plan.leaving
    stays = [one for one in old.slots if one not in plan.leaving]
    if not stays:
        raise RuntimeError("all ranks of the job are to go")
    comm = old.comm.split(None if goes else 0)
    folder = meeting.here()
    if comm is None:
        if folder is not None:
            folder.has_left(old.slots[old.comm.rank])
        old.comm.destroy()
        _job.shutdown()
        _log.warning("this rank goes, as the launcher says")
        sys.exit(0)
    old.comm.destroy()
    old.comm, old.slots = comm, stays
    return old


def _grown(old: "_job.Job", plan: Plan) -> Optional[Communicator]:
    """A communicator with the newcomers, if all have come. The old one is kept until then."""
    comm, folder = old.comm, meeting.here()
    nranks = comm.nranks + len(plan.newcomers)
    assert folder is not None
    if comm.rank == 0:
        for number, one in enumerate(plan.newcomers):
            folder.admit(one, plan.unique_id, nranks, comm.nranks + number)
    made: Optional[Communicator] = None
    problem: Any = None
    try:
        made = meeting.meet(plan.unique_id, nranks, comm.rank)
    except RingError as error:
        problem = error
    if all(comm.all_gather_object(made is not None)):
        assert made is not None
        try:
            # The newcomers wait for it. Where one dies now, the next operation says so.
            made.barrier()
        except RingError:
            pass
        return made
    if made is not None:
        made.abort()
    if comm.rank == 0:
        _log.warning("newcomers did not come, and the others go on: %s", problem)
        free_unique_id(plan.unique_id)
        for one in plan.newcomers:
            _missed[one] = _missed.get(one, 0) + 1
            folder.withdraw(one)
    return None


def joined() -> Communicator:
    """The communicator of the job that this newcomer has come to."""
    folder = meeting.here()
    if folder is None:
        raise ValueError(
            f"{meeting.NEWCOMER} is set, and {meeting.FOLDER} is not: name the folder of the job"
        )
    return folder.join()
