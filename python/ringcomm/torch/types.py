"""Tensors and torch's reductions in the library's words: an address, a count, a number for each.

A tensor is used where it lies. One that is not contiguous, or a view of another's conjugate, goes
through a copy, which the operation brings back when it is done. Messages between two ranks go
through the host's memory.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch
from torch._C._distributed_c10d import ReduceOp as TorchOp

from .._native import DataType, ReduceOp

#: The library's type of each of torch's, and how many of them make an element.
TYPES: Dict[torch.dtype, Tuple[int, int]] = {
    torch.float32: (DataType.FLOAT32.value, 1),
    torch.float64: (DataType.FLOAT64.value, 1),
    torch.float16: (DataType.FLOAT16.value, 1),
    torch.bfloat16: (DataType.BFLOAT16.value, 1),
    torch.int8: (DataType.INT8.value, 1),
    torch.uint8: (DataType.UINT8.value, 1),
    torch.int16: (DataType.INT16.value, 1),
    torch.int32: (DataType.INT32.value, 1),
    torch.int64: (DataType.INT64.value, 1),
    torch.bool: (DataType.BOOL.value, 1),
    torch.complex64: (DataType.FLOAT32.value, 2),
    torch.complex128: (DataType.FLOAT64.value, 2),
}
for _name, _type in [
    ("float8_e4m3fn", DataType.FLOAT8E4M3),
    ("float8_e5m2", DataType.FLOAT8E5M2),
    ("uint16", DataType.UINT16),
    ("uint32", DataType.UINT32),
    ("uint64", DataType.UINT64),
]:
    # Types that came to torch one after another.
    if hasattr(torch, _name):
        TYPES[getattr(torch, _name)] = (_type.value, 1)

#: The library's number of each of torch's reductions that needs no scalar.
OPS: Dict[Any, int] = {
    TorchOp.SUM: ReduceOp.SUM.value,
    TorchOp.AVG: ReduceOp.AVG.value,
    TorchOp.PRODUCT: ReduceOp.PROD.value,
    TorchOp.MIN: ReduceOp.MIN.value,
    TorchOp.MAX: ReduceOp.MAX.value,
    TorchOp.BAND: ReduceOp.BAND.value,
    TorchOp.BOR: ReduceOp.BOR.value,
    TorchOp.BXOR: ReduceOp.BXOR.value,
}
_LINEAR = (TorchOp.SUM, TorchOp.AVG, TorchOp.PREMUL_SUM)


def kind_of(op: Any) -> Any:
    """The `RedOpType` of what a caller gave as a reduction."""
    return getattr(op, "op", op)


def numbers(tensor: torch.Tensor) -> Tuple[int, int]:
    """The type and the count that a reduction of this tensor has."""
    known = TYPES.get(tensor.dtype)
    if known is None:
        raise TypeError(f"ringcomm does not reduce {tensor.dtype}; convert the tensor first")
    return known[0], tensor.numel() * known[1]


def reducible(tensor: torch.Tensor, op: Any) -> Tuple[int, int]:
    """As `numbers`, where `op` makes sense for the tensor."""
    if tensor.dtype.is_complex and kind_of(op) not in _LINEAR:
        raise ValueError(f"{op} has no meaning for complex numbers; use a sum or an average")
    return numbers(tensor)


def movable(tensor: torch.Tensor) -> Tuple[int, int]:
    """The type and the count to move this tensor with: bytes where the library has no such type."""
    known = TYPES.get(tensor.dtype)
    if known is None:
        return DataType.UINT8.value, tensor.numel() * tensor.element_size()
    return known[0], tensor.numel() * known[1]


def check(tensor: Any, what: str) -> torch.Tensor:
    """The tensor, where it is one that lies in memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{what}: {type(tensor).__name__} is no tensor; give one, or a list of them"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"{what}: a {tensor.layout} tensor has no single block of memory; use to_dense()"
        )
    if tensor.device.type == "meta":
        raise ValueError(
            f"{what}: the tensor is on meta, and has a shape but no data; give one that has, as "
            'torch.empty_like(tensor, device="cpu")'
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"{what}: the tensor is on {tensor.device}, and ringcomm moves tensors of cpu and "
            "cuda; copy it there first"
        )
    return tensor


def same_type(what: str, tensors: Iterable[Any]) -> None:
    """All of these are tensors in memory, of one type."""
    tensors = [check(tensor, what) for tensor in tensors]
    for tensor in tensors[1:]:
        if tensor.dtype != tensors[0].dtype:
            raise TypeError(
                f"{what}: tensors of different types (invalid tensor type): {tensors[0].dtype} and "
                f"{tensor.dtype}; convert one"
            )


def check_row(what: str, row: List[Any], ranks: int, like: torch.Tensor) -> None:
    """The row has a tensor for each rank, each with the type and the size of `like`."""
    if len(row) != ranks:
        raise ValueError(
            f"{what}: {len(row)} tensors in a list for {ranks} ranks; give one for each"
        )
    same_type(what, [like, *row])
    for rank, tensor in enumerate(row):
        if tensor.numel() != like.numel():
            raise ValueError(
                f"{what}: the list's tensor for rank {rank} has {tensor.numel()} elements, and "
                f"this rank's tensor {like.numel()}; give them one size"
            )


def check_pairs(what: str, outputs: Any, inputs: Any) -> None:
    """There are as many outputs as inputs."""
    if len(outputs) != len(inputs):
        raise ValueError(
            f"{what}: {len(outputs)} outputs for {len(inputs)} inputs; give one for each"
        )


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    (first, size), (second, _) = sorted((each.data_ptr(), each.nbytes) for each in (one, other))
    return first + size > second


def as_seen(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with memory that holds what it shows: of `x.conj()` and its parts that is only
    marked as the conjugate, or the negative, of what lies there."""
    return tensor.resolve_conj().resolve_neg()


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones in the same memory; other tensors as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Staging:
    """Contiguous places for an operation's tensors, and what brings the results back."""

    def __init__(self, on_host: bool = False) -> None:
        self._on_host = on_host
        self._back: List[Tuple[torch.Tensor, torch.Tensor]] = []
        #: Everything that must stay until the operation is done.
        self.keep: List[torch.Tensor] = []

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where to read the tensor."""
        place = as_seen(tensor.detach()).contiguous()
        if self._on_host:
            place = place.cpu()
        self.keep.append(place)
        return place

    def target(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where to write the tensor; what was in it is there."""
        place = self.source(tensor)
        if place.data_ptr() != tensor.data_ptr():
            self._back.append((tensor, place))
        return place

    def row(self, tensors: List[torch.Tensor], read: bool) -> torch.Tensor:
        """One block for all of these, in order: themselves where they lie so, else a copy."""
        block = joined(tensors)
        if block is None:
            count = sum(tensor.numel() for tensor in tensors)
            block = torch.empty(count, dtype=tensors[0].dtype, device=tensors[0].device)
            parts = torch.split(block, [tensor.numel() for tensor in tensors])
            pairs = [(tensor, part.view(tensor.shape)) for tensor, part in zip(tensors, parts)]
            if read:
                for tensor, part in pairs:
                    part.copy_(tensor.detach())
            else:
                self._back.extend(pairs)
        self.keep.append(block)
        return block

    def after(self) -> Optional[Callable[[], None]]:
        """What to do when the operation is done, if anything."""
        return self._bring_back if self._back else None

    def _bring_back(self) -> None:
        for tensor, place in self._back:
            tensor.detach().copy_(place)


def joined(tensors: List[torch.Tensor]) -> Optional[torch.Tensor]:
    """The one block that these tensors are, where they follow each other in one storage."""
    first = tensors[0]
    expected, total = first.data_ptr(), 0
    storage = first.untyped_storage().data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.data_ptr() != expected:
            return None
        if tensor.is_conj() or tensor.is_neg():
            return None
        if tensor.untyped_storage().data_ptr() != storage or tensor.dtype != first.dtype:
            return None
        expected += tensor.numel() * tensor.element_size()
        total += tensor.numel()
    return first.detach().as_strided((total,), (1,), first.storage_offset())
