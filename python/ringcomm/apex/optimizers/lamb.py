"""FusedLAMB: Adam, each of whose steps is as large as the weights allow (arXiv 1904.00962)."""

from __future__ import annotations

from typing import Any, Tuple

import torch

from .base import Zeroing, loss_of, refuse_amsgrad, wide, with_gradients


class FusedLAMB(Zeroing, torch.optim.Optimizer):
    """LAMB; torch has none. Averages are kept in float32, or float64.

    Args:
        bias_correction: make up for averages that begin with zero.
        amsgrad: refused, as apex does.
        adam_w_mode: weight decay is taken from the weights, and not added to gradients.
        grad_averaging: the first average takes the rest of beta1 of a gradient, and not all of it.
        set_grad_none: what `zero_grad` does.
        max_grad_norm: what the norm of all gradients together is cut down to.
        use_nvlamb: the norms of weights also count where there is no weight decay.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        refuse_amsgrad("FusedLAMB", amsgrad)
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)
        self.defaults.update(
            adam_w_mode=adam_w_mode, set_grad_none=set_grad_none, use_nvlamb=use_nvlamb
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make a step."""
        loss = loss_of(closure)
        pairs = [list(with_gradients(group, "FusedLAMB")) for group in self.param_groups]
        norms = [wide(gradient).norm() for group in pairs for _, gradient in group]
        if not norms:
            return loss
        device = norms[0].device
        norm = torch.stack([one.to(device) for one in norms]).norm()
        cut = (norm / self.defaults["max_grad_norm"]).clamp(min=1.0)
        for group, members in zip(self.param_groups, pairs):
            group["step"] = group.get("step", 0) + 1
            for parameter, gradient in members:
                self._update(group, parameter, gradient, cut.to(parameter.device))
        return loss

    def _update(
        self, group: Any, weight: torch.Tensor, gradient: torch.Tensor, cut: torch.Tensor
    ) -> None:
        slots, decay, count = self.state[weight], group["weight_decay"], group["step"]
        beta1, beta2 = group["betas"]
        values, gradient = wide(weight), wide(gradient) / cut
        if not slots:
            slots["exp_avg"] = torch.zeros_like(values)
            slots["exp_avg_sq"] = torch.zeros_like(values)
        if not self.defaults["adam_w_mode"]:
            gradient = gradient + decay * values
        mean, square = slots["exp_avg"], slots["exp_avg_sq"]
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrects = group["bias_correction"]
        first = 1 - beta1**count if corrects else 1.0
        second = 1 - beta2**count if corrects else 1.0
        update = (mean / first) / ((square / second).sqrt() + group["eps"])
        if self.defaults["adam_w_mode"]:
            update = update + decay * values
        if decay or self.defaults["use_nvlamb"]:
            large, step = values.norm(), update.norm()
            update = update * torch.where((large > 0) & (step > 0), large / step, 1.0)
        weight.copy_(values - group["lr"] * update)
