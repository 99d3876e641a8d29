"""What PyTorch's side does on CUDA devices, without torch's own CUDA: see `tensors`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from driver import devices, memory  # noqa: E402, F401
from in_threads import on_threads, ranks  # noqa: E402, F401
