"""torch.distributed's gloo backend, measured like the others.

Usage: RANKS OPERATION[:in],... BYTES,... BUDGET_MS. Started without `BENCH_RANK` it starts its own
ranks; they meet through a file and speak over the loopback interface. Every call takes
far longer than 20 us, so each is timed by itself, as in bench.h.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import time

# Fewer times than this make no median (as in bench.h).
LEAST_TIMES = 5


def launch(arguments):
    ranks = int(arguments[0])
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ, BENCH_STORE=os.path.join(folder, "store"), GLOO_SOCKET_IFNAME="lo"
        )
        command = [sys.executable, os.path.abspath(__file__), *arguments]
        children = [
            subprocess.Popen(command, env=dict(environment, BENCH_RANK=str(rank)))
            for rank in range(ranks)
        ]
        return max(abs(child.wait()) for child in children)


def partner(rank, ranks):
    """Whom a rank plays ping-pong with: its neighbour, or, the last of an odd number, itself."""
    return rank ^ 1 if rank ^ 1 < ranks else rank


def calls(torch, dist, rank, ranks):
    """Operation -> (block-wise?, in place?, function of send and receive tensor)."""
    after, before = (rank + 1) % ranks, (rank - 1) % ranks

    def send_recv(send, recv):
        pending = [dist.isend(send, after), dist.irecv(recv, before)]
        for one in pending:
            one.wait()

    def ping_pong(send, recv):
        other = partner(rank, ranks)
        if rank < other:
            dist.send(send, other)
            dist.recv(recv, other)
        elif rank > other:
            dist.recv(recv, other)
            dist.send(send, other)
        else:
            recv.copy_(send)

    # gloo has no out-of-place all-reduce: the copy belongs to the call.
    return {
        "all_reduce": lambda send, recv: dist.all_reduce(recv.copy_(send)),
        "all_reduce:in": lambda send, recv: dist.all_reduce(recv),
        "all_gather": lambda send, recv: dist.all_gather_into_tensor(recv, send),
        "reduce_scatter": lambda send, recv: dist.reduce_scatter_tensor(recv, send),
        "broadcast:in": lambda send, recv: dist.broadcast(recv, 0),
        "all_to_all": lambda send, recv: dist.all_to_all_single(recv, send),
        "send_recv": send_recv,
        "ping_pong": ping_pong,
    }


def extents(name, size, ranks):
    """Elements sent and received, and bytes as the table names them; ring-perf's rounding."""
    total = max(size // 4, 1)
    block = max(size // 4 // ranks, 1)
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        total = block * ranks
    send = block if name == "all_gather" else total
    recv = block if name == "reduce_scatter" else total
    return send, recv, total * 4


def wanted(torch, name, recv, rank, ranks):
    """The result, when rank r's input is r+1 everywhere."""
    if name in ("all_gather", "all_to_all"):
        return torch.arange(1, ranks + 1, dtype=torch.float32).repeat_interleave(
            recv.numel() // ranks
        )
    value = {
        "broadcast:in": 1,
        "send_recv": (rank - 1) % ranks + 1,
        "ping_pong": partner(rank, ranks) + 1,
    }
    return torch.full_like(recv, value.get(name, ranks * (ranks + 1) // 2))


def measure(torch, dist, run, budget, rank, inputs):
    """The times of single calls, in seconds: the longest of the ranks', sorted.

    The inputs are written before each, if any are given."""
    times = []
    begun = time.perf_counter()
    warm = 0
    while True:
        more = torch.zeros(1)
        if rank == 0:
            spent = time.perf_counter() - begun
            least = 1 if spent > 5 * budget else LEAST_TIMES
            more[0] = len(times) < least or spent < budget
        dist.broadcast(more, 0)
        if not more.item():
            break
        for tensor, value in inputs:
            tensor.fill_(value)
        dist.barrier()
        begin = time.perf_counter()
        run()
        seconds = time.perf_counter() - begin
        warm += 1
        if warm > 3:
            times.append(seconds)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return sorted(slowest.tolist())


def work(arguments):
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["BENCH_RANK"]), int(arguments[0])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method="file://" + os.environ["BENCH_STORE"], rank=rank, world_size=ranks
    )
    table = calls(torch, dist, rank, ranks)
    budget = float(arguments[3]) * 1e-3
    for size in map(int, arguments[2].split(",")):
        for name in arguments[1].split(","):
            if name not in table:
                continue
            sends, receives, size_named = extents(name, size, ranks)
            send, recv = torch.full((sends,), rank + 1.0), torch.full((receives,), rank + 1.0)
            table[name](send, recv)
            wrong = (recv != wanted(torch, name, recv, rank, ranks)).sum()
            dist.all_reduce(wrong)
            recv.zero_()
            send.fill_(1)
            inputs = [(recv, 0) if name.endswith(":in") else (send, 1)]
            if "BENCH_REWRITE" not in os.environ or (name == "broadcast:in" and rank > 0):
                inputs = []
            call = functools.partial(table[name], send, recv)
            times = measure(torch, dist, call, budget, rank, inputs)
            if rank == 0:
                # A message that goes there and back takes twice what a message takes.
                micro = [1e6 * one / (2 if name == "ping_pong" else 1) for one in times]
                row = {
                    "op": name.partition(":")[0],
                    "in_place": name.endswith(":in"),
                    "bytes": size_named,
                    "ranks": ranks,
                    "time_us": micro[(len(micro) - 1) // 2],
                    "min_us": micro[0],
                    "p99_us": micro[(len(micro) * 99 + 99) // 100 - 1],
                    "times": len(micro),
                    "wrong": int(wrong),
                }
                print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "BENCH_RANK" in os.environ:
        work(sys.argv[1:])
    else:
        sys.exit(launch(sys.argv[1:]))
