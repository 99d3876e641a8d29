"""Modules under a second name: `horovod.torch` is `ringcomm.horovod.torch`, the same object."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any, Optional, Sequence


class _Loader(importlib.abc.Loader):
    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run under its own name, and keeps its own spec."""
        module.__spec__ = self._spec


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, real: str) -> None:
        self._prefix, self._real = name + ".", real

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if not fullname.startswith(self._prefix):
            return None
        real = f"{self._real}.{fullname[len(self._prefix):]}"
        try:
            if importlib.util.find_spec(real) is None:
                return None
        except ModuleNotFoundError:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(real))


def stand_for(name: str, real: str) -> Any:
    """Let modules below `name` be those below `real`; the module of that name."""
    sys.meta_path.insert(0, _Finder(name, real))
    return importlib.import_module(real)
