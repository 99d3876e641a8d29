"""Horovod's variables that tune its coordinator."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional


class Settings(NamedTuple):
    """What `HOROVOD_*` variables say, with Horovod's defaults. Seconds and bytes."""

    #: How long operations that nobody waits for are collected before ranks compare them.
    cycle_s: float = 0.001
    #: Up to so many bytes of small tensors are reduced as one; 0: none are.
    fusion_bytes: int = 128 << 20
    #: What is longer is reduced where it lies, and not copied.
    packed_bytes: int = 64 << 10
    #: So many operations are known by number; their names and shapes are not sent again.
    cache_capacity: int = 16384
    #: After so long rank 0 says who has not submitted an operation; 0: never.
    stall_warning_s: float = 60
    #: After so long the job is shut down; 0: never.
    stall_shutdown_s: float = 0
    #: The timeline's file; None: there is none until `start_timeline`.
    timeline: Optional[str] = None
    mark_cycles: bool = False


def from_environment() -> Settings:
    """The settings of this process."""
    timeline = os.environ.get("HOROVOD_TIMELINE")
    stalls = _number("HOROVOD_STALL_CHECK_TIME_SECONDS", 60)
    return Settings(
        cycle_s=_number("HOROVOD_CYCLE_TIME", 1) / 1000,
        fusion_bytes=int(_number("HOROVOD_FUSION_THRESHOLD", 128 << 20)),
        # As Horovod has it: 0 switches the cache off. Here names are then sent every time.
        cache_capacity=int(_number("HOROVOD_CACHE_CAPACITY", 16384)),
        stall_warning_s=0 if _said("HOROVOD_STALL_CHECK_DISABLE") else stalls,
        stall_shutdown_s=_number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0),
        # Horovod's word for a timeline that the program starts by itself.
        timeline=None if timeline in (None, "", "DYNAMIC") else timeline,
        mark_cycles=_said("HOROVOD_TIMELINE_MARK_CYCLES"),
    )


def _said(name: str) -> bool:
    return os.environ.get(name, "0").lower() not in ("", "0", "false")


def _number(name: str, otherwise: float) -> float:
    text = os.environ.get(name, "")
    if not text:
        return otherwise
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not number >= 0:
        raise ValueError(f"{name}={text}: give a number that is not negative")
    return number
