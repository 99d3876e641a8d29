"""The fixtures of `in_threads`, and its functions, for all tests of the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from in_threads import on_threads, one, outcomes, ranks  # noqa: E402, F401
