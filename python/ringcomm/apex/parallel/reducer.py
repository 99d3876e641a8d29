"""`Reducer`: gradients are averaged when the script says so."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple, Union

import torch
from torch import nn

from ...torch import reduce_gradients
from ...torch.ranks import ranks_of
from .start import send_weights


class Reducer:
    """Averages the gradients of a module, or these gradients, over all ranks at each `reduce()`.

    A module's parameters become rank 0's at once. Who gives gradients sees to that himself.
    """

    def __init__(self, module_or_grads_list: Union[nn.Module, Any]) -> None:
        self.module = module_or_grads_list if isinstance(module_or_grads_list, nn.Module) else None
        self.grads: List[torch.Tensor] = []
        if self.module is not None:
            send_weights(self.module)
        else:
            _collect(module_or_grads_list, self.grads)

    def reduce(self) -> None:
        """Average; every rank makes the call."""
        if self.module is not None:
            reduce_gradients(self.module)
            return
        alike: Dict[Tuple[torch.dtype, torch.device], List[torch.Tensor]] = {}
        for gradient in self.grads:
            alike.setdefault((gradient.dtype, gradient.device), []).append(gradient.detach())
        ranks = ranks_of(None)
        for group in alike.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in group])
            ranks.all_reduce(flat)
            flat.div_(ranks.size)
            parts = torch.split(flat, [gradient.numel() for gradient in group])
            for gradient, part in zip(group, parts):
                gradient.copy_(part.view(gradient.shape))


def _collect(given: Any, found: List[torch.Tensor]) -> None:
    if isinstance(given, torch.Tensor):
        found.append(given)
        return
    try:
        members = iter(given)
    except TypeError:
        raise TypeError(f"Reducer takes a module, or tensors in lists; got {given!r}") from None
    for member in members:
        _collect(member, found)
