"""What amp adds to an optimizer: masters, gradients without their scale, and skipped steps.

Before a backward pass the gradients of earlier passes are put aside, so that what the pass leaves
is all scaled alike. After it the scale is taken away, and what was put aside is added.
"""

from __future__ import annotations

import functools
import types
from typing import Any, List, Optional, Tuple

import torch

from .casting import HALVES
from .masters import make_master, refresh
from .properties import Properties
from .scaler import LossScaler, multiply
from .state import maybe_print

Gradient = Optional[torch.Tensor]


class AmpStash:
    """The state of one optimizer; `optimizer._amp_stash`, as in apex."""

    def __init__(self, optimizer: Any, properties: Properties) -> None:
        self._optimizer = optimizer
        self._with_masters = bool(properties.master_weights)
        #: Why a step takes no closure: a closure's gradients come inside of it, when nobody can
        #: skip it any more.
        self._one_pass = self._with_masters or properties.loss_scale == "dynamic"
        #: Weights in half precision with their masters, and parameters that are their own.
        self._pairs: List[Tuple[torch.Tensor, torch.Tensor]] = []
        self._own: List[torch.Tensor] = []
        self._put_aside: List[Gradient] = []
        self._fresh = True
        #: Whose scale the gradients have that passes with `delay_unscale` left.
        self._held: Optional[Tuple[LossScaler, float]] = None
        self._skips: Optional[str] = None
        for group in optimizer.param_groups:
            self._take(group)
        for name in ("step", "zero_grad", "add_param_group"):
            inner = getattr(optimizer, name)
            # A scheduler that comes later asks for a bound method.
            method = _bound(getattr(self, name), inner)
            setattr(optimizer, name, types.MethodType(method, optimizer))

    def _take(self, group: Any) -> None:
        """Put masters in the place of a group's weights in half precision."""
        for number, parameter in enumerate(group["params"]):
            if self._with_masters and parameter.dtype in HALVES:
                master = make_master(parameter)
                group["params"][number] = master
                self._pairs.append((parameter, master))
                slots = self._optimizer.state
                if parameter in slots:
                    slots[master] = slots.pop(parameter)
                parameter = master
            else:
                self._own.append(parameter)
            _follow(self._optimizer.state.get(parameter), parameter)

    # Around a backward pass.

    def begin(self, scaler: LossScaler) -> None:
        """Before a backward pass with this scaler."""
        if self._fresh:
            # Since they were made, DistributedDataParallel may have sent rank 0's weights.
            self._fresh = False
            for weight, master in self._pairs:
                refresh(weight, master)
        if self._held is not None:
            earlier, scale = self._held
            if (earlier, scale) == (scaler, scaler.loss_scale()):
                return
            # Two scales do not add up: the earlier passes end here.
            self.end(earlier, [self])
        for weight, _ in self._pairs:
            weight.grad = None
        self._put_aside = [parameter.grad for parameter in self._own]
        for parameter in self._own:
            parameter.grad = None

    def hold(self, scaler: LossScaler) -> None:
        """After a backward pass with `delay_unscale`."""
        self._held = (scaler, scaler.loss_scale())

    def drop(self) -> None:
        """After a backward pass that failed: as if it had not been."""
        if self._held is None:
            self._add_up([])

    @staticmethod
    def end(scaler: LossScaler, stashes: List["AmpStash"], late: bool = False) -> None:
        """After a backward pass: unscale, and skip the step where a gradient has overflowed. With
        `late` nobody looks whether one has."""
        found = [stash._unscale(scaler, scaler.dynamic and not late) for stash in stashes]
        if late or not scaler.update(any(found)):
            return
        for stash in stashes:
            stash._skips = f"loss {scaler.loss_id} has the scale {scaler.loss_scale()} from now on"

    def _unscale(self, scaler: LossScaler, look: bool) -> bool:
        scale = scaler.loss_scale() if self._held is None else self._held[1]
        self._held = None
        wide = [
            (master, weight.grad.to(torch.float32, copy=True))
            for weight, master in self._pairs
            if weight.grad is not None
        ]
        gradients = [gradient for _, gradient in wide]
        gradients += [parameter.grad for parameter in self._own if parameter.grad is not None]
        overflow = False
        if look or scale != 1.0:
            overflow = multiply([_values(one) for one in gradients], 1.0 / scale, look)
        self._add_up(wide)
        return overflow

    def _add_up(self, wide: List[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Add what earlier passes left."""
        for master, gradient in wide:
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        for parameter, earlier in zip(self._own, self._put_aside):
            if earlier is not None:
                now = parameter.grad
                parameter.grad = earlier if now is None else now.add_(earlier)
        self._put_aside = []

    # What the optimizer's calls do now.

    def step(self, inner: Any, *arguments: Any, **named: Any) -> Any:
        """Step, unless gradients have overflowed; then the weights follow their masters."""
        closure = arguments[0] if arguments else named.get("closure")
        if closure is not None and self._one_pass:
            raise RuntimeError(
                "step() takes no closure under amp with master weights or a dynamic loss scale: "
                "call backward() within amp.scale_loss, and then step() alone"
            )
        if self._held is not None:
            raise RuntimeError(
                "step() after a backward pass with delay_unscale=True: the gradients still have "
                "their scale; leave delay_unscale away in the last pass before a step"
            )
        answer = None
        if self._skips is not None:
            maybe_print(f"Gradient overflow: this step is skipped, and {self._skips}")
            self._skips = None
        else:
            answer = inner(*arguments, **named)
            if self._pairs:
                weights, masters = zip(*self._pairs)
                with torch.no_grad():
                    torch._foreach_copy_(weights, masters)
        self._clear_masters()
        return answer

    def zero_grad(self, inner: Any, *arguments: Any, **named: Any) -> None:
        """As the optimizer's, on weights and masters."""
        inner(*arguments, **named)
        keep = named.get("set_to_none", arguments[0] if arguments else True) is False
        for weight, _ in self._pairs:
            if keep and weight.grad is not None:
                weight.grad = weight.grad.detach().zero_()
            else:
                weight.grad = None
        self._clear_masters()
        self._put_aside, self._held = [], None

    def add_param_group(self, inner: Any, param_group: Any) -> None:
        """As the optimizer's; weights in half precision get masters."""
        inner(param_group)
        self._take(self._optimizer.param_groups[-1])

    def _clear_masters(self) -> None:
        # A script's model.zero_grad() does not reach these.
        for _, master in self._pairs:
            master.grad = None


def _bound(function: Any, inner: Any) -> Any:
    """A method that calls the function with the optimizer's own method, and not with itself."""

    @functools.wraps(inner)
    def method(_: Any, *arguments: Any, **named: Any) -> Any:
        return function(inner, *arguments, **named)

    return method


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """Where a gradient's numbers lie."""
    return gradient._values() if gradient.is_sparse else gradient


def _follow(slots: Any, parameter: torch.Tensor) -> None:
    """Cast what an optimizer that has stepped before knows of a parameter."""
    for name, value in (slots or {}).items():
        if name != "step" and isinstance(value, torch.Tensor) and value.is_floating_point():
            slots[name] = value.to(parameter.dtype)


def stash_of(optimizer: Any) -> AmpStash:
    """What amp has added to an optimizer; says of another one what to do."""
    stash: Optional[AmpStash] = getattr(optimizer, "_amp_stash", None)
    if stash is None:
        raise RuntimeError(
            f"amp.scale_loss: this {type(optimizer).__name__} has not been through "
            "amp.initialize; give it there, and go on with the optimizer that comes back"
        )
    return stash
