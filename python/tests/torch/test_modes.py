"""Modes of torch that hold around calls: default devices, and those that see or stand in for
tensors."""

import pytest
import torch
import torch.distributed as dist
from ranks import run

import ringcomm.torch as tools


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
