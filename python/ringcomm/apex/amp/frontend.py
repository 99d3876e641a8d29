"""`initialize`, and the checkpoints of what it made."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any, Dict, Iterator, List, Optional, Union

import torch
from torch import nn

from ...torch import DataParallel
from . import casting
from .functions import decorate_registered
from .optimizer import AmpStash
from .properties import Properties
from .scaler import LossScaler
from .state import maybe_print, state


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Union[None, bool, torch.dtype] = None,
    patch_torch_functions: Optional[bool] = None,
    keep_batchnorm_fp32: Union[None, bool, str] = None,
    master_weights: Optional[bool] = None,
    loss_scale: Union[None, float, str] = None,
    cast_model_outputs: Optional[torch.dtype] = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: Optional[float] = None,
    max_loss_scale: float = 2.0**24,
) -> Any:
    """Prepare models and optimizers for mixed precision; returns them, lists where lists came.

    Call it once, before DistributedDataParallel. What is None is what `opt_level` says.

    Args:
        models: a model or a list, in float32, on their device.
        optimizers: an optimizer or a list; without, models alone come back, for inference.
        enabled: False makes every call of amp do nothing.
        opt_level: O0 is float32; O1 casts in functions, by torch.autocast; O2 casts models but
            for batch normalization, and keeps masters; O3 casts all.
        cast_model_type: what models are cast to; False leaves them alone.
        keep_batchnorm_fp32: whether batch normalization stays in float32; words do as well.
        master_weights: whether the optimizer steps copies in float32.
        loss_scale: a number, also as a word, or "dynamic".
        cast_model_outputs: the type of what models return.
        num_losses: how many losses have a scale of their own.
        verbosity: 0 says nothing.
        min_loss_scale, max_loss_scale: where a dynamic scale ends.
    """
    state.verbosity = verbosity
    listed = models if isinstance(models, list) else [models]
    if not all(isinstance(model, nn.Module) for model in listed):
        raise TypeError("models is a torch.nn.Module, or a list of them")
    properties = Properties(opt_level if enabled else "O0", _half(listed))
    properties.enabled = bool(enabled)
    if not enabled:
        state.opt_properties, state.loss_scalers = properties, []
        return models if optimizers is None else (models, optimizers)
    properties.override(
        cast_model_type=cast_model_type,
        patch_torch_functions=patch_torch_functions,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        master_weights=master_weights,
        loss_scale=loss_scale,
    )
    steppers = _steppers(optimizers)
    _check_models(listed)
    _say(properties)
    for model in listed:
        _prepare(model, properties, cast_model_outputs)
    for optimizer in steppers:
        optimizer._amp_stash = AmpStash(optimizer, properties)
    state.opt_properties = properties
    ends = {"min_loss_scale": min_loss_scale, "max_loss_scale": max_loss_scale}
    state.loss_scalers = _scalers(properties, num_losses, ends)
    if properties.patch_torch_functions:
        decorate_registered()
    return models if optimizers is None else (models, optimizers)


def _half(models: List[nn.Module]) -> torch.dtype:
    for model in models:
        for parameter in model.parameters():
            return casting.half_of(parameter.device)
    return casting.half_of(torch.device("cpu"))


def _steppers(optimizers: Any) -> List[Any]:
    steppers = optimizers if isinstance(optimizers, list) else [optimizers]
    steppers = [] if optimizers is None else steppers
    for optimizer in steppers:
        inner = getattr(optimizer, "optim", optimizer)  # LARC's.
        if not isinstance(inner, torch.optim.Optimizer):
            raise TypeError(
                f"optimizers is a torch.optim.Optimizer, or a list of them; got {optimizer!r}"
            )
        if hasattr(optimizer, "_amp_stash"):
            raise RuntimeError(
                f"this {type(optimizer).__name__} has been through amp.initialize before; it goes "
                "through it once"
            )
    return steppers


def _check_models(models: List[nn.Module]) -> None:
    # It names this package, too.
    from ..parallel import DistributedDataParallel

    for model in models:
        parallel = (
            nn.parallel.DistributedDataParallel, nn.DataParallel,
            DistributedDataParallel, DataParallel,
        )  # fmt: skip
        if isinstance(model, parallel):
            raise RuntimeError(
                f"a model is in a {type(model).__module__}.{type(model).__name__} already; call "
                "amp.initialize first, and wrap the model that comes back"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise TypeError("amp.initialize takes a model before torch.jit, and not after it")
        if hasattr(model, "_amp_casts"):
            raise RuntimeError(
                f"this {type(model).__name__} has been through amp.initialize before; it goes "
                "through it once"
            )
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dtype in casting.HALVES and not state.allow_incoming_model_not_fp32:
                raise RuntimeError(
                    f"{name} of a model is {tensor.dtype}: give amp.initialize models in float32, "
                    "whatever opt_level; it casts them"
                )


def _prepare(
    model: nn.Module, properties: Properties, cast_model_outputs: Optional[torch.dtype]
) -> None:
    kind = properties.cast_model_type
    if isinstance(kind, torch.dtype):
        casting.cast_weights(model, kind, bool(properties.keep_batchnorm_fp32))
        casts = casting.Casts(kind, cast_model_outputs or torch.float32, False)
    else:
        casts = casting.Casts(None, cast_model_outputs, properties.patch_torch_functions)
    casting.install(model, casts)


def _scalers(properties: Properties, count: int, ends: Dict[str, Any]) -> List[LossScaler]:
    return [LossScaler(properties.loss_scale, loss_id=number, **ends) for number in range(count)]


def _say(properties: Properties) -> None:
    maybe_print(f"amp trains at optimization level {properties.opt_level}:", True)
    for name, value in properties.options.items():
        maybe_print(f"  {name:22}: {value}", True)


def master_params(optimizer: Any) -> Iterator[torch.Tensor]:
    """The parameters that the optimizer steps: masters where there are some. Clip these."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """Every loss's scale, for a checkpoint."""
    state.known("amp.state_dict")
    found: Dict[str, Any] = OrderedDict() if destination is None else destination
    for number, scaler in enumerate(state.loss_scalers):
        found[f"loss_scaler{number}"] = {
            "loss_scale": scaler.loss_scale(),
            "unskipped": scaler._unskipped,
        }
    return found


def load_state_dict(state_dict: Dict[str, Any]) -> None:
    """Take the scales from a checkpoint; call it after `initialize`."""
    if not state.known("amp.load_state_dict").enabled:
        return
    unknown = [key for key in state_dict if not key.startswith("loss_scaler")]
    if unknown:
        raise RuntimeError(f"amp.load_state_dict: unexpected keys {', '.join(unknown)}")
    saved, scalers = list(state_dict.values()), state.loss_scalers
    if len(saved) != len(scalers):
        warnings.warn(
            f"amp.load_state_dict: {len(saved)} loss scales for {len(scalers)} losses; the first "
            f"{min(len(saved), len(scalers))} are taken",
            stacklevel=2,
        )
    for scaler, one in zip(scalers, saved):
        scaler._loss_scale, scaler._unskipped = one["loss_scale"], one["unskipped"]
