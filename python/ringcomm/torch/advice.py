"""What the library's errors say to do, for programs of torch: there the group has the deadline, and
shrinks in torch's own words."""

from __future__ import annotations

from typing import Dict, Optional

import torch

from .._native import failure
from ..errors import RingError

#: Whether this release shrinks groups of a backend in Python.
SHRINKS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)

#: What to do about a rank that is gone.
RESTART = ("go on without it by dist.shrink_group, or " if SHRINKS else "") + (
    "restart the job from a checkpoint, as torchrun and ringrun do with --max-restarts"
)
_LONGER = "give the group a longer timeout in init_process_group or new_group"

#: The library's words, the longer ones first, and ours.
_WORDS: Dict[str, str] = {
    "raise RINGCOMM_TIMEOUT_MS or the config's timeout_ms": _LONGER,
    "raise RINGCOMM_TIMEOUT_MS": _LONGER,
    "shrink the communicator or restart the job": RESTART,
}


def advised(result: int, text: str, rank: Optional[int]) -> RingError:
    """The error of the library with this result and text, with advice that can be followed."""
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return failure(result, text, rank)
