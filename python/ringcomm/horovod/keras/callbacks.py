"""Horovod's callbacks of `model.fit`: those of `ringcomm.horovod.tensorflow.keras.callbacks`."""

from typing import Any

from ..job import missing
from ..tensorflow.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback", "MetricAverageCallback",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
