"""LARC: each parameter's learning rate follows from the norms of its weights and its gradient."""

from __future__ import annotations

from typing import Any, Dict

import torch


class LARC:
    """An optimizer, whose steps LARC makes smaller (https://arxiv.org/abs/1708.03888).

    Args:
        trust_coefficient: how large a part of a weight a step may be.
        clip: the learning rate is at most the optimizer's; False multiplies both.
        eps: what keeps a quotient finite.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trust_coefficient: float = 0.02,
        clip: bool = True,
        eps: float = 1e-8,
    ) -> None:
        self.optim = optimizer
        self.trust_coefficient, self.clip, self.eps = trust_coefficient, clip, eps

    @property
    def state(self) -> Any:
        """The optimizer's."""
        return self.optim.state

    @property
    def param_groups(self) -> Any:
        """The optimizer's."""
        return self.optim.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.optim.param_groups = groups

    def __repr__(self) -> str:
        return f"LARC({self.optim!r})"

    def state_dict(self) -> Dict[str, Any]:
        """The optimizer's."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Give the optimizer this state."""
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """As the optimizer's."""
        self.optim.zero_grad(*arguments, **named)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As the optimizer's."""
        self.optim.add_param_group(param_group)

    @torch.no_grad()
    def step(self) -> None:
        """Make the gradients what leads to LARC's step, and let the optimizer step."""
        decays = [group.get("weight_decay", 0.0) for group in self.param_groups]
        for group, decay in zip(self.param_groups, decays):
            for parameter in group["params"]:
                self._scale(parameter, group["lr"], decay)
            # It is in the gradients.
            group["weight_decay"] = 0.0
        self.optim.step()
        for group, decay in zip(self.param_groups, decays):
            group["weight_decay"] = decay

    def _scale(self, parameter: torch.Tensor, rate: float, decay: float) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        weight, slope = parameter.norm(), gradient.norm()
        if weight == 0 or slope == 0:
            return
        own = self.trust_coefficient * weight / (slope + weight * decay + self.eps)
        factor = (own / rate).clamp(max=1.0) if self.clip else own
        gradient.add_(parameter, alpha=decay).mul_(factor)
