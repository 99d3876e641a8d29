"""FusedAdam: torch's Adam and AdamW."""

from __future__ import annotations

from typing import Any, Tuple

import torch

from .base import DecayingApart, loss_of, refuse_amsgrad, with_gradients

#: From such a step on the corrections of torch's Adam are 1: 0.9999 to its power is e^-1000.
_UNCORRECTED = 1e7


class FusedAdam(DecayingApart, torch.optim.Adam):
    """torch's AdamW or, with `adam_w_mode=False`, its Adam.

    Args:
        bias_correction: False leaves the averages as they are, small at the beginning. Steps are
            then counted from ten million, where torch's corrections are 1.
        adam_w_mode: weight decay is taken from the weights, and not added to gradients.
        amsgrad: refused, as apex does.
        set_grad_none: what `zero_grad` does.
        capturable: as torch's, for CUDA graphs.
        master_weights: refused; amp's O2 has them.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        refuse_amsgrad("FusedAdam", amsgrad)
        if master_weights:
            raise RuntimeError(
                'FusedAdam keeps no master weights; amp.initialize(opt_level="O2") does'
            )
        super().__init__(params, lr, betas, eps, weight_decay, capturable=capturable)
        self.defaults.update(decays_apart=adam_w_mode, set_grad_none=set_grad_none)
        self.defaults["bias_correction"] = bias_correction
        for group in self.param_groups:
            group.setdefault("bias_correction", bias_correction)

    def step(
        self,
        closure: Any = None,
        grads: Any = None,
        output_params: Any = None,
        scale: Any = None,
        grad_norms: Any = None,
        grad_scaler: Any = None,
    ) -> Any:
        """Make a step. Arguments but the closure are refused: apex's older releases had them."""
        if any(one is not None for one in (grads, output_params, scale, grad_norms, grad_scaler)):
            raise RuntimeError("FusedAdam.step takes a closure, or nothing; amp scales the loss")
        loss = loss_of(closure)
        for group in self.param_groups:
            if not group["bias_correction"]:
                self._leave_uncorrected(group)
        super().step()
        return loss

    def _leave_uncorrected(self, group: Any) -> None:
        for parameter, _ in with_gradients(group, "FusedAdam"):
            slots = self.state[parameter]
            if not slots:
                place = parameter.device if group["capturable"] else torch.device("cpu")
                slots["step"] = torch.tensor(_UNCORRECTED, dtype=torch.float32, device=place)
                for name in ("exp_avg", "exp_avg_sq"):
                    slots[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
