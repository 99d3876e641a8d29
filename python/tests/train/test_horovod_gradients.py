"""Gradients that flow through the calls of `ringcomm.horovod.torch`."""

import pytest
import torch

import ringcomm.horovod.torch as hvd
from test_horovod import RANKS, everyone


def gradients_flow():
    rank = hvd.rank()
    weight = torch.full((2,), 1.0 + rank, requires_grad=True)
    (hvd.allreduce(weight, op=hvd.Sum) * (rank + 1)).sum().backward()
    assert weight.grad.tolist() == [6, 6]
    weight.grad = None
    gathered = hvd.allgather(weight)
    (gathered * torch.arange(6.0) * (rank + 1)).sum().backward()
    assert weight.grad.tolist() == [4 * rank, 4 * rank + 2], "the average over ranks, as Horovod's"
    weight.grad = None
    (hvd.broadcast(weight, 1) * (rank + 1)).sum().backward()
    assert weight.grad.tolist() == ([2, 2] if rank == 1 else [0, 0])


def gradients_move():
    rank = hvd.rank()
    rows = torch.ones(3, requires_grad=True)
    (hvd.alltoall(rows) * (rank + 1)).sum().backward()
    assert rows.grad.tolist() == [1, 2, 3], "what the rank that got the row made of it"
    rows.grad = None
    received, counts = hvd.alltoall(rows, splits=[0, 1, 2])
    assert not counts.requires_grad
    (received * (rank + 1)).sum().backward()
    assert rows.grad.tolist() == [2, 3, 3]
    for op, factor in ((hvd.Average, 1), (hvd.Sum, RANKS)):
        rows.grad = None
        part = hvd.reducescatter(rows, op=op, prescale_factor=0.5, postscale_factor=4.0)
        (part * (rank + 1)).sum().backward()
        assert rows.grad.tolist() == [2 * factor, 4 * factor, 6 * factor]
    # Whether a rank needs gradients is its own affair.
    mine = torch.full((rank,), 1.0, requires_grad=rank == 2)
    assert hvd.allgather(mine).tolist() == [1, 1, 1]


def gradients_of_gradients():
    weight = torch.full((2,), 1.0 + hvd.rank(), requires_grad=True)
    cubes = hvd.allreduce(weight, op=hvd.Sum).pow(3).sum()
    (slope,) = torch.autograd.grad(cubes, weight, create_graph=True)
    slope.sum().backward()
    # Every rank adds 3 s^2 of each, and every rank's weight is in every s.
    assert weight.grad.tolist() == [RANKS * RANKS * 6 * 6] * 2
    rows = torch.ones(3, requires_grad=True)
    cubes = (hvd.alltoall(rows).pow(3) * (hvd.rank() + 1)).sum()
    (slope,) = torch.autograd.grad(cubes, rows, create_graph=True)
    slope.sum().backward()
    assert rows.grad.tolist() == [6, 12, 18]


@pytest.mark.parametrize(
    "body",
    [gradients_flow, gradients_move, gradients_of_gradients],
    ids=lambda body: body.__name__,
)
def test_gradients(body):
    everyone(body)
