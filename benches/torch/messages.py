"""Messages of torch.distributed, and new groups, on ringcomm beside gloo.

    torchrun --nproc-per-node 2 benches/torch/messages.py [COMMIT]

Both backends take turns, so that they see the same machine. A time is the median of the turns on
rank 0; a turn is many messages, one after another. `ping-pong` is a message from rank 0 to rank 1
and one back, `shift` an isend to the next rank and an irecv from the one before, on all ranks at
once, `four` four of each with tags.
"""

import datetime
import os
import platform
import statistics
import sys
import time

import torch
import torch.distributed as dist

import ringcomm.torch  # noqa: F401  (registers the backend)

SIZES = [4, 1 << 10, 4 << 10, 64 << 10, 400_000, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
BACKENDS = ["ringcomm", "gloo"]
TURNS = 20
#: Seconds that a turn takes, about.
TURN_S = 0.02


def ways(size, group):
    """What is timed of messages of so many bytes, by name."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.ones(size, dtype=torch.uint8)
    theirs = [torch.zeros_like(mine) for _ in range(4)]
    following, before = (rank + 1) % ranks, (rank - 1) % ranks

    def ping_pong():
        if rank > 1:
            return
        other = 1 - rank
        ends = [lambda: dist.send(mine, other, group), lambda: dist.recv(theirs[0], other, group)]
        for end in ends[:: 1 if rank == 0 else -1]:
            end()

    def several(count):
        works = [dist.isend(mine, following, group, tag=tag) for tag in range(count)]
        works += [dist.irecv(theirs[tag], before, group, tag=tag) for tag in range(count)]
        for work in works:
            work.wait()

    return {"ping-pong": ping_pong, "shift": lambda: several(1), "four": lambda: several(4)}


def turn(call, calls):
    """Seconds that each of so many calls takes."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def calls_for(call):
    """How many calls make a turn, of the slowest rank; the same on all."""
    turn(call, 1)
    seconds = torch.tensor([turn(call, 3)])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return max(1, int(TURN_S / seconds.item()))


def compare(name, calls):
    """Print a row: the calls of each backend, in turns."""
    counts = {backend: calls_for(call) for backend, call in calls.items()}
    times = {backend: [] for backend in calls}
    for _ in range(TURNS):
        for backend, call in calls.items():
            times[backend].append(1e6 * turn(call, counts[backend]))
    ours, gloo = (statistics.median(times[backend]) for backend in BACKENDS)
    if dist.get_rank() == 0:
        print(f"{name:>22} {ours:12.0f} {gloo:12.0f} {ours / gloo:16.2f}", flush=True)


def new_group(backend, kept):
    """Make a group and use it; it is kept, as a program's are."""

    def make():
        kept.append(dist.new_group(backend=backend))
        dist.barrier(kept[-1])

    return make


def main():
    torch.set_num_threads(1)
    dist.init_process_group("ringcomm")
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    if dist.get_rank() == 0:
        commit = sys.argv[1] if len(sys.argv) > 1 else "not given"
        load = os.getloadavg()[0]
        print(f"{datetime.date.today()}, commit {commit}, torch {torch.__version__}")
        print(f"{os.cpu_count()} cores, {platform.platform()}, load before the run {load:.1f}")
        print(f"{dist.get_world_size()} processes")
        print(f"{'':>22} {'ringcomm us':>12} {'gloo us':>12} {'ringcomm / gloo':>16}")
    for size in SIZES:
        by_backend = {backend: ways(size, group) for backend, group in groups.items()}
        for way in by_backend["gloo"]:
            compare(f"{way}, {size} B", {name: calls[way] for name, calls in by_backend.items()})
    kept = []
    compare("new group", {backend: new_group(backend, kept) for backend in BACKENDS})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
