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
from ...elastic.meeting import is_newcomer
from .sampler import ElasticSampler
from .state import TorchState

if is_newcomer():
    # The first optimizer imports it, which takes seconds: they are to pass before the others wait.
    import torch._dynamo  # noqa: F401

__all__ = [
    "ElasticSampler", "HorovodInternalError", "HostUpdateResult", "HostsUpdatedInterrupt",
    "ObjectState", "State", "TorchState", "run", "run_fn",
]  # fmt: skip
