"""A loop over `fully_shard` that goes on after a death: shards that died are in a checkpoint."""

import copy
import os
import signal

import pytest
import torch
import torch.distributed as dist
from ranks import run
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import SHRINK_ABORT

import ringcomm
from ringcomm.torch import advice, dead_ranks

pytestmark = pytest.mark.skipif(
    not advice.SHRINKS, reason=f"torch {torch.__version__} shrinks no group of a backend in Python"
)
RANKS, STEPS, EVERY, SAMPLES = 4, 12, 3, 12
WHOLE = states.StateDictOptions(full_state_dict=True)


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))


def optimizer_of(model):
    # torch fills the state of an optimizer that has made no step by a step without gradients, which
    # Adam would count.
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def batch(step):
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(SAMPLES, 8, generator=drawn), torch.randint(3, (SAMPLES,), generator=drawn)


class Sharded:
    """The network and its optimizer over the ranks that are left, from a checkpoint."""

    def __init__(self, checkpoint=None):
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.model = network()
        for layer in self.model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = optimizer_of(self.model)
        self.steps = 0
        if checkpoint is not None:
            self.steps, weights, moments = copy.deepcopy(checkpoint)
            states.set_model_state_dict(self.model, weights, options=WHOLE)
            states.set_optimizer_state_dict(self.model, self.optimizer, moments, options=WHOLE)

    def checkpoint(self):
        """All of it, in the memory of every rank."""
        weights = states.get_model_state_dict(self.model, options=WHOLE)
        moments = states.get_optimizer_state_dict(self.model, self.optimizer, options=WHOLE)
        return copy.deepcopy((self.steps, weights, moments))

    def step(self, dies):
        data, labels = (each[dist.get_rank() :: dist.get_world_size()] for each in batch(self.steps))
        loss = nn.functional.cross_entropy(self.model(data), labels)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1


def trains_on(rank, victim, killed_in):
    sharded, kept, repeated = Sharded(), None, 0
    while sharded.steps < STEPS:
        try:
            if kept is None or (sharded.steps % EVERY == 0 and sharded.steps > kept[0]):
                kept = sharded.checkpoint()
            sharded.step(rank == victim and sharded.steps == killed_in)
            continue
        except ringcomm.RingError as error:
            assert "died" in str(error)
        dist.shrink_group(dead_ranks(), shrink_flags=SHRINK_ABORT)
        # Some may have taken a checkpoint that others have not: the newest that all have.
        oldest = torch.tensor([kept[0]])
        dist.all_reduce(oldest, dist.ReduceOp.MIN)
        assert oldest.item() == kept[0]
        repeated += sharded.steps - kept[0]
        sharded = Sharded(kept)
    weights = states.get_model_state_dict(sharded.model, options=WHOLE)
    return dist.get_world_size(), repeated, {name: each.numpy() for name, each in weights.items()}


def alone():
    model = network()
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        data, labels = batch(step)
        nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("victim, killed_in", [(0, 5), (3, 7)])
def test_fully_shard_goes_on_from_a_checkpoint_in_memory(victim, killed_in):
    told = run(RANKS, trains_on, victim, killed_in, may_die=[victim])
    assert told.pop(victim) is None
    expected = alone()
    for size, repeated, weights in told:
        assert size == RANKS - 1 and repeated in (killed_in % EVERY, killed_in % EVERY + 1)
        for name, value in expected.items():
            assert torch.allclose(torch.from_numpy(weights[name]), value, atol=1e-5), name
