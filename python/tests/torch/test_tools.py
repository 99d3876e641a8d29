"""The tools for training over process groups of several ranks, on gloo as on ringcomm."""

import pytest
import torch
import torch.distributed as dist
from ranks import run

from ringcomm.torch import all_gather_object, broadcast_object, broadcast_parameters, reduce_mean
from ringcomm.torch.older import OLD
from ringcomm.torch.ranks import Ranks, ranks_of


def tools(rank):
    """Over all ranks, and over a group in which no rank has its own number."""
    part = dist.new_group([1, 2])
    for group, members in ((None, [0, 1, 2]), (part, [1, 2])):
        if rank not in members:
            with pytest.raises(ValueError, match="only its members"):
                reduce_mean({"loss": 1.0}, group=group)
            continue
        last = len(members) - 1
        mine = {"rank": rank, "data": bytes(rank * 1_000_000)}
        everyone = all_gather_object(mine, group=group)
        assert [(one["rank"], len(one["data"])) for one in everyone] == [
            (member, member * 1_000_000) for member in members
        ]
        found = broadcast_object(mine if rank == members[last] else None, last, group)
        assert found["rank"] == members[last]
        assert (found is mine) == (rank == members[last])
        means = reduce_mean({"rank": torch.tensor(float(rank)), "one": 1}, weight=rank, group=group)
        # Weights are the ranks: those of 0, 1, 2 and of 1, 2 have the same mean.
        assert means["rank"].item() == pytest.approx(5 / 3) and means["one"] == 1
        model = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(model.weight, rank)
        broadcast_parameters(model, last, group)
        assert (model.weight == members[last]).all()


#: A gloo group's end waits there for its thread and keeps the GIL, for which that thread may wait.
not_when_old = pytest.mark.skipif(OLD, reason="in torch 2.6 the end of a gloo group may not return")


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=not_when_old), "ringcomm"])
def test_tools_over_groups(backend):
    run(3, tools, backend=backend)


def places(rank, expected):
    assert ranks_of(None).device == torch.device(expected)


@pytest.mark.parametrize(
    "backend,expected",
    [("cuda:gloo", "cuda"), ("gloo", "cpu"), ("ringcomm", "cpu"), ("cpu:gloo,cuda:gloo", "cpu")],
)
def test_figures_lie_where_the_group_has_a_backend(backend, expected):
    """As with nccl, which exchanges nothing that is in the host's memory."""
    run(1, places, expected, backend=backend)


class Elsewhere(Ranks):
    """Ranks that exchange tensors of another device only: heads first, then figures."""

    rank, size, device = 0, 1, torch.device("meta")

    def __init__(self):
        self.gathered = []

    def all_gather(self, tensor):
        assert tensor.device == self.device
        self.gathered.append(tensor)
        return torch.ones(1, len(tensor))


def test_means_are_exchanged_there():
    ranks = Elsewhere()
    with pytest.raises(RuntimeError, match="meta"):
        # The weights have gone there as well, and the stand-in's answer has not.
        reduce_mean({"loss": 1.0, "accuracy": torch.ones(2)}, group=ranks)
    assert [len(tensor) for tensor in ranks.gathered] == [2, 3]
