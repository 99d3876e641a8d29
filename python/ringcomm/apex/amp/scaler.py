"""The scale of a loss: fixed, or halved when gradients overflow and doubled after a while."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union

import torch

#: apex's: where a dynamic scale begins, and after how many steps without an overflow it doubles.
FIRST, WINDOW = 2.0**16, 2000


class LossScaler:
    """One loss's scale."""

    def __init__(
        self,
        loss_scale: Union[str, float],
        init_scale: float = FIRST,
        scale_factor: float = 2.0,
        scale_window: int = WINDOW,
        min_loss_scale: Optional[float] = None,
        max_loss_scale: float = 2.0**24,
        loss_id: int = 0,
    ) -> None:
        self.loss_id = loss_id
        self.dynamic = loss_scale == "dynamic"
        self._loss_scale = min(max_loss_scale, init_scale) if self.dynamic else float(loss_scale)
        self._factor, self._window = scale_factor, scale_window
        self._min_loss_scale, self._max_loss_scale = min_loss_scale, max_loss_scale
        self._unskipped = 0

    def loss_scale(self) -> float:
        """The scale now."""
        return self._loss_scale

    def update(self, overflow: bool) -> bool:
        """Let the scale follow a backward pass; whether the optimizer has to skip its step."""
        if overflow and self.dynamic:
            self._loss_scale = max(self._loss_scale / self._factor, self._min_loss_scale or 0.0)
            self._unskipped = 0
            return True
        self._unskipped += 1
        if self.dynamic and self._unskipped == self._window:
            self._loss_scale = min(self._loss_scale * self._factor, self._max_loss_scale)
            self._unskipped = 0
        return False


def multiply(gradients: List[torch.Tensor], factor: float, look: bool) -> bool:
    """Multiply gradients where they lie. With `look`, whether one of them is not finite."""
    alike: Dict[Tuple[torch.device, torch.dtype], List[torch.Tensor]] = {}
    for gradient in gradients:
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    found: Dict[torch.device, torch.Tensor] = {}
    # What torch's GradScaler calls; it does both in one pass over the memory.
    unscale: Any = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_")
    for (device, _), group in alike.items():
        if device not in found:
            found[device] = torch.zeros((), dtype=torch.float32, device=device)
        unscale(group, found[device], torch.full((), factor, dtype=torch.float32, device=device))
    return look and any(bool(one.item()) for one in found.values())
