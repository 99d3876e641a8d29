"""What ranks of `ringcomm.horovod.torch` do differently, or late: told, or right, never mixed."""

from functools import partial

import pytest
import torch

import ringcomm.horovod.torch as hvd
from test_horovod import RANKS, everyone, loss_of, model_of


def asked():
    """Every asynchronous call's handle can be asked whether it is over."""
    starts = [
        lambda: hvd.allreduce_async(torch.ones(3)),
        lambda: hvd.allreduce_async_(torch.ones(3)),
        lambda: hvd.allgather_async(torch.ones(3)),
        lambda: hvd.broadcast_async(torch.ones(3), 0),
        lambda: hvd.broadcast_async_(torch.ones(3), 0),
        lambda: hvd.alltoall_async(torch.ones(3)),
        lambda: hvd.alltoall_async(torch.ones(3), [1] * RANKS),
        lambda: hvd.reducescatter_async(torch.ones(3)),
        lambda: hvd.grouped_allreduce_async([torch.ones(3)] * 2),
        lambda: hvd.grouped_allreduce_async_([torch.ones(3), torch.ones(2)]),
        lambda: hvd.grouped_allgather_async([torch.ones(3)] * 2),
        lambda: hvd.grouped_reducescatter_async([torch.ones(3)] * 2),
    ]
    for start in starts:
        handle = start()
        while not hvd.poll(handle):
            pass
        hvd.synchronize(handle)
        assert hvd.poll(handle)


UNLIKE = {
    "wider": lambda rank: torch.ones(2, 3 + (rank == 1)),
    "as many": lambda rank: torch.ones(2, *[(6, 2), (4, 3), (12, 1)][rank]),
    "dimensions": lambda rank: torch.ones(2, 6) if rank else torch.ones(2, 2, 3),
    "type": lambda rank: torch.ones(3, dtype=torch.float32 if rank else torch.int32),
}


def unlike(name, exchanges):
    of_rank = UNLIKE[name]
    with pytest.raises(hvd.HorovodInternalError, match="'all.*.rows' is not the same") as told:
        if exchanges:
            hvd.alltoall(of_rank(hvd.rank()), [1, 1, 0], name="rows")
        else:
            hvd.allgather(of_rank(hvd.rank()), name="rows")
    for rank in range(RANKS):
        mine = of_rank(rank)
        shape = "x".join(map(str, ["*", *mine.shape[1:]]))
        side = f"of {str(mine.dtype)[6:]} {shape}"
        assert any(
            str(rank) in said.split(":")[0] and said.endswith(side)
            for said in str(told.value).split(": ", 1)[1].split("; ")
        ), told.value
    # And the job goes on.
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == RANKS


def scalars():
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(ValueError, match="one dimension at least"):
            call(torch.tensor(1.0))


def by_name():
    """A mapping's order is its rank's own affair."""
    values = {"x": torch.full((3,), 1.0 + hvd.rank()), "y": torch.full((3,), 50.0 + hvd.rank())}
    if hvd.rank() == 1:
        values = dict(reversed(values.items()))
    hvd.broadcast_parameters(values, root_rank=0)
    assert values["x"].tolist() == [1] * 3 and values["y"].tolist() == [50] * 3


def other_tensors():
    name = "weight" if hvd.rank() == 0 else "bias"
    with pytest.raises(ValueError, match=r"rank 0 has \('weight', .*rank 1 has \('bias',"):
        hvd.broadcast_parameters({name: torch.ones(3)}, 0)
    with pytest.raises(ValueError, match="rank 0 has None, and rank 1 has"):
        hvd.broadcast_parameters([torch.ones(3)] * hvd.rank(), 0)


def alone(optimizer_of, change, steps=4, at=2):
    """The weights of one process that sees every rank's batch."""
    model = model_of()
    optimizer = optimizer_of(model)
    for step in range(steps):
        if step == at:
            change(model, optimizer)
        optimizer.zero_grad()
        for rank in range(RANKS):
            (loss_of(model, rank, step) / RANKS).backward()
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def together(optimizer_of, change, steps=4, at=2):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(optimizer_of(model))
    for step in range(steps):
        if step == at:
            change(model, optimizer)
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def frozen_first(model):
    model[0].requires_grad_(False)
    return torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)


def second_only(model):
    return torch.optim.SGD(model[2].parameters(), 0.1)


def all_of_it(model):
    return torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)


CHANGES = {
    "unfrozen": (frozen_first, lambda model, _: model[0].requires_grad_(True)),
    "frozen": (all_of_it, lambda model, _: model[0].requires_grad_(False)),
    "added": (
        second_only,
        lambda model, optimizer: optimizer.add_param_group(
            {"params": list(model[0].parameters()), "lr": 0.01}
        ),
    ),
}


def averaged(name):
    return together(*CHANGES[name])


@pytest.mark.parametrize("name", CHANGES)
def test_parameters_that_come_and_go_are_averaged_from_then_on(name):
    expected = alone(*CHANGES[name])
    for weights in everyone(partial(averaged, name)):
        for one, other in zip(weights, expected):
            assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("name", UNLIKE)
def test_rows_that_do_not_fit_are_told_on_all_ranks(name):
    everyone(partial(unlike, name, False))


@pytest.mark.parametrize("name", ["wider", "as many", "dimensions", "type"])
def test_rows_to_exchange_that_do_not_fit_are_told_on_all_ranks(name):
    everyone(partial(unlike, name, True))


@pytest.mark.parametrize(
    "body", [asked, by_name, other_tensors, scalars], ids=lambda body: body.__name__
)
def test_on_every_rank(body):
    everyone(body)
