"""Horovod's optimizer: gradients are reduced over all ranks before every step; `exchange` does it.

Ranks may differ in the order in which gradients come, in which parameters they use, and in the
order in which they step several optimizers.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import torch

from ...torch.buckets import Parameters
from ..operations import Adasum, Average, Op, linear
from ..process_sets import ProcessSet, global_process_set
from .compression import Compression, compress, decompress
from .exchange import Exchange, Groups, How, Names
from .reductions import grouped_allreduce_
from .state import load_in_place

if TYPE_CHECKING:
    _Optimizer = torch.optim.Optimizer
else:
    _Optimizer = object


class Distributed(_Optimizer):
    """What `DistributedOptimizer` adds to the class of an optimizer."""

    #: None on ranks that are not in the optimizer's process set.
    _exchange: Optional[Exchange]
    _parameter_names: Names
    _averages_in_step: bool
    _synchronized: bool

    def synchronize(self) -> None:
        """Reduce the gradients now, as before they are clipped; then call `step` within
        `skip_synchronize`."""
        if self._exchange is not None:
            self._exchange.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, `step` does not reduce."""
        self._averages_in_step = False
        try:
            yield
        finally:
            self._averages_in_step = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """So many backward passes come before each step from now on."""
        if self._exchange is not None:
            self._exchange.passes = passes

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Reduce the gradients, also after `synchronize`, and step."""
        stepped: Callable[..., Any] = super().step
        if not self._averages_in_step:
            self._synchronized = False
            return stepped(closure)
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): gradients are reduced twice"
            )
        if closure is not None:
            result = stepped(lambda: self._averaged(closure))
        else:
            self.synchronize()
            result = stepped()
        self._synchronized = False
        return result

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
        if self._exchange is not None and self._exchange.under_way:
            raise AssertionError(
                f"{call} after backward() and before step() or synchronize(): gradients are under "
                "way to the other ranks"
            )


class DistributedAdasum(_Optimizer):
    """What `DistributedOptimizer` adds under `op=Adasum`: every rank steps by itself, and the ways
    that they have gone are combined."""

    _parameter_names: Names
    _compression: Any
    _process_set: ProcessSet

    def synchronize(self) -> None:
        """Nothing is reduced before `step`."""

    def skip_synchronize(self) -> Any:
        """Refused, as Horovod does: gradients are not what is reduced."""
        raise AssertionError("an optimizer with op=Adasum reduces steps, and cannot skip that")

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Step, and go on from where all ranks together have come to."""
        if not self._process_set.included():
            return super().step(closure)
        parameters = [one for group in self.param_groups for one in group["params"]]
        begun = [one.detach().clone() for one in parameters]
        result = super().step(closure)
        pairs = [
            compress(self._compression, one.detach() - start)
            for one, start in zip(parameters, begun)
        ]
        ways = grouped_allreduce_(
            [sent.contiguous() for sent, _ in pairs], op=Adasum, process_set=self._process_set
        )
        for one, start, way, (_, ctx) in zip(parameters, begun, ways, pairs):
            one.detach().copy_(start + decompress(self._compression, way, ctx))
        return result


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer, whose `step` first reduces the gradients over all ranks.

    Args:
        named_parameters: the parameters' names, all of them or none.
        compression: what gradients are made of on their way: `Compression.none`, `fp16`, `bf16`,
            or a class of one's own with `compress` and `decompress`.
        backward_passes_per_step: how many passes add up before each step. Their gradients are
            summed, as torch sums them: divide the loss.
        op: `Average`, `Sum`, or `Adasum`.
        gradient_predivide_factor: with `Average`, gradients are divided by it before they are
            added, and by the rest after.
        num_groups, groups: parameters that travel together: how many groups, or lists of them.
            Without, they travel in buckets of 4 MiB.
        sparse_as_dense: make sparse gradients dense.
        process_set: the ranks whose gradients are reduced; the others step by themselves.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is for op=Average")
    kind = type(optimizer)
    base: Any = DistributedAdasum if op is Adasum else Distributed
    made: Any = object.__new__(type(kind.__name__, (base, kind), {}))
    # A scheduler that was made before has its own step there.
    made.__dict__.update({name: one for name, one in vars(optimizer).items() if name != "step"})
    made._parameter_names = _names(made, named_parameters)
    if op is Adasum:
        if groups is not None or num_groups or sparse_as_dense:
            raise ValueError("groups, num_groups and sparse_as_dense are not for op=Adasum")
        made._compression, made._process_set = compression, process_set
        return made
    linear(op, "gradients")

    def parameters() -> Parameters:
        """Those of the optimizer that need gradients now."""
        return [one for group in made.param_groups for one in group["params"] if one.requires_grad]

    made._averages_in_step, made._synchronized, made._exchange = True, False, None
    if process_set.included():
        made._exchange = Exchange(
            parameters,
            made._parameter_names,
            backward_passes_per_step,
            _groups(parameters(), groups if groups is not None else num_groups),
            How(op, compression, gradient_predivide_factor, process_set, sparse_as_dense),
        )
    return made


def _names(optimizer: Any, given: Any) -> Names:
    """Every parameter's name; those of the optimizer are all named, and no two the same."""
    own = [
        (f"allreduce.noname.{number}.{index}", parameter)
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    ]
    if given is None:
        return {parameter: name for name, parameter in own}
    pairs = list(given)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            "named_parameters are pairs of a name and a parameter, as model.named_parameters() has"
        )
    seen: Dict[str, int] = {}
    for name, _ in pairs:
        seen[name] = seen.get(name, 0) + 1
    twice = [name for name, count in seen.items() if count > 1]
    if twice:
        raise ValueError(f"named_parameters has names more than once: {', '.join(twice)}")
    names = {parameter: name for name, parameter in pairs}
    nameless = [name.rsplit("noname.", 1)[1] for name, one in own if one not in names]
    if nameless:
        raise ValueError(
            "named_parameters leaves out parameters of the optimizer (group and place): "
            + ", ".join(nameless)
        )
    return names


def _groups(parameters: Parameters, given: Any) -> Groups:
    """The parameters that travel together."""
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 0:
            raise ValueError(f"{given} groups of parameters; give a number that is not negative")
        if given == 0:
            return None
        each, more = divmod(len(parameters), given)
        ends = [each * n + min(n, more) for n in range(given + 1)]
        return [parameters[first:end] for first, end in zip(ends, ends[1:]) if end > first]
    if not isinstance(given, list):
        raise ValueError("groups is a number, or a list of lists of parameters")
    seen: List[int] = []
    for group in given:
        for one in group:
            if not isinstance(one, torch.Tensor):
                raise ValueError(f"groups has {one!r} among the parameters, which is no tensor")
            if id(one) in seen:
                raise ValueError("groups has a parameter more than once")
            seen.append(id(one))
    return given
