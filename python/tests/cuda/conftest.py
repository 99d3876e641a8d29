"""Ranks on CUDA devices: of the driver without a GPU, which the suite has, or of a real one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from driver import devices, memory  # noqa: E402, F401
from in_threads import on_threads, ranks  # noqa: E402, F401
