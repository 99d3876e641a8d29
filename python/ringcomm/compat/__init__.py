"""Packages under other libraries' names, for programs that nobody edits.

This folder holds `horovod` and `apex`. Who puts it on Python's path, as `ringrun --compat` does for
its ranks, gets ringcomm's under those names. A real Horovod or apex that is installed is then not
seen by those programs alone.
"""

from __future__ import annotations

import os


def path() -> str:
    """The folder to put on `PYTHONPATH`."""
    return os.path.dirname(os.path.abspath(__file__))
