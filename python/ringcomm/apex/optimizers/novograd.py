"""FusedNovoGrad: Adam, with one second average for each parameter's norm (arXiv 1905.11286)."""

from __future__ import annotations

import math
from typing import Any, Tuple

import torch

from .base import Zeroing, loss_of, refuse_amsgrad, wide, with_gradients


class FusedNovoGrad(Zeroing, torch.optim.Optimizer):
    """NovoGrad; torch has none. Averages are kept in float32, or float64.

    Args:
        bias_correction: make up for averages that begin with zero.
        amsgrad: refused, as apex does.
        reg_inside_moment: gradients are divided by their norm, and weights decay, before the
            average is taken, and not after.
        grad_averaging: the first average takes the rest of beta1 of a gradient, and not all of it.
        norm_type: 2, or 0 for the greatest element.
        init_zero: the average of norms begins with zero, and not with the first norm.
        set_grad_none: what `zero_grad` does.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        refuse_amsgrad("FusedNovoGrad", amsgrad)
        if norm_type not in (0, 2):
            raise RuntimeError(f"FusedNovoGrad: norm_type is 2, or 0 for infinity; got {norm_type}")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "norm_type": norm_type,
            "init_zero": init_zero,
        }
        super().__init__(params, defaults)
        self.defaults.update(reg_inside_moment=reg_inside_moment, set_grad_none=set_grad_none)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make a step."""
        loss = loss_of(closure)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter, gradient in with_gradients(group, "FusedNovoGrad"):
                self._update(group, parameter, gradient)
        return loss

    def _update(self, group: Any, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        slots, decay, count = self.state[weight], group["weight_decay"], group["step"]
        beta1, beta2 = group["betas"]
        values, gradient = wide(weight), wide(gradient)
        norm = gradient.norm() if group["norm_type"] == 2 else gradient.abs().max()
        if not slots:
            slots["exp_avg"] = torch.zeros_like(values)
            # The norm itself, and not its square: so both norms are kept alike.
            slots["exp_avg_sq"] = torch.zeros_like(norm) if group["init_zero"] else norm.clone()
        kept = slots["exp_avg_sq"]
        if group["norm_type"] == 2:
            kept.square_().mul_(beta2).add_(norm.square(), alpha=1 - beta2).sqrt_()
        else:
            kept.mul_(beta2).add_(norm, alpha=1 - beta2)
        corrects = group["bias_correction"]
        first = 1 - beta1**count if corrects else 1.0
        second = math.sqrt(1 - beta2**count) if corrects else 1.0
        size = kept / second + group["eps"]
        inside = self.defaults["reg_inside_moment"]
        if inside:
            gradient = gradient / size + decay * values
        mean = slots["exp_avg"]
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        update = mean / first
        if not inside:
            update = update / size + decay * values
        weight.copy_(values - group["lr"] * update)
