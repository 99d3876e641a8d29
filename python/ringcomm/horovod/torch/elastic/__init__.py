"""Horovod's elastic training for PyTorch: `hvd.elastic`."""

from ...elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HostUpdateResult,
    ObjectState,
    State,
    run,
    run_fn,
)
from .sampler import ElasticSampler
from .state import TorchState

__all__ = [
    "ElasticSampler", "HorovodInternalError", "HostUpdateResult", "HostsUpdatedInterrupt",
    "ObjectState", "State", "TorchState", "run", "run_fn",
]  # fmt: skip
