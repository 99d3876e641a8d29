"""All-reduce of sparse tensors: every rank gets the entries of all, and adds them in the order of
ranks."""

from __future__ import annotations

from typing import Any, List

import torch
from torch._C._distributed_c10d import AllgatherOptions
from torch._C._distributed_c10d import ReduceOp as TorchOp

from .types import kind_of
from .work import Done


def all_reduce_sparse(group: Any, tensors: List[torch.Tensor], op: Any) -> Done:
    """Reduce sparse tensors in place. Entries differ from rank to rank, so their number goes
    first."""
    if kind_of(op) not in (TorchOp.SUM, TorchOp.AVG):
        raise ValueError(
            f"all_reduce: sparse tensors have sums and averages, not {op}; use to_dense()"
        )
    for tensor in tensors:
        if tensor.layout is not torch.sparse_coo:
            raise ValueError(
                "all_reduce: some of the tensors are sparse; give them in calls of their own"
            )
        total = _sum_of_all(group, tensor)
        if kind_of(op) == TorchOp.AVG:
            total = (total / group.size()).coalesce()
        with torch.no_grad():
            tensor.sparse_resize_and_clear_(total.shape, total.sparse_dim(), total.dense_dim())
            tensor.copy_(total)
    return Done(tensors)


def _sum_of_all(group: Any, tensor: torch.Tensor) -> torch.Tensor:
    own = tensor.detach().coalesce()
    indices, values = own.indices(), own.values()
    count = torch.tensor([indices.shape[1]], device="cpu")
    counts = [torch.zeros_like(count) for _ in range(group.size())]
    _gather(group, counts, count)
    sizes = [int(each) for each in counts]
    # Entries along the first dimension, so that each rank's are one block.
    rows = [indices.new_empty((size, indices.shape[0])) for size in sizes]
    _gather(group, rows, indices.t().contiguous())
    entries = [values.new_empty((size, *values.shape[1:])) for size in sizes]
    _gather(group, entries, values.contiguous())
    every = torch.sparse_coo_tensor(
        torch.cat(rows).t(), torch.cat(entries), tensor.shape, device=tensor.device
    )
    return every.coalesce()


def _gather(group: Any, outputs: List[torch.Tensor], source: torch.Tensor) -> None:
    work = group.allgather([outputs], [source], AllgatherOptions())
    if work is not None:
        work.wait()
