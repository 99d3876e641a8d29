"""Modes of torch that hold around calls: default devices, and those that see or stand in for
tensors."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ranks import run
from torch._C._distributed_c10d import GatherOptions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import ringcomm.torch as tools
from ringcomm.torch.group import HAS_INNER


def collectives(rank, size):
    tensor = torch.full((3,), rank + 1.0, device="cpu")
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
    assert tensor.tolist() == [size * (size + 1.0)] * 3
    # The backend is asked itself, as torch's C++ code asks it.
    indices = torch.full((1, 1), rank, device="cpu")
    sparse = torch.sparse_coo_tensor(indices, torch.ones(1, device="cpu"), (size,), device="cpu")
    dist.group.WORLD.allreduce([sparse]).wait()
    assert sparse.device.type == "cpu" and sparse.to_dense().tolist() == [1.0] * size
    blocks = torch.empty(2 * size, 4, device="cpu")
    dist.all_gather_into_tensor(blocks[:, ::2], torch.full((2, 2), float(rank), device="cpu"))
    assert blocks[::2, 0].tolist() == list(range(size))


def messages(rank, size):
    """Each comes before it is asked for, and is put aside."""
    for count in (1, 100_000):
        sent = [torch.full((count,), float(tag), device="cpu") for tag in (1, 2)]
        works = [dist.isend(tensor, (rank + 1) % size, tag=tag) for tag, tensor in enumerate(sent)]
        for tag in (1, 0):
            got = torch.empty(count, device="cpu")
            dist.irecv(got, (rank - 1) % size, tag=tag).wait()
            assert torch.equal(got, sent[tag])
        for work in works:
            work.wait()


def training(rank, size):
    model = torch.nn.Linear(3, 1, device="cpu")
    tools.broadcast_parameters(model)
    norm = tools.convert_sync_batchnorm(torch.nn.BatchNorm1d(3, device="cpu"))
    model(norm(torch.full((4, 3), rank + 1.0, device="cpu"))).sum().backward()
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    scaler.scale(torch.ones(1, device="cpu"))
    optimizer = torch.optim.SGD([*model.parameters(), *norm.parameters()], 0.1)
    scaler.unscale_(optimizer)
    assert tools.reduce_gradients(model, scaler=scaler)
    means = {"number": float(rank), "tensor": torch.full((2,), float(rank), device="cpu")}
    means = tools.reduce_mean(means)
    assert means["number"] == (size - 1) / 2 and means["tensor"].tolist() == [(size - 1) / 2] * 2
    assert tools.all_gather_object(rank) == list(range(size))
    for shape in ((0, 2), (3, 2)):
        shared = tools.empty_shared(*shape)
        assert shared.shape == shape and shared.device.type == "cpu"
    replicas = tools.DataParallel(torch.nn.Linear(3, 2, device="cpu"), ["cpu"] * 2)
    output = replicas(torch.ones(5, 3, device="cpu"))
    assert output.shape == (5, 2) and output.device.type == "cpu"
    output.sum().backward()


def elsewhere(rank, function):
    """The function's own tensors name their device; what the package makes is as theirs."""
    with torch.device("meta"):
        function(rank, dist.get_world_size())


@pytest.mark.parametrize(
    "function", [collectives, messages, training], ids=lambda function: function.__name__
)
def test_a_default_device_is_for_tensors_of_the_program(function):
    run(2, elsewhere, function)


#: Torch's operators have nobody to call for a group that is no Backend.
needs_inner = pytest.mark.skipif(not HAS_INNER, reason="needs torch 2.14")


class Watching(TorchDispatchMode):
    """What calls c10d's operators see, and nothing changed."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.calls.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def of_every_kind(rank, size):
    """Each call's name, and what it fills here, with what the others' tensors give."""
    group, root = dist.group.WORLD, GatherOptions()
    root.rootRank = 1

    def mine(count=size):
        return torch.full((count,), rank + 1.0)

    def row():
        return [torch.zeros(size) for _ in range(size)]

    each, total = [other + 1.0 for other in range(size)], size * (size + 1) / 2
    tensor = mine()
    yield "allreduce_", dist.all_reduce(tensor), tensor, [total] * size
    tensor = mine()
    yield "allreduce_", dist.all_reduce(tensor, async_op=True).wait(), tensor, [total] * size
    tensor = mine()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    yield "allreduce_", future.wait(), tensor, [total] * size
    tensor = mine()
    yield "allreduce_", group.allreduce([tensor], dist.ReduceOp.MAX).wait(), tensor, [size] * size
    tensor = mine()
    yield "broadcast_", dist.broadcast(tensor, 1), tensor, [2.0] * size
    tensor = mine()
    yield "reduce_", dist.reduce(tensor, 1), tensor, [total if rank == 1 else 1.0] * size
    out = row()
    yield "allgather_", dist.all_gather(out, mine()), torch.stack(out)[:, 0], each
    out = torch.zeros(size)
    yield "_allgather_base_", dist.all_gather_into_tensor(out, mine(1)), out, each
    out = row()
    dist.gather(mine(), out if rank == 1 else None, 1)
    yield "gather_", None, torch.stack(out)[:, 0], each if rank == 1 else [0.0] * size
    out = torch.zeros(size)
    group.gather_single(out, mine(1), root).wait()
    yield "gather_", None, out, each if rank == 1 else [0.0] * size
    out = torch.zeros(size)
    yield "scatter_", dist.scatter(out, [mine()] * size if rank == 0 else None), out, [1.0] * size
    out = torch.zeros(size)
    yield "reduce_scatter_", dist.reduce_scatter(out, [mine()] * size), out, [total] * size
    out = torch.zeros(1)
    yield "_reduce_scatter_base_", dist.reduce_scatter_tensor(out, mine()), out, [total]
    out = torch.zeros(size)
    yield "alltoall_base_", dist.all_to_all_single(out, mine()), out, each
    out = row()
    yield "alltoall_", dist.all_to_all(out, [mine()] * size), torch.stack(out)[:, 0], each
    yield "barrier", dist.barrier(), mine(), None


def watched(rank):
    size = dist.get_world_size()
    with Watching() as outer, Watching() as inner:
        calls = of_every_kind(rank, size)
        made = []
        while True:
            before = len(inner.calls)
            try:
                name, _, tensor, expected = next(calls)
            except StopIteration:
                break
            made.append(name)
            assert inner.calls[before:] == [name]
            assert expected is None or tensor.tolist() == expected, name
        assert outer.calls == inner.calls == made
        got = torch.zeros(3)
        work = dist.isend(torch.full((3,), float(rank)), (rank + 1) % size, tag=7)
        dist.recv(got, (rank - 1) % size, tag=7)
        work.wait()
        assert got.tolist() == [(rank - 1.0) % size] * 3
        assert sorted(inner.calls[len(made) :]) == ["recv_", "send"]
    # Nobody looks any longer.
    dist.all_reduce(got)
    assert len(inner.calls) == len(made) + 2


def stood_in_for(rank):
    """Tensors without memory have shapes, and reach no other rank."""
    size = dist.get_world_size()
    with FakeTensorMode() as mode:
        for name, _, tensor, expected in of_every_kind(rank, size):
            assert expected is None or tensor.shape == (len(expected),), name
        kept = torch.empty(3)
    # A fake tensor is one outside of its mode, too.
    out = mode.from_tensor(torch.empty(3 * size))
    dist.all_gather_into_tensor(out, kept)
    dist.all_reduce(kept)
    dist.all_reduce(kept, async_op=True).wait()
    # One that waits for itself when it is used is a stand-in as well.
    tensor = funcol.all_reduce(torch.full((3,), rank + 1.0), "sum", dist.group.WORLD)
    dist.broadcast(tensor, 0)
    assert tensor.tolist() == [size * (size + 1) / 2] * 3


@needs_inner
@pytest.mark.parametrize(
    "function", [watched, stood_in_for], ids=lambda function: function.__name__
)
def test_modes_of_the_dispatcher(function):
    run(2, function)
