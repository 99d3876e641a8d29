"""Code of torch.compile that makes calls, and models under DistributedDataParallel in it."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import run
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
TOTAL = RANKS * (RANKS + 1) / 2


def reduces(x, rank):
    y = x * 2
    dist.all_reduce(y)
    return y + 1, 2 * TOTAL + 1


def reduces_later(x, rank):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    work.wait()
    return y + 0 * z, 2 * TOTAL


def meets(x, rank):
    y = x + 1
    dist.barrier()
    return y * 2, 2 * (rank + 2)


def broadcasts(x, rank):
    y = x * 2
    dist.broadcast(y, 0)
    return y + 1, 3


def exchanges_messages(x, rank):
    y = torch.empty(4)
    work = dist.isend(x, 1 - rank)
    dist.recv(y, 1 - rank)
    work.wait()
    return y * 1, 2 - rank


def called(rank):
    for function in (reduces, reduces_later, meets, broadcasts, exchanges_messages):
        fast = torch.compile(function, backend="eager")
        for _ in range(2):
            got, expected = fast(torch.full((4,), rank + 1.0), rank)
            assert got.tolist() == [expected] * 4, function.__name__


def wrapped(rank):
    for outside in (True, False):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        if outside:
            model = torch.compile(DistributedDataParallel(net), backend="eager")
        else:
            model = DistributedDataParallel(torch.compile(net, backend="eager"))
        for step in range(3):
            model(torch.full((2, 4), rank + step + 1.0)).sum().backward()
        grads = [torch.empty(4, 4) for _ in range(RANKS)]
        dist.all_gather(grads, net[0].weight.grad)
        assert torch.equal(grads[0], grads[1]) and grads[0].any()


@pytest.mark.parametrize("function", [called, wrapped], ids=lambda function: function.__name__)
def test_compiled(function):
    run(RANKS, function)


BEFORE, AFTER = "import torch._dynamo, ringcomm.torch", "import ringcomm.torch, torch._dynamo"


@pytest.mark.parametrize("imports", [BEFORE, AFTER], ids=["before", "after"])
def test_the_compiler_leaves_the_package_out(imports):
    """Whichever is imported first; nothing else of the caller's is left out."""
    lines = [
        imports,
        "from torch._dynamo.trace_rules import check_file",
        "assert check_file(ringcomm.torch.group.__file__).skipped",
        "assert check_file(ringcomm.communicator.__file__).skipped",
        "assert not check_file('/a/model.py').skipped",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_the_compiler_is_not_imported():
    """It takes longer than torch."""
    lines = "import sys, ringcomm.torch", "assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
