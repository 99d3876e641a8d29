"""FusedSGD: torch's SGD."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .base import DecayingApart


class FusedSGD(DecayingApart, torch.optim.SGD):
    """torch's SGD.

    Args:
        lr: the learning rate, unless every group says its own.
        wd_after_momentum: weight decay is taken from the weights, and not added to gradients.
        materialize_master_grads: without effect: amp's masters have gradients.
        set_grad_none: what `zero_grad` does.
    """

    def __init__(
        self,
        params: Any,
        lr: Optional[float] = None,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        params = list(params)
        if lr is None and not all(isinstance(one, dict) and "lr" in one for one in params):
            raise ValueError("FusedSGD needs a learning rate, as lr")
        super().__init__(
            params, 0.0 if lr is None else lr, momentum, dampening, weight_decay, nesterov
        )
        self.defaults.update(decays_apart=wd_after_momentum, set_grad_none=set_grad_none)
