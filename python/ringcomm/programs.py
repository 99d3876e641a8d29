"""The programs that come with the library: `ring-perf` and `ringrun`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from ._native import HERE


def program(name: str) -> Path:
    """Where a program is: in the package, else beside the library that RINGCOMM_LIBRARY names."""
    named = os.environ.get("RINGCOMM_LIBRARY")
    places = [HERE / "bin" / name]
    if named:
        places.insert(0, Path(named).resolve().parent / name)
    for place in places:
        if place.exists():
            return place
    raise SystemExit(
        f"{name} is not in {' or '.join(str(place.parent) for place in places)}: reinstall with "
        "`pip install ./python`"
    )


def replace_by(name: str) -> NoReturn:
    """Become the program, with this process's arguments, and the name if it is ringrun's other."""
    place = program(name)
    called = os.path.basename(sys.argv[0])
    os.execv(str(place), [called if called == "horovodrun" else name, *sys.argv[1:]])
