"""Helpers of all suites of tests can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from in_threads import one, ranks  # noqa: E402, F401  they are fixtures
