"""ringcomm beside gloo under torch.distributed, in one run: all_reduce, and a training step.

    python benches/torch/compare.py [--ranks 2,4] [--rounds 5] [--output benches/results/torch-DATE]

Every process has a group of each backend, and the two take turns within each round, so that both
see the same machine. A time of all_reduce is the median of the rounds, of the slowest rank, of
calls in a block; also of a tensor in memory that the ranks share; the ratio is the median of the
rounds' ratios. The training step is of a ResNet-18 (11.7 million parameters) under
DistributedDataParallel whose gradients are views of its buckets, beside the same step with buckets
that are filled but not sent: what is left after taking that away is communication that was not
hidden, and the processor's time that it took on a rank's threads. The step without buckets
(`no_sync`) shows what those cost by themselves, on every backend.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import resnet
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[2]
SIZES = [4, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
SYSTEMS = ["ringcomm", "gloo"]
IN_SHARED = "ringcomm, tensor of empty_shared"
SHARED = "ringcomm, shared buckets"
#: Ways to make a training step; with the last two nothing is sent.
KINDS = [SHARED, *SYSTEMS, "unsent", "no buckets"]
#: Seconds that a block of calls takes, about.
BLOCK_S = 0.15


def block(group, tensor, calls):
    """Seconds a call, of the slowest rank."""
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    spent = torch.tensor([(time.perf_counter() - begin) / calls], dtype=torch.float64)
    dist.all_reduce(spent, op=dist.ReduceOp.MAX, group=group)
    return spent.item()


def calls_for(group, tensor):
    """How many calls make a block; the same on every rank."""
    count = 1
    while True:
        taken = block(group, tensor, count) * count
        if taken > BLOCK_S / 4 or count >= 1 << 14:
            return max(3, min(1 << 14, int(count * BLOCK_S / taken)))
        count *= 4


def all_reduce(groups, rounds, say):
    from ringcomm.torch import empty_shared

    rows = []
    for size in SIZES:
        cases = {name: (group, torch.zeros(size // 4)) for name, group in groups.items()}
        cases[IN_SHARED] = groups["ringcomm"], empty_shared(size // 4)
        counts = {name: calls_for(*case) for name, case in cases.items()}
        for index in range(rounds):
            order = list(cases)[:: 1 if index % 2 == 0 else -1]
            for name in order:
                taken = block(*cases[name], counts[name])
                rows.append(
                    {
                        "what": "all_reduce",
                        "bytes": size,
                        "round": index,
                        "system": name,
                        "us": taken * 1e6,
                    }
                )
        say(rows, size)
    return rows


def step_times(groups, rounds, batch):
    """Milliseconds of a training step, of the slowest rank, with each backend and with none."""
    from ringcomm.torch import share_buckets

    def model_of(**settings):
        torch.manual_seed(0)
        settings = {"gradient_as_bucket_view": True, **settings}
        return DistributedDataParallel(resnet.resnet18(), **settings)

    models = {name: model_of(process_group=group) for name, group in groups.items()}
    models[SHARED] = model_of(process_group=groups["ringcomm"])
    share_buckets(models[SHARED])
    # Broadcasts of buffers are communication, too.
    models["unsent"] = model_of(broadcast_buffers=False)
    models["unsent"].register_comm_hook(None, unsent)
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.01) for name, model in models.items()}
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

    def step(name, buckets=True):
        model, optimizer = models[name], optimizers[name]
        dist.barrier(groups["gloo"])
        begin = time.perf_counter()
        used = time.process_time()
        optimizer.zero_grad()
        with nullcontext() if buckets else model.no_sync():
            torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        spent = [time.perf_counter() - begin, time.process_time() - used]
        spent = torch.tensor(spent, dtype=torch.float64)
        dist.all_reduce(spent, op=dist.ReduceOp.MAX, group=groups["gloo"])
        return [1e3 * each for each in spent.tolist()]

    rows = []
    for index in range(-3, rounds):
        shift = index % len(KINDS)
        for name in KINDS[shift:] + KINDS[:shift]:
            buckets = name != "no buckets"
            taken, used = step(name if buckets else "unsent", buckets)
            if index >= 0:
                row = {"what": "step", "round": index, "system": name, "ms": taken, "cpu": used}
                rows.append(row)
    return rows


def unsent(_, bucket):
    """A hook of DistributedDataParallel that sends nothing."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def rank_main(rank, ranks, url, options, queue):
    torch.set_num_threads(1)
    import ringcomm.torch  # noqa: F401

    dist.init_process_group("ringcomm", init_method=url, rank=rank, world_size=ranks)
    groups = {"ringcomm": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

    def say(rows, size):
        if rank == 0:
            print(f"  {size} bytes: {ratio_of(rows, size):.1f}x", file=sys.stderr, flush=True)

    rows = all_reduce(groups, options.rounds, say)
    if not options.no_step:
        rows += step_times(groups, options.steps, options.batch)
    if rank == 0:
        queue.put([{"ranks": ranks, **row} for row in rows])
    dist.destroy_process_group()


def rounds_of(rows, system, value, **match):
    found = [
        row
        for row in rows
        if row["system"] == system and all(row[key] == match[key] for key in match)
    ]
    return [row[value] for row in sorted(found, key=lambda row: row["round"])]


def ratio_of(rows, size):
    own = rounds_of(rows, "ringcomm", "us", what="all_reduce", bytes=size)
    other = rounds_of(rows, "gloo", "us", what="all_reduce", bytes=size)
    return statistics.median(theirs / ours for ours, theirs in zip(own, other))


def table(rows, ranks):
    """The lines that say what was measured with so many ranks."""
    rows = [row for row in rows if row["ranks"] == ranks]
    lines = [
        f"dist.all_reduce, float32 sum, in place, {ranks} processes",
        f"{'bytes':>10} {'ringcomm us':>12} {'gloo us':>12} {'gloo / ringcomm':>16} "
        f"{'empty_shared us':>16}",
    ]
    for size in SIZES:
        times = [
            statistics.median(rounds_of(rows, name, "us", what="all_reduce", bytes=size))
            for name in [*SYSTEMS, IN_SHARED]
        ]
        lines.append(
            f"{size:>10} {times[0]:>12.1f} {times[1]:>12.1f} {ratio_of(rows, size):>15.1f}x "
            f"{times[2]:>16.1f}"
        )
    if any(row["what"] == "step" for row in rows):
        lines += step_table(rows, ranks)
    return lines


def step_table(rows, ranks):
    """What a step took, and how much more than a step that sends nothing."""
    lines = [
        f"training step of a ResNet-18, {ranks} processes, gradient_as_bucket_view=True, ms",
        f"{'':>24} {'step':>7} {'CPU time':>9} {'more than unsent':>17} {'CPU time':>9}",
    ]
    columns = {
        name: [rounds_of(rows, name, value, what="step") for value in ("ms", "cpu")]
        for name in KINDS
    }
    for name in KINDS:
        times = [statistics.median(column) for column in columns[name]]
        more = [
            statistics.median(sent - kept for sent, kept in zip(column, unsent))
            for column, unsent in zip(columns[name], columns["unsent"])
        ]
        lines.append(
            f"{name:>24} {times[0]:>7.1f} {times[1]:>9.1f} {more[0]:>17.1f} {more[1]:>9.1f}"
        )
    return lines


def commit():
    words = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="rounds of training steps")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--no-step", action="store_true", help="all_reduce only")
    parser.add_argument("--output", help="write PATH.json and PATH.txt")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for ranks in map(int, options.ranks.split(",")):
        print(f"{ranks} processes", file=sys.stderr, flush=True)
        queue = mp.get_context("spawn").SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            words = (ranks, f"file://{folder}/store", options, queue)
            started = mp.spawn(rank_main, words, nprocs=ranks, join=False)
            while not started.join(timeout=1):
                if not queue.empty():
                    rows += queue.get()
        if not queue.empty():
            rows += queue.get()
    head = [
        f"{datetime.date.today()}, commit {commit()}, torch {torch.__version__}, Python "
        f"{platform.python_version()}",
        f"{os.cpu_count()} cores, {platform.platform()}, load average before the run {load:.1f}",
        f"{options.rounds} rounds of blocks of about {BLOCK_S} s; one thread of torch a process",
    ]
    lines = head + [
        line for ranks in map(int, options.ranks.split(",")) for line in ["", *table(rows, ranks)]
    ]
    print("\n".join(lines))
    if options.output:
        Path(f"{options.output}.txt").write_text("\n".join(lines) + "\n")
        Path(f"{options.output}.json").write_text(
            json.dumps({"head": head, "rows": rows}, indent=0) + "\n"
        )


if __name__ == "__main__":
    main()
