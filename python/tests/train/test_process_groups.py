"""The tools over process groups of torch.distributed: one rank, so that no other process is needed.

What several ranks do is tested over ranks in threads, and by the examples.
"""

import pytest
import torch
import torch.distributed as dist
from ranks_in_threads import run
from torch import nn

from ringcomm.horovod.torch.group import _BroadcastStore
from ringcomm.torch import (
    DataParallel,
    all_gather_object,
    broadcast_object,
    broadcast_parameters,
    convert_sync_batchnorm,
    reduce_gradients,
    reduce_mean,
)


@pytest.fixture(params=["ringcomm", "gloo"])
def backend(request):
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize("named", [False, True])
def test_every_tool_takes_groups(backend, named):
    group = dist.new_group([0]) if named else None
    assert all_gather_object({"one": 1}, group=group) == [{"one": 1}]
    assert broadcast_object("text", group=group) == "text"
    assert reduce_mean({"loss": 0.5}, group=group) == {"loss": 0.5}
    model = convert_sync_batchnorm(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), group)
    broadcast_parameters(model, group=group)
    model(torch.randn(4, 3)).square().sum().backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    assert reduce_gradients(model, group=group)
    after = [parameter.grad for parameter in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after))


def test_without_a_group_it_is_said_what_to_do():
    with pytest.raises(RuntimeError, match="init_process_group"):
        reduce_mean({"loss": 1.0})
    # DataParallel's ranks are its own.
    assert DataParallel(nn.Linear(3, 2), ["cpu"] * 2)(torch.ones(4, 3)).shape == (4, 2)


def test_words_of_a_broadcast_are_known_by_their_keys():
    """Threads of the ranks make comm streams in any order."""

    def speak(comm):
        store, keys = _BroadcastStore(comm), ["a", "b"]
        if comm.rank == 0:
            return [store.set(key, key.encode()) for key in keys]
        return [store.get(key) for key in reversed(keys)]

    assert run(2, speak) == [[None, None], [b"b", b"a"]]
