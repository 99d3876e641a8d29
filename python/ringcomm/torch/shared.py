"""Tensors, and the buckets of DistributedDataParallel, in memory that the ranks of a machine share.

torch allocates where other processes cannot see, so that an all-reduce goes through slots: copied
in by one rank, out by another, each waiting for the other every few hundred KiB. In shared memory a
rank adds where its peers' values lie, and two meetings are all that it waits for.

torch's buckets have no place for another allocator, but with `gradient_as_bucket_view` each of its
views of a bucket is some parameter's gradient. So the first time that a bucket comes by, it and
those gradients are given new memory; they stay the tensors that torch holds.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Set, Tuple

import torch
import torch.distributed as dist

from ..memory import Memory
from .group import Group


def empty_shared(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on the CPU, of zeros, in memory that the other ranks of the machine reach directly.

    Collectives on it copy less. It goes when nothing uses it any more.
    """
    count = math.prod(size)
    if count == 0:
        return torch.zeros(size, dtype=dtype, device="cpu")
    memory = Memory(count * dtype.itemsize)
    return torch.frombuffer(memory.view(), dtype=dtype, count=count).view(size)


def share_buckets(model: Any) -> None:
    """Put the buckets of a model under DistributedDataParallel into memory that ranks share.

    Call it on every rank, before the first step. The model has `gradient_as_bucket_view=True`, a
    group of ringcomm and its parameters on the CPU, and no other hook. Gradients are averaged as
    without it, for less of the processor's time where ranks are processes of one machine.
    """
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(
            f"share_buckets: {type(model).__name__} is no DistributedDataParallel; give the model "
            "that is wrapped in one"
        )
    if not isinstance(model.process_group, Group):
        raise ValueError(
            "share_buckets: the model's process group is not one of ringcomm; give "
            "DistributedDataParallel one as process_group="
        )
    if not model.gradient_as_bucket_view:
        raise ValueError(
            "share_buckets: give DistributedDataParallel gradient_as_bucket_view=True, so that "
            "gradients are views of its buckets"
        )
    buckets = _SharedBuckets(model.process_group)
    # torch compares a hook's annotations with types, and these modules' are texts.
    model.register_comm_hook(None, lambda _, bucket: buckets.average(bucket))


class _SharedBuckets:
    """What has become of a model's buckets."""

    def __init__(self, group: Group) -> None:
        self._group = group
        #: By a bucket's index: its memory, kept so that no other bucket can come to lie there.
        self._memory: Dict[int, torch.Tensor] = {}
        #: Buckets that moved in the step before.
        self._moved: Set[int] = set()

    def average(self, bucket: Any) -> Any:
        """Average a bucket over the ranks, in place; a future of it."""
        buffer = bucket.buffer()
        known = self._memory.get(bucket.index())
        if known is None or known.data_ptr() != buffer.data_ptr():
            self._move(bucket, buffer)
        elif bucket.index() in self._moved:
            self._moved.remove(bucket.index())
            _check(buffer, bucket.parameters())
        work = dist.all_reduce(buffer, dist.ReduceOp.AVG, group=self._group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def _move(self, bucket: Any, buffer: torch.Tensor) -> None:
        """Give a bucket shared memory, if its views are all within reach."""
        views = _views(buffer, [parameter.grad for parameter in bucket.parameters()])
        if not views:
            return
        moved = empty_shared(buffer.numel(), dtype=buffer.dtype).copy_(buffer)
        for view, offset in views:
            view.data = moved.as_strided(view.size(), view.stride(), offset)
        buffer.data = moved
        self._memory[bucket.index()] = moved
        self._moved.add(bucket.index())


def _check(buffer: torch.Tensor, parameters: List[torch.Tensor]) -> None:
    """torch's views have moved with the gradients, which were the same tensors."""
    storage = buffer.untyped_storage().data_ptr()
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.untyped_storage().data_ptr() != storage:
            raise RuntimeError(
                "share_buckets: some parameter's grad was another tensor than the view of torch's "
                "bucket when that moved: leave grad to torch in the first two steps"
            )


def _views(buffer: torch.Tensor, gradients: List[Any]) -> List[Tuple[torch.Tensor, int]]:
    """The gradients, each with its place in the buffer; none if one of them is not a view of it.

    It is not where a parameter took no part in this step, where gradients are sparse, and where a
    rank that has no data sends zeros in the place of a bucket.
    """
    if buffer.layout is not torch.strided or buffer.device.type != "cpu":
        return []
    storage = buffer.untyped_storage().data_ptr()
    views = []
    for gradient in gradients:
        if gradient is None or gradient.layout is not torch.strided:
            return []
        if gradient.untyped_storage().data_ptr() != storage:
            return []
        views.append((gradient, gradient.storage_offset() - buffer.storage_offset()))
    return views
