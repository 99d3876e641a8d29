"""Calls that torch's dispatcher is to see before they are made.

A group in Python is called with nothing between. But modes of torch watch or replace what is done
with tensors, as CommDebugMode and FakeTensorMode do, and some classes of tensors do so themselves.
Where there is one, the call goes to torch's operator for it. Once all of those have had the call, and
have not made it something else, the operator calls the group's Backend.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import torch
from torch._C._distributed_c10d import AllreduceOptions, BarrierOptions, ProcessGroup
from torch._C._distributed_c10d import ReduceOp as TorchOp
from torch._C._distributed_c10d import Work as TorchWork

from .collectives import MEMORY, listed, root_of

#: How many modes are active in this thread.
modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_PASSIVE = torch._C._disabled_torch_dispatch_impl


def is_plain(kind: type) -> bool:
    """Whether tensors of this class are no more than memory."""
    return getattr(kind, "__torch_dispatch__", _PASSIVE) is _PASSIVE


def _stand_in(values: Any) -> bool:
    """Whether any of these, or of what lists among them hold, is a tensor that stands in."""
    for value in values:
        kind = type(value)
        if kind in MEMORY:
            continue
        if kind is list or kind is tuple:
            if _stand_in(value):
                return True
        elif isinstance(value, torch.Tensor) and not is_plain(kind):
            return True
    return False


def _op(opts: Any, op: Any = None) -> Any:
    """The reduction that options name, or are."""
    found: Any = getattr(opts, "reduceOp", op)
    found = AllreduceOptions().reduceOp if found is None else found
    return (found if hasattr(found, "boxed") else TorchOp(found)).boxed()


def _how(opts: Any, names: bool = True) -> Dict[str, Any]:
    """What options say of waiting, as the operators take it."""
    how = {"async_op": getattr(opts, "asyncOp", True)}
    limit = getattr(opts, "timeout", None)
    if names and limit is not None:
        how["timeout"] = int(limit.total_seconds() * 1000)
    return how


def _all_reduce(c: Any, group: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
    sparse = getattr(opts, "sparseIndices", None)
    return c.allreduce_(listed(tensors), group, _op(opts, opts), sparse, **_how(opts))


def _all_reduce_coalesced(c: Any, group: Any, tensors: Any, opts: Any = None) -> Any:
    return c.allreduce_coalesced_(listed(tensors), group, _op(opts), **_how(opts))


def _broadcast(c: Any, group: Any, tensors: Any, opts: Any, timeout: Any = None) -> Any:
    return c.broadcast_(listed(tensors), group, root_of(opts), _root_tensor(opts), **_how(opts))


def _reduce(
    c: Any, group: Any, tensors: Any, opts: Any, op: Any = None, timeout: Any = None
) -> Any:
    roots = root_of(opts), _root_tensor(opts)
    return c.reduce_(listed(tensors), group, _op(opts, op), *roots, **_how(opts))


def _root_tensor(opts: Any) -> int:
    return getattr(opts, "rootTensor", 0)


def _all_gather_single(c: Any, group: Any, output: Any, input: Any, opts: Any = None) -> Any:
    return c._allgather_base_(output, input, group, **_how(opts))


def _all_gather_single_coalesced(
    c: Any, group: Any, outputs: Any, inputs: Any, opts: Any = None
) -> Any:
    how = _how(opts, names=False)
    return c.allgather_into_tensor_coalesced_(listed(outputs), listed(inputs), group, **how)


def _all_gather(
    c: Any, group: Any, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
) -> Any:
    return c.allgather_(*_rows(outputs, inputs), group, **_how(opts))


def _rows(rows: Any, tensors: Any) -> Any:
    """Lists of tensors with a tensor for each; c10d takes a single one of both, too."""
    return ([rows], [tensors]) if isinstance(tensors, torch.Tensor) else (rows, tensors)


def _all_gather_coalesced(c: Any, group: Any, outputs: Any, inputs: Any, opts: Any = None) -> Any:
    return c.allgather_coalesced_(outputs, inputs, group, **_how(opts, names=False))


def _gather(c: Any, group: Any, outputs: Any, inputs: Any, opts: Any, timeout: Any = None) -> Any:
    return c.gather_(*_rows(outputs, inputs), group, root_of(opts), **_how(opts))


def _gather_single(c: Any, group: Any, output: Any, input: Any, opts: Any) -> Any:
    # Through the operator of its own, a Backend in Python is not reached.
    ranks = ProcessGroup.unbox(group)
    outputs = []
    if ranks.rank() == root_of(opts):
        outputs = [list(output.view(ranks.size(), *input.shape).unbind(0))]
    return c.gather_(outputs, [input], group, root_of(opts), **_how(opts))


def _scatter(c: Any, group: Any, outputs: Any, inputs: Any, opts: Any, timeout: Any = None) -> Any:
    rows, tensors = _rows(inputs, outputs)
    return c.scatter_(tensors, rows, group, root_of(opts), **_how(opts))


def _reduce_scatter_single(c: Any, group: Any, output: Any, input: Any, opts: Any = None) -> Any:
    return c._reduce_scatter_base_(output, input, group, _op(opts), **_how(opts))


def _reduce_scatter_single_coalesced(
    c: Any, group: Any, outputs: Any, inputs: Any, opts: Any = None
) -> Any:
    places = listed(outputs), listed(inputs)
    return c.reduce_scatter_tensor_coalesced_(*places, group, _op(opts), **_how(opts))


def _reduce_scatter(
    c: Any, group: Any, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
) -> Any:
    rows, tensors = _rows(inputs, outputs)
    return c.reduce_scatter_(tensors, rows, group, _op(opts, opts), **_how(opts))


def _all_to_all_single(
    c: Any,
    group: Any,
    output: Any,
    input: Any,
    output_splits: Optional[List[int]],
    input_splits: Optional[List[int]],
    opts: Any = None,
    timeout: Any = None,
) -> Any:
    splits = output_splits or [], input_splits or []
    return c.alltoall_base_(output, input, group, *splits, **_how(opts))


def _all_to_all(
    c: Any, group: Any, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
) -> Any:
    return c.alltoall_(outputs, inputs, group, **_how(opts))


def _barrier(c: Any, group: Any, opts: Any = None, timeout: Any = None) -> Any:
    opts = opts if isinstance(opts, BarrierOptions) else BarrierOptions()
    return c.barrier(torch.empty(0, device="cpu"), group, opts.device_ids, **_how(opts))


def _send(c: Any, group: Any, tensors: Any, target: int, tag: int = 0) -> Any:
    return c.send(list(tensors), group, target, tag)


def _recv(c: Any, group: Any, tensors: Any, source: int, tag: int = 0) -> Any:
    return c.recv_(list(tensors), group, source, tag)


def _recv_anysource(c: Any, group: Any, tensors: Any, tag: int = 0) -> Any:
    return c.recv_any_source_(list(tensors), group, tag)


#: A group's methods, and how each is a call of an operator. `_all_reduce` is what an all-reduce
#: comes to that is not the plain case.
_CALLS: Dict[str, Callable[..., Any]] = {
    "_all_reduce": _all_reduce,
    "allreduce_coalesced": _all_reduce_coalesced,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather_single": _all_gather_single,
    "_allgather_base": _all_gather_single,
    "all_gather_single_coalesced": _all_gather_single_coalesced,
    "allgather_into_tensor_coalesced": _all_gather_single_coalesced,
    "allgather": _all_gather,
    "allgather_coalesced": _all_gather_coalesced,
    "gather": _gather,
    "gather_single": _gather_single,
    "gather_into_tensor": _gather_single,
    "scatter": _scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "_reduce_scatter_base": _reduce_scatter_single,
    "reduce_scatter_single_coalesced": _reduce_scatter_single_coalesced,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_single_coalesced,
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all_single,
    "alltoall_base": _all_to_all_single,
    "alltoall": _all_to_all,
    "barrier": _barrier,
    "send": _send,
    "recv": _recv,
    "recv_anysource": _recv_anysource,
    "recvAnysource": _recv_anysource,
}


def dispatches(group: type) -> None:
    """Let the dispatcher see the calls of groups of this class, where somebody is to see them."""
    for name, call in _CALLS.items():
        setattr(group, name, _either(name, getattr(group, name), call))


def _either(name: str, ours: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not modes() and not _stand_in(args) and not (kwargs and _stand_in(kwargs.values())):
            return ours(self, *args, **kwargs)
        answer = call(torch.ops.c10d, self.boxed(), *args, **kwargs)
        work = answer[-1] if isinstance(answer, (list, tuple)) else answer
        return TorchWork.unbox(work) if isinstance(work, torch.ScriptObject) else work

    method.__name__, method.__doc__ = name, ours.__doc__
    return method
