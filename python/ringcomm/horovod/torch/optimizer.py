"""Horovod's optimizer: gradients are averaged over all ranks before every step.

They travel in buckets, while the backward pass still runs. Buckets are sent in one order on every
rank, that of the parameters backwards, in which a pass usually reaches them; one that is complete
earlier waits for those before it. So ranks may differ in which parameters they use.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import torch

from ..._native import ReduceOp
from ...torch import Compression
from ...torch.buckets import Bucket, Parameters, cut
from ..job import size
from ..operations import Average, linear
from .group import ranks
from .state import load_in_place

#: Bytes of a bucket: a fifth of a millisecond's work for an all-reduce, so that what a call costs
#: by itself does not count, and most of a model's buckets leave before the backward pass ends.
BUCKET_BYTES = 4 << 20


def when_arrived(parameter: Any, function: Callable[[torch.Tensor], None]) -> None:
    """Call this each time that a gradient of the parameter is complete."""
    parameter.register_post_accumulate_grad_hook(function)


class Exchange:
    """The gradients of some parameters, on their way between ranks once in so many passes."""

    def __init__(
        self,
        parameters: Callable[[], Parameters],
        passes: int,
        divisor: int,
        compression: Optional[torch.dtype],
        sparse_as_dense: bool,
    ) -> None:
        self.passes, self._sparse_as_dense = passes, sparse_as_dense
        self._parameters, self._divisor, self._compression = parameters, divisor, compression
        self._buckets: List[Bucket] = []
        self._bucket_of: Dict[int, int] = {}
        self._take_in()
        self._begin()

    def _take_in(self) -> None:
        """Know the parameters that have come, or have come to need gradients. They are the same
        on every rank, as the calls are that made them so."""
        new = [one for one in self._parameters() if id(one) not in self._bucket_of]
        made = [
            Bucket(part, self._divisor, self._compression)
            for part in cut(list(reversed(new)), BUCKET_BYTES)
        ]
        for number, bucket in enumerate(made, len(self._buckets)):
            self._bucket_of.update((id(one), number) for one in bucket.parameters)
        self._buckets += made
        for parameter in new:
            if self._sparse_as_dense:
                when_arrived(parameter, _dense)
            when_arrived(parameter, self._arrived)

    def _begin(self) -> None:
        #: Passes that each parameter still has to see, parameters that each bucket waits for, and
        #: how many buckets are sent.
        self._left: Dict[int, int] = {}
        self._missing = [len(bucket.parameters) for bucket in self._buckets]
        self._sent = 0

    def _arrived(self, parameter: torch.Tensor) -> None:
        """A backward pass has added to this parameter's gradient."""
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ValueError(
                f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse; give "
                "DistributedOptimizer sparse_as_dense=True"
            )
        key = id(parameter)
        left = self._left.get(key, self.passes) - 1
        if left < 0:
            raise RuntimeError(
                f"more than {self.passes} backward passes before step(): give "
                "DistributedOptimizer as many as there are, as backward_passes_per_step"
            )
        self._left[key] = left
        if left == 0:
            number = self._bucket_of[key]
            self._missing[number] -= 1
            while self._sent < len(self._buckets) and not self._missing[self._sent]:
                self._send_next()

    def _send_next(self) -> None:
        self._buckets[self._sent].start(ranks())
        self._sent += 1

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has been since `finish`: this rank or another may have sent."""
        return bool(self._left)

    def finish(self) -> None:
        """Send what is not sent, and wait for all of it. What no longer needs a gradient gets
        none."""
        self._take_in()
        while self._sent < len(self._buckets):
            self._send_next()
        for bucket in self._buckets:
            bucket.finish([parameter.requires_grad for parameter in bucket.parameters])
        self._begin()


if TYPE_CHECKING:
    _Optimizer = torch.optim.Optimizer
else:
    _Optimizer = object


class Distributed(_Optimizer):
    """What `DistributedOptimizer` adds to the class of an optimizer."""

    _exchange: Exchange
    _averages_in_step: bool

    def synchronize(self) -> None:
        """Average the gradients now, as before they are clipped; then call `step` within
        `skip_synchronize`."""
        self._exchange.finish()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, `step` does not average."""
        self._averages_in_step = False
        try:
            yield
        finally:
            self._averages_in_step = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """So many backward passes come before each step from now on."""
        self._exchange.passes = passes

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Average the gradients, also after `synchronize`, and step."""
        stepped: Callable[..., Any] = super().step
        if not self._averages_in_step:
            return stepped(closure)
        if closure is not None:
            return stepped(lambda: self._averaged(closure))
        self.synchronize()
        return stepped()

    def _averaged(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        self.synchronize()
        return loss

    def zero_grad(self, *arguments: Any, **more: Any) -> None:
        """As the optimizer's; not while gradients are under way."""
        self._refuse_under_way("zero_grad()")
        super().zero_grad(*arguments, **more)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As the optimizer's; not while gradients are under way."""
        self._refuse_under_way("load_state_dict()")
        load_in_place(self, super().load_state_dict, state_dict)

    def _refuse_under_way(self, call: str) -> None:
        if self._exchange.under_way:
            raise AssertionError(
                f"{call} after backward() and before step() or synchronize(): gradients are under "
                "way to the other ranks"
            )


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    compression: Optional[torch.dtype] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
) -> Any:
    """The optimizer, whose `step` first averages the gradients over all ranks.

    Args:
        named_parameters: not needed; which parameters those are, the optimizer knows.
        compression: what gradients are rounded to on their way. They are divided first.
        backward_passes_per_step: how many passes add up before each step. Their gradients are
            summed, as torch sums them: divide the loss.
        op: `Average` or `Sum` over ranks.
        gradient_predivide_factor, num_groups, groups: accepted, and without effect: gradients
            travel in buckets, and are divided where that loses least.
        sparse_as_dense: make sparse gradients dense.
    """
    linear(op, "gradients")
    kind = type(optimizer)
    made: Any = object.__new__(type(kind.__name__, (Distributed, kind), {}))
    # A scheduler that was made before has its own step there.
    made.__dict__.update({name: one for name, one in vars(optimizer).items() if name != "step"})

    def parameters() -> Parameters:
        """Those of the optimizer that need gradients now."""
        return [one for group in made.param_groups for one in group["params"] if one.requires_grad]

    divisor = size() if op == Average else 1
    made._exchange = Exchange(
        parameters, backward_passes_per_step, divisor, compression, sparse_as_dense
    )
    made._averages_in_step = True
    return made


def _dense(parameter: torch.Tensor) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()
