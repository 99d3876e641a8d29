"""Horovod's interface for Keras under the name of `horovod.keras`: that of
`ringcomm.horovod.tensorflow.keras`."""

from typing import Any

from ..job import missing
from ..tensorflow.keras import *  # noqa: F403
from ..tensorflow.keras import __all__ as _names

__all__ = list(_names)


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
