"""Horovod's elastic training, for all frameworks."""

from ..elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HostUpdateResult,
    ObjectState,
    State,
    run_fn,
)

__all__ = [
    "HorovodInternalError", "HostUpdateResult", "HostsUpdatedInterrupt", "ObjectState", "State",
    "run_fn",
]  # fmt: skip
