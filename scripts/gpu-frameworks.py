#!/usr/bin/env python3
"""PyTorch on CUDA tensors through the backend "ringcomm", on one GPU: gpu-frameworks.py LIBRARY

With one process, and with two that share the GPU: every collective of torch.distributed on CUDA tensors against
the same on the processor by gloo, and DistributedDataParallel, whose weights after some steps are those of gloo's.
Prints a JSON object for each; ends with 1 if one is wrong.
"""
import datetime
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60
STEPS, BATCH = 20, 32
# Of weights after these steps: products on the device are summed in another order than on the processor.
CLOSE = 1e-4


def collectives(torch, dist, device):
    """Name, and what comes of it on this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def mine(count, of=rank):
        return (torch.arange(count, dtype=torch.float32) % 61 + of).to(device)
    whole = mine(1000)
    dist.all_reduce(whole)
    yield "all_reduce", whole
    half = mine(1000).to(torch.bfloat16)
    dist.all_reduce(half, op=dist.ReduceOp.MAX)
    yield "all_reduce of bfloat16, max", half.float()
    sent = mine(1000)
    dist.broadcast(sent, size - 1)
    yield "broadcast", sent
    reduced = mine(1000)
    dist.reduce(reduced, 0)
    yield "reduce", reduced if rank == 0 else torch.zeros(1)
    gathered = [torch.zeros(100, device=device) for _ in range(size)]
    dist.all_gather(gathered, mine(100))
    yield "all_gather", torch.cat(gathered)
    whole = torch.zeros(100 * size, device=device)
    dist.all_gather_into_tensor(whole, mine(100))
    yield "all_gather_into_tensor", whole
    if device != "cpu":
        # gloo has none: by definition.
        part = torch.zeros(100, device=device)
        dist.reduce_scatter_tensor(part, mine(100 * size))
        want = sum(mine(100 * size, of) for of in range(size))[100 * rank:100 * (rank + 1)]
        yield "reduce_scatter_tensor", part - want
        come = torch.zeros(100 * size, device=device)
        dist.all_to_all_single(come, mine(100 * size))
        want = torch.cat([mine(100 * size, of)[100 * rank:100 * (rank + 1)] for of in range(size)])
        yield "all_to_all_single", come - want
    work = dist.all_reduce(moved := mine(1 << 20), async_op=True)
    work.wait()
    yield "asynchronous all_reduce of 4 MiB", moved
    if size > 1:
        passed = mine(500)
        dist.send(passed, 1) if rank == 0 else dist.recv(passed, 0)
        yield "send and recv", passed
    said = [None] * size
    dist.all_gather_object(said, {"rank": rank})
    yield "all_gather_object", torch.tensor([float(one["rank"]) for one in said])
    dist.barrier()


def trained(torch, dist, device):
    """Weights after some steps of DDP."""
    torch.manual_seed(5)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 10)).to(device)
    model = torch.nn.parallel.DistributedDataParallel(network)
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    chance = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(BATCH, 64, generator=chance).to(device)
        y = torch.randint(10, (BATCH,), generator=chance).to(device)
        step.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        step.step()
    return torch.cat([one.detach().flatten() for one in network.parameters()])


def ran(torch, dist, backend, device, like, more=None):
    """What a backend makes of all that, by name; `more` has what else is to be looked at while its group is there."""
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=SECONDS), **like)
    found = dict(collectives(torch, dist, device))
    found |= dict(more(torch, dist, device)) if more else {}
    found["DistributedDataParallel"] = trained(torch, dist, device)
    found = {name: one.double().cpu() for name, one in found.items()}
    dist.destroy_process_group()
    return found


def compared(torch, results, wanted, **row):
    """Tell how far each result is from what is wanted, or from nothing; how many are wrong."""
    wrong = 0
    for name, got in results.items():
        want = wanted.get(name, torch.zeros_like(got))
        most = (got - want).abs().max().item()
        is_right = most <= (CLOSE if name == "DistributedDataParallel" else 0)
        wrong += not is_right
        if row["rank"] == 0 or not is_right:
            told = {"framework": f"torch {torch.__version__}", **row, "what": name, "differs_by": most,
                    "wrong": not is_right}
            # In one write, as others have the same pipe.
            print(json.dumps(told) + "\n", end="", flush=True)
    return wrong


def one_rank(rank, size, folder):
    import torch
    import torch.distributed as dist
    import ringcomm.torch  # noqa: F401  it is the backend "ringcomm"
    torch.cuda.set_device(0)
    results = {}
    for backend, device in [("gloo", "cpu"), ("ringcomm", "cuda:0")]:
        like = {"init_method": f"file://{folder}/{backend}-{size}", "rank": rank, "world_size": size}
        results[backend] = ran(torch, dist, backend, device, like)
    return compared(torch, results["ringcomm"], results["gloo"], processes=size, rank=rank)


def spawned(rank, size, folder):
    sys.exit(one_rank(rank, size, folder) != 0)


def main():
    os.environ["RINGCOMM_LIBRARY"] = os.path.abspath(sys.argv[1])
    os.environ["PYTHONPATH"] = str(ROOT / "python")
    sys.path.insert(0, str(ROOT / "python"))
    try:
        import torch
    except ImportError:
        print("skipped: torch: it is not installed")
        return 0
    if not torch.cuda.is_available():
        print("skipped: no device")
        return 0
    for size in [1, 2]:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(spawned, (size, folder), nprocs=size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
