"""Functions of a script that O1 casts: decorated, or registered before `initialize`."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, List, Tuple

import torch

from .casting import converted, half_of
from .state import state

Function = Callable[..., Any]
_registered: List[Tuple[Any, str, Function]] = []


def _tensors(args: Any, kwargs: Any) -> List[torch.Tensor]:
    found: List[torch.Tensor] = []

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            found.append(value)
        return value

    converted((args, kwargs), note)
    return found


def _casting(
    fn: Function, pick: Callable[[List[torch.Tensor]], torch.dtype], exact: bool
) -> Function:
    """The function on arguments of the type that is picked for them. Where that is `exact`, or the
    function is torch's own, autocast casts nothing in it."""
    own = not (getattr(fn, "__module__", None) or "torch").startswith("torch")

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        tensors = _tensors(args, kwargs) if state.casts_functions else []
        if not tensors:
            return fn(*args, **kwargs)
        dtype = pick(tensors)

        def cast(value: Any) -> Any:
            floats = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(dtype) if floats else value

        kind = tensors[0].device.type
        plain = exact or not own
        with torch.autocast(kind, enabled=False) if plain else contextlib.nullcontext():
            return fn(*converted(args, cast), **converted(kwargs, cast))

    return called


def _half(tensors: List[torch.Tensor]) -> torch.dtype:
    return half_of(tensors[0].device)


def _float(_: List[torch.Tensor]) -> torch.dtype:
    return torch.float32


def _widest(tensors: List[torch.Tensor]) -> torch.dtype:
    return functools.reduce(torch.promote_types, (one.dtype for one in tensors))


def half_function(fn: Function) -> Function:
    """Decorates a function that takes its tensors in half precision under O1."""
    return _casting(fn, _half, exact=False)


def float_function(fn: Function) -> Function:
    """Decorates a function that takes its tensors, and computes, in float32 under O1."""
    return _casting(fn, _float, exact=True)


def promote_function(fn: Function) -> Function:
    """Decorates a function that takes its tensors in the widest of their types under O1."""
    return _casting(fn, _widest, exact=False)


def _register(module: Any, name: str, decorator: Callable[[Function], Function]) -> None:
    if not hasattr(module, name):
        raise ValueError(f"{module} has no function {name}")
    _registered.append((module, name, decorator))


def register_half_function(module: Any, name: str) -> None:
    """Decorate a function of a module with `half_function` when O1 begins."""
    _register(module, name, half_function)


def register_float_function(module: Any, name: str) -> None:
    """Decorate a function of a module with `float_function` when O1 begins."""
    _register(module, name, float_function)


def register_promote_function(module: Any, name: str) -> None:
    """Decorate a function of a module with `promote_function` when O1 begins."""
    _register(module, name, promote_function)


def decorate_registered() -> None:
    """O1 begins."""
    for module, name, decorator in _registered:
        setattr(module, name, decorator(getattr(module, name)))
    _registered.clear()
