"""apex's DistributedDataParallel: gradients are averaged over all ranks in every backward pass."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Iterable, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch import nn

from ...torch.buckets import Bucket, Parameters
from ...torch.ranks import Ranks, ranks_of
from .exchange import Exchange, cut
from .start import send_weights

_HALVES = (torch.float16, torch.bfloat16)


class DistributedDataParallel(nn.Module):
    """A module whose gradients are averaged over the ranks of the default process group.

    Every rank begins with rank 0's weights. Gradients travel in buckets, while the backward pass
    still runs. What no rank has a gradient for, gets none.

    Args:
        module: the model, after `amp.initialize`.
        message_size: a bucket travels as soon as it has so many elements.
        delay_allreduce: all buckets travel at the end of the backward pass.
        shared_param: refused, as apex does; shared parameters need nothing.
        allreduce_trigger_params: these parameters end the buckets, and `message_size` does not.
        retain_allreduce_buffers: gradients stay where they travelled, in `allreduce_buffers`.
        allreduce_always_fp32: gradients in half precision travel, and are added up, in float32.
        num_allreduce_streams: so many process groups take turns with the buckets.
        allreduce_communicators: a list of process groups that take turns, and one of streams,
            which is not looked at: a group has its own.
        gradient_average: False gives the sum, or what is left of it by the predivision.
        gradient_predivide_factor: gradients are divided by it before they travel, and by the rest
            of the number of ranks after.
        gradient_average_split_factor: refused; it was the former's name.
        prof: name what happens for torch's profiler.
    """

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10000000,
        delay_allreduce: bool = False,
        shared_param: Optional[bool] = None,
        allreduce_trigger_params: Optional[Iterable[nn.Parameter]] = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: Optional[Tuple[Sequence[Any], Sequence[Any]]] = None,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
        gradient_average_split_factor: Optional[float] = None,
        prof: bool = False,
    ) -> None:
        super().__init__()
        _refuse(shared_param, gradient_average_split_factor)
        if delay_allreduce and allreduce_trigger_params is not None:
            raise ValueError("allreduce_trigger_params is for overlap; leave delay_allreduce away")
        if delay_allreduce and num_allreduce_streams > 1:
            raise ValueError("num_allreduce_streams is for overlap; leave delay_allreduce away")
        self.module = module
        self.message_size, self.delay_allreduce = message_size, delay_allreduce
        self.retain_allreduce_buffers = retain_allreduce_buffers
        self.allreduce_always_fp32 = allreduce_always_fp32
        self.gradient_average = gradient_average
        self.gradient_predivide_factor = gradient_predivide_factor
        self.prof = prof
        self._triggers: Set[int] = {id(one) for one in allreduce_trigger_params or ()}
        self._ranks = _turns(num_allreduce_streams, allreduce_communicators)
        self._known: Parameters = []
        self._exchange = Exchange([], self._ranks, delay_allreduce)
        send_weights(module)
        self._take_in()

    @property
    def allreduce_buffers(self) -> List[torch.Tensor]:
        """With `retain_allreduce_buffers`, the gradients of the last pass, a tensor a bucket."""
        return self._exchange.received if self.retain_allreduce_buffers else []

    def enable_allreduce(self) -> None:
        """Backward passes average gradients again."""
        self._exchange.enabled = True

    def disable_allreduce(self) -> None:
        """Backward passes leave gradients as they are, until `enable_allreduce`."""
        self._exchange.enabled = False

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module."""
        self._take_in()
        return self.module(*inputs, **kwargs)

    def _take_in(self) -> None:
        """Know the parameters that need gradients now; they are the same on every rank."""
        active = [one for one in self.module.parameters() if one.requires_grad]
        if list(map(id, active)) == list(map(id, self._known)):
            return
        self._known = active
        self._exchange.close()
        enabled = self._exchange.enabled
        parts = cut(list(reversed(active)), self.message_size, self._triggers)
        buckets: List[Bucket] = [self._bucket(part) for part in parts]
        self._exchange = Exchange(buckets, self._ranks, self.delay_allreduce)
        self._exchange.enabled = enabled

    def _bucket(self, parameters: Parameters) -> Bucket:
        before = self.gradient_predivide_factor
        divisor = self._ranks[0].size if self.gradient_average else before
        wide = self.allreduce_always_fp32 and parameters[0].dtype in _HALVES
        wire = torch.float32 if wide else None
        return _Bucket(parameters, divisor, wire, before, self.retain_allreduce_buffers, self.prof)


class _Bucket(Bucket):
    """A bucket that may keep its memory, and be seen by the profiler."""

    def __init__(
        self,
        parameters: Parameters,
        divisor: float,
        wire: Optional[torch.dtype],
        before: float,
        retain: bool,
        named: bool,
    ) -> None:
        super().__init__(parameters, divisor, wire, before, marked=True)
        self._retain, self._named = retain, named

    def start(self, ranks: Ranks) -> None:
        with self._span("start"):
            super().start(ranks)

    def finish(self, held: Optional[Sequence[float]] = None) -> torch.Tensor:
        with self._span("finish"):
            flat = super().finish(held)
            if not self._retain:
                return flat
            flat = flat[: -len(self.parameters)]
            if self.parameters[0].dtype in _HALVES:
                flat = flat.to(self.parameters[0].dtype)
            for parameter, part in self.parts(flat):
                if parameter.grad is not None:
                    parameter.grad = torch.view_as_complex(part) if parameter.is_complex() else part
            return flat

    def _span(self, what: str) -> Any:
        if not self._named:
            return nullcontext()
        return torch.profiler.record_function(f"ringcomm.apex: {what} a bucket")


def _refuse(shared_param: Optional[bool], split_factor: Optional[float]) -> None:
    if shared_param is not None:
        raise ValueError(
            "shared_param is no argument any more: shared parameters need nothing, and "
            "delay_allreduce=True sends all gradients at the end of the backward pass"
        )
    if split_factor is not None:
        raise ValueError("gradient_average_split_factor is now gradient_predivide_factor")


def _turns(streams: int, communicators: Optional[Tuple[Sequence[Any], Any]]) -> List[Ranks]:
    """The ranks of each of the groups that take turns."""
    everyone = ranks_of(None)  # says what to do where there is no process group
    if communicators is None and streams == 1:
        return [everyone]
    groups: List[Any] = list(communicators[0]) if communicators else []
    if communicators is None:
        groups = [dist.new_group() for _ in range(streams)]
    if streams < 2 or len(groups) != streams:
        raise ValueError(
            f"allreduce_communicators has {len(groups)} groups, and num_allreduce_streams is "
            f"{streams}; give as many, two at least"
        )
    return [ranks_of(group) for group in groups]
