"""Whether a rank of this machine has died, where its communicator does not look any more: one that
has failed by another rank's death knows only of that."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from ..communicator import Communicator
from ..errors import RingError, RingRemoteError


def death_of(communicator: Communicator, peer: int) -> Optional[RingError]:
    """The error for a rank whose process is gone; None for one that lives, or is elsewhere."""
    try:
        ranks = communicator.dump()["ranks"]
    except RingError:
        return None  # it is ending at this moment
    me, other = ranks[communicator.rank], ranks[peer]
    if other["host"] != me["host"] or _runs(other["pid"]):
        return None
    return RingRemoteError(
        f"rank {peer} (host {other['host']}, pid {other['pid']}) died: rank {communicator.rank} "
        "cannot exchange messages with it; restart the job",
        6,
        rank=communicator.rank,
        peer=peer,
    )


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # What comes behind the program's name, which may have any letters: Z and X have ended.
    return status.rpartition(")")[2].split()[0] not in "ZX"
