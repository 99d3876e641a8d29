"""Code that torch.compile has made runs the package's own code as it is.

torch's compiler would trace that code where a graph breaks at a call of it. Nothing is gained there,
and releases from 2.15 on fail: to them a process group is an object of which nothing may be asked.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Optional, Sequence

#: The module of torch with the rules of what is traced.
RULES = "torch._dynamo.trace_rules"
PACKAGE = __name__.split(".", maxsplit=1)[0]


def leave_out() -> None:
    """See to it that the compiler traces none of the package, when it is there.

    It is not imported for that: it takes longer than all the rest of torch.
    """
    rules = sys.modules.get(RULES)
    if rules is None:
        sys.meta_path.insert(0, _Watch())
    else:
        _add_to(rules)


def _add_to(rules: ModuleType) -> None:
    add: Any = getattr(rules, "add", None)
    if add is not None:
        add(PACKAGE)


class _Watch:
    """What Python asks where a module is, before it asks who knows: it waits for the rules."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Any = None
    ) -> Optional[ModuleSpec]:
        """Where the rules are, with a loader that adds to them; nothing for any other module."""
        if name != RULES:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _add_to(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
