"""Models whose forward pass casts what comes and what goes: O0, O2 and O3 by their type, O1 by
autocast.

A model gets a class of its own, derived from its class and of that name, with another `forward`. So
copies of the model, and its replicas under DataParallel, cast as it does.
"""

from __future__ import annotations

import copy
import copyreg
import functools
from typing import Any, Callable, Dict, Mapping, MutableMapping, Optional, Tuple, Type

import torch
from torch import nn

from .. import fp16_utils
from .masters import full, restore
from .state import state

#: Types that are not kept where exactness matters.
HALVES = (torch.float16, torch.bfloat16)
#: What functions are cast to on a device of this type.
HALF_OF = {"cuda": torch.float16}


def half_of(device: torch.device) -> torch.dtype:
    """The half-precision type of a device: float16, or bfloat16 on the CPU, where float16 lacks
    operators."""
    return HALF_OF.get(device.type, torch.bfloat16)


def converted(value: Any, cast: Callable[[Any], Any]) -> Any:
    """The value with `cast` applied to all tensors in it, and to objects that have a `to`."""
    if isinstance(value, torch.Tensor):
        return cast(value)
    if isinstance(value, (str, bytes, nn.Module)):
        return value
    if hasattr(value, "to"):
        return cast(value)
    if isinstance(value, MutableMapping):
        made: Any = copy.copy(value)
        for key in value:
            made[key] = converted(value[key], cast)
        return made
    if isinstance(value, Mapping):
        return {key: converted(one, cast) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(converted(one, cast) for one in value))
    if isinstance(value, (tuple, list, set, frozenset)):
        return type(value)(converted(one, cast) for one in value)
    return value


def to_type(dtype: torch.dtype, value: Any) -> Any:
    """Floating-point tensors, and objects with a `to`, in this type."""
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        return value
    return value.to(dtype)


def _from_half(value: Any) -> Any:
    """Tensors of half precision in float32. Objects are left alone: they do not say what they
    are."""
    half = isinstance(value, torch.Tensor) and value.dtype in HALVES
    return value.float() if half else value


class Casts:
    """How a model casts."""

    def __init__(
        self, inputs: Optional[torch.dtype], outputs: Optional[torch.dtype], functions: bool
    ) -> None:
        self._inputs, self._outputs, self._functions = inputs, outputs, functions

    def run(self, forward: Callable[..., Any], model: nn.Module, args: Any, kwargs: Any) -> Any:
        """The model's forward pass on what it is given."""
        if self._functions and not state.disabled:
            device = _device(model, args, kwargs)
            with torch.autocast(device.type, half_of(device)):
                output = forward(*args, **kwargs)
            if self._outputs is None:
                # Losses are computed in float32, wherever the script computes them.
                return converted(output, _from_half)
        else:
            if self._inputs is not None:
                cast = functools.partial(to_type, self._inputs)
                args, kwargs = converted(args, cast), converted(kwargs, cast)
            output = forward(*args, **kwargs)
        if self._outputs is None:
            return output
        return converted(output, functools.partial(to_type, self._outputs))


def _device(model: nn.Module, args: Any, kwargs: Any) -> torch.device:
    """Where the model runs: where its weights are, or else what it is given."""
    for tensor in model.parameters():
        return tensor.device
    found = [torch.device("cpu")]

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found.append(value.device)
        return value

    converted((args, kwargs), note)
    return found[-1]


_kinds: Dict[Type[nn.Module], Type[nn.Module]] = {}


def _kind(base: Type[nn.Module]) -> Type[nn.Module]:
    """The class, with a forward pass that casts."""
    if base in _kinds:
        return _kinds[base]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._amp_casts.run(super(made, self).forward, self, args, kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        """Nobody finds this class by its name; the base is found."""
        how = super(made, self).__reduce_ex__(protocol)
        if how[0] is not getattr(copyreg, "__newobj__"):
            return how
        return (_remade, (base, *how[1][1:]), *how[2:])

    more = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    made: Any = type(base.__name__, (base,), {**more, "forward": forward, "__reduce_ex__": reduce})
    _kinds[base] = made
    return made  # type: ignore[no-any-return]


def _remade(base: Type[nn.Module], *arguments: Any) -> nn.Module:
    """What copies and pickles of such a model begin with."""
    kind: Any = _kind(base)
    made: nn.Module = kind.__new__(kind, *arguments)
    return made


def install(model: Any, casts: Casts) -> None:
    """Make the model cast from now on."""
    own = vars(model).get("forward")
    model._amp_casts = casts
    if own is not None:
        # Somebody has given this model a forward pass of its own.
        model.forward = functools.partial(_run_own, own, model)
    else:
        model.__class__ = _kind(type(model))


def _run_own(forward: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    return model._amp_casts.run(forward, model, args, kwargs)


def cast_weights(model: nn.Module, dtype: torch.dtype, keep_batchnorm: bool) -> None:
    """Cast parameters and buffers; what `state_dict` gives, and takes, is in float32 all the
    same."""
    if keep_batchnorm:
        fp16_utils.convert_network(model, dtype)
    else:
        for module in model.modules():
            fp16_utils.convert_module(module, dtype)
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
    part: Any
    for part in model.modules():
        part.register_state_dict_post_hook(_widen)
        part.register_load_state_dict_pre_hook(_restore)


def _own(module: nn.Module, prefix: str) -> Dict[str, Tuple[str, torch.Tensor]]:
    tensors = {**module._parameters, **module._buffers}
    return {prefix + name: (name, one) for name, one in tensors.items() if one is not None}


def _widen(module: nn.Module, state_dict: Dict[str, Any], prefix: str, _: Any) -> None:
    for key, (_name, tensor) in _own(module, prefix).items():
        value = state_dict.get(key)
        if isinstance(value, torch.Tensor) and value.dtype in HALVES:
            state_dict[key] = full(tensor, value)


def _restore(
    module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any, **__: Any
) -> None:
    for key, (_name, tensor) in _own(module, prefix).items():
        value = state_dict.get(key)
        if isinstance(value, torch.Tensor):
            restore(tensor, value)
