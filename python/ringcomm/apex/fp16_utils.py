"""apex's tools for networks in half precision, and for masters that a script keeps by itself."""

from __future__ import annotations

from typing import Any, List, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .missing import missing

__all__ = [
    "BN_convert_float", "FP16Model", "clip_grad_norm", "convert_module", "convert_network",
    "master_params_to_model_params", "model_grads_to_master_grads", "network_to_half",
    "prep_param_lists", "to_python_float", "tofp16",
]  # fmt: skip

Tensors = List[torch.Tensor]

clip_grad_norm = nn.utils.clip_grad_norm_


class tofp16(nn.Module):
    """Casts what comes to float16."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The tensor in float16."""
        return input.half()


def convert_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast a module's own floating-point parameters and buffers; its children keep theirs."""
    for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
        if tensor.is_floating_point():
            # The object stays the same: optimizers know it.
            gradient = tensor.grad
            tensor.grad = None
            tensor.data = tensor.data.to(dtype)
            tensor.grad = None if gradient is None else gradient.to(dtype)


def convert_network(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a network, but for its batch normalization."""
    for module in network.modules():
        if not isinstance(module, _BatchNorm):
            convert_module(module, dtype)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return network


def BN_convert_float(module: nn.Module) -> nn.Module:
    """Cast the batch normalization in a network to float32."""
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.float()
    return module


def network_to_half(network: nn.Module) -> nn.Module:
    """The network in float16 but for its batch normalization, which takes inputs of any type."""
    return nn.Sequential(tofp16(), BN_convert_float(network.half()))


class FP16Model(nn.Module):
    """A network in float16 but for its batch normalization, which takes inputs of any type."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = convert_network(network, torch.float16)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Run the network on the inputs in float16."""
        return self.network(*(one.half() for one in inputs))


def prep_param_lists(model: nn.Module, flat_master: bool = False) -> Tuple[Tensors, Tensors]:
    """A model's parameters, and masters of them in float32; with `flat_master`, a single one."""
    parameters: Tensors = [one for one in model.parameters() if one.requires_grad]
    if not flat_master:
        masters = [one.detach().clone().float() for one in parameters]
        return parameters, [master.requires_grad_() for master in masters]
    if len({one.dtype for one in parameters}) > 1:
        raise TypeError(
            "prep_param_lists: the parameters are of several types, which one flat master cannot "
            "be; give flat_master=False"
        )
    flat = torch.cat([one.detach().reshape(-1).float() for one in parameters])
    master = nn.Parameter(flat)
    master.grad = torch.zeros_like(flat)
    return parameters, [master]


def _parts(master: torch.Tensor, like: Tensors) -> Tensors:
    parts = torch.split(master, [one.numel() for one in like])
    return [part.view(one.shape) for part, one in zip(parts, like)]


def model_grads_to_master_grads(
    model_params: Tensors, master_params: Tensors, flat_master: bool = False
) -> None:
    """Copy the gradients of a model to its masters."""
    if flat_master:
        gradient = master_params[0].grad
        assert gradient is not None, "prep_param_lists gave the flat master a gradient"
        for part, model in zip(_parts(gradient, model_params), model_params):
            if model.grad is None:
                part.zero_()
            else:
                part.copy_(model.grad)
        return
    for model, master in zip(model_params, master_params):
        master.grad = None if model.grad is None else model.grad.to(master.dtype, copy=True)


def master_params_to_model_params(
    model_params: Tensors, master_params: Tensors, flat_master: bool = False
) -> None:
    """Copy masters to the parameters of their model."""
    if flat_master:
        master_params = _parts(master_params[0], model_params)
    with torch.no_grad():
        for model, master in zip(model_params, master_params):
            model.copy_(master)


def to_python_float(value: Any) -> float:
    """The number in a tensor, or in a list of one."""
    return float(value.item() if hasattr(value, "item") else value[0])


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
