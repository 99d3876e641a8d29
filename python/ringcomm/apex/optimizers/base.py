"""What apex's optimizers have in common, and torch's have not.

What the constructor said is in `defaults`, with which an optimizer is copied and pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Optional, Tuple

import torch

if TYPE_CHECKING:
    _Optimizer = torch.optim.Optimizer
else:
    _Optimizer = object


class Zeroing(_Optimizer):
    """An optimizer whose constructor said what `zero_grad` makes of gradients."""

    def zero_grad(self, set_to_none: Optional[bool] = None) -> None:
        """Forget gradients, or make them zero: as the constructor's `set_grad_none` says."""
        super().zero_grad(self.defaults["set_grad_none"] if set_to_none is None else set_to_none)


class DecayingApart(Zeroing):
    """An optimizer that can take weight decay from the weights, past its gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make a step."""
        inner: Any = super().step
        if not self.defaults["decays_apart"]:
            return inner(closure)
        loss = loss_of(closure)
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for parameter, _ in with_gradients(group, type(self).__name__):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            group["weight_decay"] = 0
        inner()
        for group, decay in zip(self.param_groups, decays):
            group["weight_decay"] = decay
        return loss


def loss_of(closure: Any) -> Any:
    """What a closure returns, if there is one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def with_gradients(group: Any, name: str) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    """The parameters of a group that have gradients, none of which is sparse, with these."""
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            raise RuntimeError(f"{name} takes no sparse gradients; use torch.optim.SparseAdam")
        yield parameter, parameter.grad


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or in float64 where it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def refuse_amsgrad(name: str, amsgrad: bool) -> None:
    """apex's optimizers have no such variant."""
    if amsgrad:
        raise RuntimeError(f"{name} has no AMSGrad variant; use torch.optim.Adam(amsgrad=True)")
