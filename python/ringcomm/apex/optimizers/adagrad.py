"""FusedAdagrad: torch's Adagrad."""

from __future__ import annotations

from typing import Any

import torch

from .base import DecayingApart


class FusedAdagrad(DecayingApart, torch.optim.Adagrad):
    """torch's Adagrad.

    Args:
        set_grad_none: what `zero_grad` does.
        adagrad_w_mode: weight decay is taken from the weights, and not added to gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        super().__init__(params, lr, weight_decay=weight_decay, eps=eps)
        self.defaults.update(decays_apart=adagrad_w_mode, set_grad_none=set_grad_none)
