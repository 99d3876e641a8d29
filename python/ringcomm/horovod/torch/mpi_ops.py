"""Horovod's module of operations, which programs import names from."""

from . import *  # noqa: F401, F403
from .pending import poll, synchronize  # noqa: F401
