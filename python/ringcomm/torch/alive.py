"""Whether another rank can still exchange messages: what the communicator of its group has noticed,
and what its flight record tells of each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from .._native import Result
from ..communicator import Communicator
from ..errors import RingError, RingRemoteError
from .advice import RESTART, advised


def trouble_with(communicator: Communicator, peer: int) -> Optional[RingError]:
    """The error for a rank that is known to have failed, in a communicator that has."""
    try:
        error = communicator.error()
    except RingError:
        return None  # it is ending at this moment
    if not isinstance(error, RingRemoteError):
        return None
    if error.peer == peer:
        return advised(error.result, error.message, communicator.rank)
    # One that has failed by another rank's death knows only of that.
    return departure_of(communicator, peer) or _death_of(communicator, peer)


def departure_of(communicator: Communicator, peer: int) -> Optional[RingError]:
    """The error for a rank that left the communicator."""
    ranks = _ranks(communicator)
    if not ranks or f"rank {peer} left " not in ranks[peer]["state"]:
        return None
    what = "left the group", "receive what it is sent before it ends the group"
    return _told(communicator, ranks[peer], *what)


def _death_of(communicator: Communicator, peer: int) -> Optional[RingError]:
    """The error for a rank whose process on this machine is gone. One in a container may only be
    out of sight, so this is asked where something has failed already."""
    ranks = _ranks(communicator)
    if not ranks or ranks[peer]["host"] != ranks[communicator.rank]["host"]:
        return None
    if _runs(ranks[peer]["pid"]):
        return None
    # It may have left, and then ended, since that was asked.
    return departure_of(communicator, peer) or _told(communicator, ranks[peer], "died", RESTART)


def _ranks(communicator: Communicator) -> List[Dict[str, Any]]:
    try:
        ranks: List[Dict[str, Any]] = communicator.dump()["ranks"]
    except RingError:
        return []  # it is ending at this moment
    return ranks


def _told(communicator: Communicator, who: Dict[str, Any], what: str, advice: str) -> RingError:
    rank, peer = communicator.rank, who["rank"]
    return RingRemoteError(
        f"rank {peer} (host {who['host']}, pid {who['pid']}) {what}: rank {rank} cannot exchange "
        f"messages with it; {advice}",
        Result.REMOTE_ERROR,
        rank=rank,
        peer=peer,
    )


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # What comes behind the program's name, which may have any letters: Z and X have ended.
    return status.rpartition(")")[2].split()[0] not in "ZX"
