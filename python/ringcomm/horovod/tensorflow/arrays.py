"""Operations on arrays of the host, as the coordinator's requests."""

from __future__ import annotations

from array import array
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from ..._native import ReduceOp
from ...buffers import target
from ..adasum import check, combined
from ..job import job
from ..operations import name_of
from ..process_sets import ProcessSet, place_of
from ..requests import Described, Request, Signature

Arrays = List[Any]


def _described(one: Any, but_first: bool = False) -> Described:
    shape: Tuple[Optional[int], ...] = tuple(one.shape)
    return str(one.dtype), (None, *shape[1:]) if but_first and shape else shape


def _submitted(
    kind: str,
    name: Optional[str],
    arrays: Sequence[Any],
    how: Tuple[Tuple[str, Any], ...],
    process_set: ProcessSet,
    run: Callable[[], Any],
    answers: Arrays,
    but_first: bool = False,
) -> Request:
    """A request whose result is `answers`, as `run` leaves them."""
    coordinator = process_set.coordinator
    described = tuple(_described(one, but_first) for one in arrays)
    signature = Signature.of(kind, described, how)
    request = Request(coordinator.name(kind, name), signature, lambda: answers, run, keep=arrays)
    return coordinator.submit(request, soon=True)


def all_reduce(
    arrays: Arrays, op: ReduceOp, process_set: ProcessSet, name: Optional[str]
) -> Request:
    """The reductions of these, as one operation."""
    coordinator = process_set.coordinator
    outputs = [np.array(one, order="C") for one in arrays]
    places, pieces = [], []
    for one in outputs:
        address, count, datatype, _, _ = target(one)
        places.append(address)
        pieces.append((int(datatype), count, one.nbytes))
    signature = Signature.of(
        "allreduce",
        tuple(_described(one) for one in outputs),
        (("op", name_of(op)),),
        "cpu",
        int(op),
        tuple(pieces),
    )
    named = coordinator.name("allreduce", name)
    request = Request(named, signature, lambda: outputs, None, tuple(places), outputs)
    return coordinator.submit(request, soon=True)


def all_gather(arrays: Arrays, process_set: ProcessSet, name: Optional[str]) -> Request:
    """Every rank's rows of each of these, one after the other; then how many come from each."""
    comm = process_set.coordinator.comm
    sources = [np.ascontiguousarray(one) if one.ndim else one for one in arrays]
    for source in sources:
        if not source.ndim:
            raise ValueError("allgather: a tensor has one dimension at least; this is a scalar")
    answers: Arrays = []

    def run() -> None:
        known = np.empty((comm.nranks, len(sources)), np.int64)
        comm.all_gather(np.array([len(source) for source in sources], np.int64), known)
        for source, rows in zip(sources, known.T):
            width = int(np.prod(source.shape[1:], dtype=np.int64)) * source.itemsize
            output = np.empty((int(rows.sum()), *source.shape[1:]), source.dtype)
            comm.all_gather_v(_bytes(source), _bytes(output), [int(each) * width for each in rows])
            answers.append(output)
        answers.extend(known.T.astype(np.int32))

    return _submitted("allgather", name, sources, (), process_set, run, answers, but_first=True)


def _bytes(one: Any) -> Any:
    return one.reshape(-1).view(np.uint8)


def adasum(arrays: Arrays, process_set: ProcessSet, name: Optional[str]) -> Request:
    """Adasum of each of these by itself, as one operation."""
    coordinator = process_set.coordinator
    ranks = coordinator.size
    sources = [np.array(one, order="C") for one in arrays]
    check(ranks, [one.dtype for one in sources], [_is_floating(one.dtype) for one in sources])
    outputs: Arrays = []

    def run() -> None:
        for source in sources:
            gathered = np.empty((ranks, *source.shape), source.dtype)
            coordinator.comm.all_gather(_bytes(source), _bytes(gathered))
            found = combined(list(gathered.astype(np.float64)))
            outputs.append(np.asarray(found).astype(source.dtype))

    return _submitted("adasum", name, sources, (), process_set, run, outputs)


def _is_floating(dtype: Any) -> bool:
    """Also bfloat16, which is not NumPy's own."""
    return np.issubdtype(dtype, np.floating) or "float" in dtype.name


def broadcast(
    arrays: Arrays, root_rank: int, process_set: ProcessSet, name: Optional[str]
) -> Request:
    """The root's arrays, as one operation."""
    comm = process_set.coordinator.comm
    root = place_of(root_rank, process_set)
    outputs = [np.array(one, order="C") for one in arrays]

    def run() -> None:
        for output in outputs:
            comm.broadcast(_bytes(output), root=root)

    how = (("root_rank", root_rank),)
    return _submitted("broadcast", name, outputs, how, process_set, run, outputs)


def all_to_all(
    one: Any, splits: Any, process_set: ProcessSet, name: Optional[str]
) -> Request:
    """The rows that come from each rank, and how many come."""
    coordinator = process_set.coordinator
    comm = coordinator.comm
    source = np.ascontiguousarray(one) if np.ndim(one) else one
    out = _splits(source, splits, coordinator.size)
    answers: Arrays = []

    def run() -> None:
        back = array("q", bytes(8 * coordinator.size))
        comm.all_to_all(array("q", out), back)
        width = int(np.prod(source.shape[1:], dtype=np.int64)) * source.itemsize
        output = np.empty((sum(back), *source.shape[1:]), source.dtype)
        comm.all_to_all_v(
            _bytes(source[: sum(out)]), [count * width for count in out],
            _bytes(output), [count * width for count in back],
        )  # fmt: skip
        answers.extend((output, np.array(back, np.int32)))

    return _submitted("alltoall", name, [source], (), process_set, run, answers, but_first=True)


def _splits(source: Any, splits: Any, ranks: int) -> List[int]:
    if not source.ndim:
        raise ValueError("alltoall: a tensor has one dimension at least; this is a scalar")
    rows = len(source)
    if splits is None or not len(splits):
        if rows % ranks:
            raise ValueError(f"alltoall: {rows} rows do not divide by {ranks} ranks; give splits")
        return [rows // ranks] * ranks
    out = [int(each) for each in splits]
    if len(out) != ranks or min(out) < 0 or sum(out) > rows:
        raise ValueError(
            f"alltoall: splits {out} are not {ranks} numbers of rows, together at most {rows}"
        )
    return out


def reduce_scatter(
    arrays: Arrays, op: ReduceOp, process_set: ProcessSet, name: Optional[str]
) -> Request:
    """This rank's rows of each of these, reduced."""
    coordinator = process_set.coordinator
    for one in arrays:
        if not one.ndim:
            raise ValueError("reducescatter: a tensor has one dimension at least; this is a scalar")
    sources = [np.ascontiguousarray(one) for one in arrays]
    outputs: Arrays = []

    def run() -> None:
        for source in sources:
            each, more = divmod(len(source), coordinator.size)
            rows = [each + (rank < more) for rank in range(coordinator.size)]
            width = int(np.prod(source.shape[1:], dtype=np.int64))
            output = np.empty((rows[coordinator.rank], *source.shape[1:]), source.dtype)
            counts = [count * width for count in rows]
            coordinator.comm.reduce_scatter_v(source.reshape(-1), output.reshape(-1), counts, op)
            outputs.append(output)

    how = (("op", name_of(op)),)
    return _submitted("reducescatter", name, sources, how, process_set, run, outputs)


def join() -> Request:
    """This rank submits no more; the rank that said so last."""
    return job().coordinator.join(None, lambda last: [np.array(last, np.int32)])


def barrier(process_set: ProcessSet, name: Optional[str]) -> Request:
    """Wait for every rank."""
    return _submitted("barrier", name, (), (), process_set, lambda: None, [np.int32(0)])
