"""Tensors and DistributedDataParallel's buckets in shared memory: the same, where others see it."""

import pytest
import torch
import torch.distributed as dist
from ranks import run
from test_training import RANKS, batches, everyone_has, loss_of, network, same, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringcomm.torch


class Branches(nn.Module):
    """A network of which each rank uses another part, beside one that all use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.parts = nn.ModuleList(nn.Linear(20, 5) for _ in range(RANKS))
        self.shared = nn.Linear(20, 5)

    def forward(self, data, rank=None):
        parts = self.parts if rank is None else [self.parts[rank]]
        return self.shared(data) + sum(part(data) for part in parts)


def in_shared_memory(model, at_least):
    """How many of the gradients lie where other processes see them is at least this."""
    shared = [
        exported(parameter.grad.data_ptr(), parameter.grad.numel() * 4)
        for parameter in model.parameters()
    ]
    assert sum(shared) >= at_least, shared


def exported(address, nbytes):
    """Whether an address is in a mapping that is shared."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(word, 16) for word in line.split()[0].split("-"))
            if low <= address and address + nbytes <= high:
                return line.split()[1].endswith("s")
    return False


def tensors(rank):
    shared = ringcomm.torch.empty_shared(3, 1000, dtype=torch.float64)
    assert shared.shape == (3, 1000) and not shared.any()
    assert exported(shared.data_ptr(), shared.numel() * 8)
    shared += rank + 1
    dist.all_reduce(shared)
    assert (shared == 3).all()
    single, none = ringcomm.torch.empty_shared(), ringcomm.torch.empty_shared(0, 5)
    assert single.shape == () and none.shape == (0, 5) and single.dtype == torch.float32
    place = shared.data_ptr()
    del shared
    assert not exported(place, 1)


def as_without(rank):
    alone = train(network())
    for settings in ({}, {"bucket_cap_mb": 0.005}, {"find_unused_parameters": True}):
        model = DistributedDataParallel(network(), gradient_as_bucket_view=True, **settings)
        ringcomm.torch.share_buckets(model)
        # torch makes its buckets anew after the first step, in the order of the gradients.
        same(train(model, rank), alone)
        everyone_has(model)
        data, labels = batches()[0]
        loss_of(model, data, labels).backward()
        in_shared_memory(model, len(list(model.parameters())))
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    ringcomm.torch.share_buckets(model)
    same(train(model, rank, accumulate=3), train(network(), accumulate=3))


def of_what_is_not_used(rank):
    """A rank without a gradient has no view to move; what is averaged is the same."""
    found = []
    for share in (False, True):
        model = DistributedDataParallel(
            Branches(), gradient_as_bucket_view=True, find_unused_parameters=True
        )
        if share:
            ringcomm.torch.share_buckets(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for index, (data, labels) in enumerate(batches()):
            # Each part is used by one rank, by the other, and by none.
            part = [rank, 1 - rank, 0][index % 3]
            nn.functional.cross_entropy(model(data[rank::2], part), labels[rank::2]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=index % 2 == 0)
        everyone_has(model)
        found.append(model)
    same(*found)


def with_uneven_ranks(rank):
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    ringcomm.torch.share_buckets(model)
    with model.join():
        for data, labels in batches()[: 3 + 2 * rank]:
            loss_of(model, data, labels).backward()
            model.zero_grad()
    everyone_has(model)


def refused(rank):
    with pytest.raises(TypeError, match="Linear is no DistributedDataParallel; give"):
        ringcomm.torch.share_buckets(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="gradient_as_bucket_view=True"):
        ringcomm.torch.share_buckets(DistributedDataParallel(nn.Linear(1, 1)))
    other = DistributedDataParallel(
        nn.Linear(1, 1), process_group=dist.new_group(backend="gloo"), gradient_as_bucket_view=True
    )
    with pytest.raises(ValueError, match="not one of ringcomm"):
        ringcomm.torch.share_buckets(other)


@pytest.mark.parametrize(
    "function",
    [tensors, as_without, of_what_is_not_used, with_uneven_ranks, refused],
    ids=lambda function: function.__name__,
)
def test_shared(function):
    run(RANKS, function)
