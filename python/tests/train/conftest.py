"""For all tests of training: examples can be imported, and one thread does the arithmetic."""

import os
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2]

# Before torch is loaded: as the launchers set it, so that matrices are multiplied in the same
# order.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [str(PYTHON / "examples"), str(PYTHON / "tests/shared")]

# What optimizers import when they are first used: seconds in every rank that is forked.
import torch._dynamo  # noqa: E402, F401
