"""`TorchState`: models, optimizers, samplers and Python objects that ranks have in common."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional, Tuple, Type

import torch

from ... import objects
from ...elastic import ObjectState
from ...job import rank
from ..state import broadcast_optimizer_state, broadcast_parameters
from .sampler import ElasticSampler


class StateHandler:
    """How a value is saved, restored and synchronized, which has a `state_dict`."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        """Keep a copy of its state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to the copy."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Give every rank rank 0's state."""
        self.value.load_state_dict(objects.broadcast_object(self.value.state_dict()))

    def reset(self) -> None:
        """Adapt to another number of ranks."""

    def set_value(self, value: Any) -> None:
        """There is another value from now on."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Of a model."""

    def sync(self) -> None:
        """Give every rank rank 0's weights and statistics."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateHandler):
    """Of an optimizer."""

    def restore(self) -> None:
        """Go back to the copy; gradients that were under way are forgotten."""
        self.value.load_state_dict(copy.deepcopy(self._saved))
        self.value.zero_grad()

    def sync(self) -> None:
        """Give every rank rank 0's settings, momenta and steps."""
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(StateHandler):
    """Of an `ElasticSampler`."""

    def reset(self) -> None:
        """Share what is left among the ranks that there are now."""
        self.value.reset()


_registry: List[Tuple[Type[Any], Type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def _handler(value: Any) -> Optional[StateHandler]:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        # Schedulers and scalers: a copy would belong to a copy of the optimizer.
        return StateHandler(value)
    return None


class TorchState(ObjectState):
    """What a training with PyTorch is made of; each argument becomes an attribute.

    Modules, optimizers and samplers, and what else has a `state_dict`, keep their identity: their
    states are saved, restored and broadcast. Other values are handled as by `ObjectState`.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        self._handlers: Dict[str, StateHandler] = {}
        plain: Dict[str, Any] = {}
        for name, value in {**kwargs, "model": model, "optimizer": optimizer}.items():
            handler = _handler(value)
            if handler is None:
                plain[name] = value
            else:
                self._handlers[name] = handler
                object.__setattr__(self, name, value)
        super().__init__(objects.broadcast_object, rank, **plain)

    def save(self) -> None:
        """Keep copies of all."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Go back to the copies."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Give every rank what rank 0 has, and save it."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        for handler in self._handlers.values():
            handler.save()

    def reset(self) -> None:
        """Adapt to another number of ranks."""
        for handler in self._handlers.values():
            handler.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
