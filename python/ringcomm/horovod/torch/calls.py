"""Horovod's operations that move rows, and `join` and `barrier`; `allreduce` is in `reductions`,
`reducescatter` in `scatters`.

Those without `_` at the end return a new tensor, through which gradients flow; those with it write
where the tensor lies. The asynchronous ones return a handle for `synchronize` and `poll`. Gradients
are what Horovod makes of them: behind `allgather` and `broadcast` averaged.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

from ..._native import ReduceOp
from ..job import job
from ..operations import Average
from ..process_sets import ProcessSet, global_process_set, place_of
from ..requests import Request, Signature
from . import moves
from .group import Options, group_of
from .pending import Several
from .reductions import allreduce, grouped_allreduce
from .tensors import described, device_of, on_its_stream, zeros_like

Tensor = torch.Tensor


def _gathering(
    tensors: Sequence[Tensor], name: Optional[str], process_set: ProcessSet, soon: bool = False
) -> Tuple[Request, List[List[int]]]:
    """A request for every rank's rows of these; its list of rows is filled when it is done."""
    coordinator = process_set.coordinator
    sources = [tensor.detach().contiguous() for tensor in tensors]
    for source in sources:
        if not source.dim():
            raise ValueError("allgather: a tensor has one dimension at least; this is a scalar")
    outputs: List[Tensor] = []
    rows: List[List[int]] = []

    def run() -> Any:
        counts = moves.counts_of(coordinator, [len(source) for source in sources])
        works = []
        for index, source in enumerate(sources):
            rows.append([each[index] for each in counts])
            output, work = moves.gather(coordinator, source, rows[index])
            outputs.append(output)
            works.append(work)
        return works[-1] if works else None

    signature = Signature.of(
        "allgather",
        tuple(described(source, but_first=True) for source in sources),
        (),
        device_of(sources, "allgather"),
    )
    running = on_its_stream(sources[0], run) if sources else run
    named = coordinator.name("allgather", name)
    request = Request(named, signature, lambda: outputs, running, keep=sources)
    return coordinator.submit(request, soon), rows


def allgather_async(
    tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Several:
    """As `allgather`, without gradients; returns a handle."""
    return Several([_gathering([tensor], name, process_set)[0]], lambda gathered: gathered[0][0])


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """As `grouped_allgather`, without gradients; returns a handle."""
    return _gathering(tensors, name, process_set)[0]


class _AllGather(torch.autograd.Function):
    """Rank r's gradient is the average of everyone's for the part that came from r."""

    @staticmethod
    def forward(
        ctx: Any, name: Optional[str], process_set: ProcessSet, *tensors: Tensor
    ) -> Tuple[Tensor, ...]:
        ctx.process_set = process_set
        request, ctx.rows = _gathering(tensors, name, process_set, soon=True)
        return tuple(request.wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tuple[Any, ...]:
        means = grouped_allreduce(list(grads), op=Average, process_set=ctx.process_set)
        place = ctx.process_set.rank()
        mine = [torch.split(mean, rows)[place] for mean, rows in zip(means, ctx.rows)]
        return (None, None, *mine)


def allgather(
    tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Every rank's tensor, one after the other along the first dimension, in which they may
    differ."""
    gathered: Tensor = _AllGather.apply(name, process_set, tensor)[0]
    return gathered


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Tensor]:
    """`allgather` of several tensors, as one operation."""
    return list(_AllGather.apply(name, process_set, *tensors))


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    soon: bool = False,
) -> Request:
    """As `broadcast_`; returns a handle."""
    coordinator = process_set.coordinator
    root = place_of(root_rank, process_set)
    place = tensor.detach()
    if not place.is_contiguous() or place.is_conj() or place.is_neg():
        place = place.resolve_conj().resolve_neg().contiguous()

    def result() -> Tensor:
        if place.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(place)
        return tensor

    run = on_its_stream(place, lambda: moves.broadcast(coordinator, place, root))
    how = (("root_rank", root_rank),)
    signature = Signature.of("broadcast", (described(place),), how, place.device.type)
    named = coordinator.name("broadcast", name)
    return coordinator.submit(Request(named, signature, result, run), soon)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Overwrite the tensor with the root's."""
    sent: Tensor = broadcast_async_(tensor, root_rank, name, process_set, soon=True).wait()
    return sent


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """As `broadcast`, without gradients; returns a handle."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    """The root's gradient is the average of everyone's; the others' is zero."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, root_rank: int, name: Optional[str], process_set: ProcessSet
    ) -> Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return broadcast_(tensor.detach().clone(), root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        mean = allreduce(grad, op=Average, process_set=ctx.process_set)
        here = job().comm.rank == ctx.root_rank
        return (mean if here else torch.zeros_like(mean)), None, None, None


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The root's tensor, as a new one."""
    sent: Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return sent


def _exchanging(
    tensor: Tensor,
    splits: Optional[Any],
    name: Optional[str],
    process_set: ProcessSet,
    soon: bool = False,
) -> Request:
    """A request for rows from every rank; its result is them and how many came from each."""
    coordinator = process_set.coordinator
    out = _splits(tensor, splits, coordinator.size)
    source = tensor.detach().contiguous()
    got: List[Any] = []

    def run() -> Any:
        back = moves.exchanged_counts(coordinator, out)
        output, work = moves.exchange(coordinator, source[: sum(out)], out, back)
        got.extend((output, back))
        return work

    def result() -> Tuple[Tensor, Tensor]:
        came = torch.tensor(got[1], dtype=torch.int32, device="cpu")
        return got[0], came.to(splits.device) if isinstance(splits, Tensor) else came

    signature = Signature.of(
        "alltoall", (described(source, but_first=True),), (), source.device.type
    )
    request = Request(
        coordinator.name("alltoall", name), signature, result, on_its_stream(source, run),
        keep=source,
    )  # fmt: skip
    return coordinator.submit(request, soon)


def _splits(tensor: Tensor, splits: Optional[Any], ranks: int) -> List[int]:
    """How many rows go to each rank."""
    if not tensor.dim():
        raise ValueError("alltoall: a tensor has one dimension at least; this is a scalar")
    rows = len(tensor)
    if splits is None or (isinstance(splits, Tensor) and not splits.numel()):
        if rows % ranks:
            raise ValueError(f"alltoall: {rows} rows do not divide by {ranks} ranks; give splits")
        return [rows // ranks] * ranks
    given = splits if isinstance(splits, Tensor) else torch.as_tensor(splits, device="cpu")
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise ValueError(f"alltoall: splits are integers; these are {given.dtype}")
    out: List[int] = given.tolist()
    if given.dim() != 1 or len(out) != ranks or min(out) < 0 or sum(out) > rows:
        raise ValueError(
            f"alltoall: splits {out} are not {ranks} numbers of rows, together at most {rows}"
        )
    return out


class _AllToAll(torch.autograd.Function):
    """Each row's gradient goes back to where the row came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Any, name: Optional[str], process_set: ProcessSet
    ) -> Tuple[Tensor, Tensor]:
        output, came = _exchanging(tensor, splits, name, process_set, soon=True).wait()
        ctx.process_set, ctx.came, ctx.rows = process_set, came, len(tensor)
        ctx.mark_non_differentiable(came)
        return output, came

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tuple[Any, ...]:
        back: Tensor = _AllToAll.apply(grad, ctx.came, None, ctx.process_set)[0]
        if len(back) < ctx.rows:
            # Rows that splits leave out go nowhere.
            back = torch.cat([back, back.new_zeros((ctx.rows - len(back), *back.shape[1:]))])
        return back, None, None, None


def alltoall(
    tensor: Tensor,
    splits: Optional[Any] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Rows of the tensor to every rank, equally many or as `splits` says; what came from each.

    With `splits` also how many rows came from each rank.
    """
    both: Tuple[Tensor, Tensor] = _AllToAll.apply(tensor, splits, name, process_set)
    return both[0] if splits is None else both


def alltoall_async(
    tensor: Tensor,
    splits: Optional[Any] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Several:
    """As `alltoall`, without gradients; returns a handle."""
    coming = _exchanging(tensor, splits, name, process_set)
    return Several([coming], lambda both: both[0][0] if splits is None else both[0])


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: Any, process_set: ProcessSet = global_process_set
) -> Several:
    """The sum or average of every rank's sparse tensor; call the handle for it."""
    coalesced = tensor.coalesce()
    indices, values = coalesced.indices().t().contiguous(), coalesced.values()
    coming, _ = _gathering([indices, values], f"sparse.{name}", process_set)

    def result(gathered: List[List[Tensor]]) -> Tensor:
        where, what = gathered[0]
        total = what / process_set.size() if op == Average else what
        return torch.sparse_coo_tensor(where.t(), total, tensor.shape, check_invariants=False)

    return Several([coming], result)


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and go along with the others' `allreduce` with zeros;
    returns when all ranks have joined: the rank that did last.

    `device` is the CUDA device for zeros; -1 where the others' tensors are on the CPU.
    """
    coordinator = job().coordinator

    def zeros(signature: Signature) -> None:
        where = torch.device("cuda", device) if device >= 0 else torch.device(signature.device)
        work = group_of(coordinator).allreduce(
            zeros_like(signature, where), Options(ReduceOp(signature.reduction))
        )
        if work is not None:
            work.wait()

    last: int = coordinator.join(zeros).wait()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait for every rank."""
    coordinator = process_set.coordinator
    named = coordinator.name("barrier", None)
    request = Request(named, Signature.of("barrier"), lambda: None)
    coordinator.submit(request, soon=True).wait()
