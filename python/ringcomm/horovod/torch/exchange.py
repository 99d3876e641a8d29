"""Gradients on their way: each unit of parameters is one named operation, sent when all of its
gradients are there, while the backward pass still runs."""

from __future__ import annotations

import zlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ...torch.buckets import Bucket, Parameters, cut
from ...torch.ranks import Ranks
from ..._native import ReduceOp
from ..operations import Average, Op, Sum
from ..process_sets import ProcessSet
from .calls import sparse_allreduce_async
from .compression import compress, decompress, rounded_to
from .reductions import grouped_allreduce_async_

#: Bytes of a bucket: a fifth of a millisecond's work for an all-reduce, so that what a call costs
#: by itself does not count, and most of a model's buckets leave before the backward pass ends.
BUCKET_BYTES = 4 << 20

#: Parameters that travel together; None: in buckets of so many bytes.
Groups = Optional[Sequence[Parameters]]
Names = Dict[torch.nn.Parameter, str]


class How:
    """How gradients are reduced."""

    def __init__(
        self,
        op: Op,
        compression: Any,
        predivide: float,
        process_set: ProcessSet,
        sparse_as_dense: bool,
    ) -> None:
        self.op, self.compression, self.predivide = op, compression, predivide
        self.process_set, self.sparse_as_dense = process_set, sparse_as_dense
        #: Whether a compression only rounds, and to which type.
        self.rounds, self.rounded = rounded_to(compression)
        self.renew()

    def renew(self) -> None:
        """Divide by the number of ranks that there are now."""
        self.divisor = self.process_set.size() if self.op == Average else 1

    def ranks_now(self) -> Any:
        """What orders the operations of the ranks that there are now; None: the job has ended, or
        no longer has the process set."""
        try:
            return self.process_set.coordinator
        except ValueError:
            return None


class _Named(Ranks):
    """An all-reduce under a name, in place of the ranks that `Bucket` knows."""

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._name, self._process_set = name, process_set

    def all_reduce(
        self, tensor: torch.Tensor, op: ReduceOp = Sum, async_op: bool = False
    ) -> Any:
        return grouped_allreduce_async_(
            [tensor], name=self._name, op=op, process_set=self._process_set
        )


class _BucketUnit:
    """Gradients that are packed into one tensor."""

    def __init__(self, name: str, parameters: Parameters, how: How) -> None:
        self.parameters = parameters
        before = None if how.predivide == 1 else how.predivide
        self._bucket = Bucket(parameters, how.divisor, how.rounded, before)
        self._ranks = _Named(name, how.process_set)

    def start(self) -> None:
        self._bucket.start(self._ranks)

    def finish(self) -> None:
        self._bucket.finish([parameter.requires_grad for parameter in self.parameters])


class _InPlaceUnit:
    """Gradients in host memory, which are reduced where they lie; the coordinator packs those that
    are small."""

    def __init__(self, name: str, parameters: Parameters, how: How) -> None:
        self.parameters, self._name, self._how = parameters, name, how
        self._handle: Any = None

    def start(self) -> None:
        how = self._how
        self._handle = grouped_allreduce_async_(
            [
                torch.zeros_like(one, requires_grad=False) if one.grad is None else one.grad
                for one in self.parameters
            ],
            name=self._name, op=how.op,
            prescale_factor=1 / how.predivide, postscale_factor=how.predivide,
            process_set=how.process_set,
        )  # fmt: skip

    def finish(self) -> None:
        handle, self._handle = self._handle, None
        for parameter, came in zip(self.parameters, handle.wait()):
            if parameter.grad is not None:
                # It may have been replaced since the backward pass; else this does nothing.
                parameter.grad.copy_(came)
            elif parameter.requires_grad:
                parameter.grad = came


class _CompressedUnit:
    """Gradients under a compression of the program's own, each by itself."""

    def __init__(self, name: str, parameters: Parameters, how: How) -> None:
        self.parameters, self._name, self._how = parameters, name, how
        self._sent: List[Tuple[torch.Tensor, Any]] = []
        self._handle: Any = None

    def start(self) -> None:
        how = self._how
        for parameter in self.parameters:
            grad = parameter.grad
            self._sent.append(
                compress(how.compression, torch.zeros_like(parameter) if grad is None else grad)
            )
        self._handle = grouped_allreduce_async_(
            [sent for sent, _ in self._sent], name=self._name, op=how.op,
            prescale_factor=1 / how.predivide, postscale_factor=how.predivide,
            process_set=how.process_set,
        )  # fmt: skip

    def finish(self) -> None:
        came, sent, self._sent = self._handle.wait(), self._sent, []
        for parameter, one, (_, ctx) in zip(self.parameters, came, sent):
            grad = decompress(self._how.compression, one, ctx)
            if parameter.grad is not None:
                parameter.grad.copy_(grad)
            elif parameter.requires_grad:
                parameter.grad = grad.to(parameter.dtype, copy=True)


class Exchange:
    """The gradients of some parameters, on their way between ranks once in so many passes."""

    def __init__(
        self, parameters: Callable[[], Parameters], names: Names, passes: int, groups: Groups,
        how: How,
    ) -> None:  # fmt: skip
        self.passes, self._names, self._groups, self._how = passes, names, groups, how
        self._parameters = parameters
        self._units: List[Any] = []
        self._unit_of: Dict[int, int] = {}
        #: The parameters whose gradients are sparse, with how many dimensions are.
        self._alone: Dict[int, Tuple[torch.nn.Parameter, int]] = {}
        #: The sparse dimensions of those that travel as dense ones.
        self._dense: Dict[int, int] = {}
        self._hooked: Set[int] = set()
        self._digest = _digest([names[one] for one in parameters()])
        self._prefix = self._counted()
        self._of = how.ranks_now()
        self._take_in()
        self._begin()

    def _counted(self) -> str:
        """The beginning of names of an optimizer's operations: of those with the same parameters,
        the ranks make the same one first."""
        return self._how.process_set.coordinator.name(f"gradients.{self._digest:08x}", None)

    def renew(self) -> None:
        """Where the job has other ranks than before: forget what was under way to them, and begin
        as a newcomer does."""
        if self._how.ranks_now() is self._of:
            return
        # The name stays; it is counted, as a newcomer counts it.
        self._counted()
        self._of = self._how.ranks_now()
        self._how.renew()
        self._units.clear()
        self._unit_of.clear()
        self._alone.clear()
        self._dense.clear()
        self._take_in()
        self._begin()

    def _take_in(self) -> None:
        """Know the parameters that have come, or have come to need gradients. They are the same
        on every rank, as the calls are that made them so."""
        new = [one for one in self._parameters() if id(one) not in self._unit_of]
        for part in self._parts(new):
            number = len(self._units)
            name = f"{self._prefix}.{number}.{self._names.get(part[0], '')}"
            self._units.append(self._unit(name, part))
            self._unit_of.update((id(one), number) for one in part)
        for parameter in new:
            if id(parameter) not in self._hooked:
                self._hooked.add(id(parameter))
                hooked: Any = parameter
                hooked.register_post_accumulate_grad_hook(self._arrived)

    def _unit(self, name: str, parameters: Parameters) -> Any:
        how = self._how
        if not how.rounds:
            return _CompressedUnit(name, parameters, how)
        if how.rounded is None and parameters[0].device.type == "cpu":
            return _InPlaceUnit(name, parameters, how)
        return _BucketUnit(name, parameters, how)

    def _parts(self, new: Parameters) -> List[Parameters]:
        left = list(reversed(new))
        parts = []
        for group in self._groups or ():
            together = [one for one in group if any(one is other for other in left)]
            # What is packed together has one type and device.
            parts += [*cut(together, 1 << 62)]
            left = [one for one in left if not any(one is other for other in together)]
        if self._groups is not None:
            return parts + [[one] for one in left]
        return [*cut(left, BUCKET_BYTES)]

    def _begin(self) -> None:
        #: Passes that each parameter still has to see, parameters that each unit waits for, the
        #: units that are sent, and sparse gradients that are.
        self._left: Dict[int, int] = {}
        self._missing = [len(unit.parameters) for unit in self._units]
        self._sent = [False] * len(self._units)
        self._sparse: List[Tuple[torch.nn.Parameter, Any]] = []

    def _arrived(self, parameter: Any) -> None:
        """A backward pass has added to this parameter's gradient."""
        self.renew()
        key = id(parameter)
        sparse = parameter.grad is not None and parameter.grad.is_sparse
        if sparse and self._how.sparse_as_dense:
            self._dense[key] = parameter.grad.sparse_dim()
            parameter.grad, sparse = parameter.grad.to_dense(), False
        left = self._left.get(key, self.passes) - 1
        if left < 0:
            raise RuntimeError(
                f"more than {self.passes} backward passes before step(): give "
                "DistributedOptimizer as many as there are, as backward_passes_per_step"
            )
        self._left[key] = left
        number = self._unit_of[key]
        if sparse and key not in self._alone:
            self._part_with(number, parameter)
        if left:
            return
        if key in self._alone:
            self._send_alone(parameter)
            return
        self._missing[number] -= 1
        if self._missing[number] == 0:
            self._send(number)

    def _part_with(self, number: int, parameter: torch.nn.Parameter) -> None:
        """A parameter with sparse gradients goes by itself from now on."""
        self._alone[id(parameter)] = parameter, parameter.grad.sparse_dim()  # type: ignore
        unit = self._units[number]
        unit.parameters[:] = [one for one in unit.parameters if one is not parameter]
        self._missing[number] -= 1
        if self._missing[number] == 0 and not self._sent[number]:
            self._send(number)

    def _send_unused(self) -> None:
        """Of sparse parameters that this rank has not used in this step, no rows."""
        sent = {id(parameter) for parameter, _ in self._sparse}
        for parameter, dims in list(self._alone.values()):
            if id(parameter) in sent:
                continue
            if parameter.grad is None or not parameter.grad.is_sparse:
                shape = parameter.shape
                parameter.grad = torch.sparse_coo_tensor(
                    torch.zeros((dims, 0), dtype=torch.int64, device=parameter.device),
                    parameter.detach().new_zeros((0, *shape[dims:])), shape,
                    check_invariants=False,
                )  # fmt: skip
            self._send_alone(parameter)

    def _send_alone(self, parameter: Any) -> None:
        name = f"{self._prefix}.{self._names.get(parameter, '')}"
        how = self._how
        handle = sparse_allreduce_async(parameter.grad, name, how.op, how.process_set)
        self._sparse.append((parameter, handle))

    def _send(self, number: int) -> None:
        self._sent[number] = True
        if self._units[number].parameters:
            self._units[number].start()

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has been since `finish`: this rank or another may have sent."""
        return bool(self._left) and self._how.ranks_now() is self._of

    def finish(self) -> None:
        """Send what is not sent, and wait for all of it. What no longer needs a gradient gets
        none."""
        self.renew()
        self._take_in()
        self._missing += [0] * (len(self._units) - len(self._missing))
        self._sent += [False] * (len(self._units) - len(self._sent))
        for number, sent in enumerate(self._sent):
            if not sent:
                self._send(number)
        self._send_unused()
        try:
            self._wait()
        finally:
            self._begin()

    def _wait(self) -> None:
        """All results, also where one of them is an error, which is raised then."""
        error: Optional[Exception] = None
        for unit in self._units:
            try:
                if unit.parameters:
                    unit.finish()
            except Exception as problem:
                error = error or problem
        for parameter, handle in self._sparse:
            try:
                parameter.grad = handle.wait()
            except Exception as problem:
                error = error or problem
        if error is not None:
            raise error
        for unit in self._units if self._dense else ():
            for parameter in unit.parameters:
                if id(parameter) in self._dense and parameter.grad is not None:
                    parameter.grad = parameter.grad.to_sparse(self._dense[id(parameter)])


def _digest(names: List[str]) -> int:
    return zlib.crc32(repr(names).encode())
