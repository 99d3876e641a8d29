"""Optimizers under apex's names and with its arguments: torch's, where torch has them."""

from __future__ import annotations

from typing import Any

from ..missing import missing
from .adagrad import FusedAdagrad
from .adam import FusedAdam
from .lamb import FusedLAMB
from .novograd import FusedNovoGrad
from .sgd import FusedSGD

__all__ = ["FusedAdagrad", "FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedSGD"]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
