"""Buckets are reduced while the backward pass that fills them goes on."""

import time

import torch
import torch.distributed as dist
from ranks import PATIENCE_S, run
from torch.nn.parallel import DistributedDataParallel


class Meanwhile(torch.autograd.Function):
    """What passes through; on its way back something is done."""

    @staticmethod
    def forward(ctx, x, action):
        ctx.action = action
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        ctx.action()
        return grad, None


class Layers(torch.nn.Module):
    """Two layers, with an action between them on the way back."""

    def __init__(self, action):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.action = action

    def forward(self, x):
        return self.last(Meanwhile.apply(self.first(x), self.action))


def first_layer_waits_for_the_last_ones_bucket(rank):
    """The first layer has a gradient only when that of the last has been reduced."""
    futures, seen, has_buckets = [], [], []

    def hook(_, bucket):
        work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True)
        futures.append(work.get_future())
        return futures[-1].then(lambda done: done.value()[0])

    def wait():
        if has_buckets:
            assert len(futures) == 1
            end = time.monotonic() + PATIENCE_S / 3
            while not futures[0].done():
                assert time.monotonic() < end, "nothing is reduced before the pass ends"
                time.sleep(0.001)
            seen.append(True)

    # A bucket for each layer; torch has one for all until the first step is over.
    model = DistributedDataParallel(Layers(wait), bucket_cap_mb=(8 * 8 + 8) * 4 / 2**20)
    model.register_comm_hook(None, hook)
    for _ in range(4):
        futures.clear()
        model(torch.randn(4, 8)).sum().backward()
        assert len(futures) == 1 + len(has_buckets)
        has_buckets[:] = [True]
    assert len(seen) == 3


def test_buckets_overlap_with_backward():
    run(2, first_layer_waits_for_the_last_ones_bucket)
