"""Time per epoch of one job: in one process, under DataParallel, and DDP on gloo and on ringcomm.

Every way trains the same network on the same batches. They take turns for some rounds, so that what
else the machine does hits all of them alike; the chart shows the median epoch of each, with the
fastest and the slowest as a line. The raw times are written beside it, with each way's backend and
the norm of the weights that it came to, so that it can be seen that all did the same work. Both say
on what machine, when, and from which commit.

    python compare.py --ranks 2 --hidden 4096
"""

import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import digits
import ringcomm
from ringcomm.torch import DataParallel

WAYS = ["one process", "DataParallel", "DDP, gloo", "DDP, ringcomm"]
COLOURS = ["#9aa5b1", "#7b8794", "#e8a33d", "#2f6fb5"]


def epochs(model, args, rank=0, size=1):
    """Train; returns the seconds of each epoch but the first, in which everything is met anew."""
    step, batches = (
        digits.optimizer(model, args),
        digits.loader(digits.data(args)[0], args, rank, size),
    )
    times = []
    for epoch in range(args.epochs + 1):
        batches.sampler.set_epoch(epoch)
        start = time.perf_counter()
        for x, y in batches:
            step.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            step.step()
        if size > 1:
            dist.barrier()
        times.append(time.perf_counter() - start)
    return times[1:]


def report(times, network, backend=None):
    """Say what was measured, and of what: who compares the ways reads it."""
    norm = nn.utils.parameters_to_vector(network.parameters()).double().norm().item()
    print(json.dumps({"times": times, "backend": backend, "norm": norm}), flush=True)


def worker(rank, backend, meet, args):
    """One rank of a DDP run."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.ranks))
    dist.init_process_group(backend, init_method=f"file://{meet}", rank=rank, world_size=args.ranks)
    network = digits.network(args)
    times = epochs(DistributedDataParallel(network), args, rank, args.ranks)
    if rank == 0:
        report(times, network, dist.get_backend())
    dist.destroy_process_group()


def run_here(way, args):
    """Train in one way, in this process and those that it starts, and report."""
    if way.startswith("DDP"):
        with tempfile.TemporaryDirectory() as folder:
            # Forked, since torch is loaded already and has started nothing yet.
            words = (way.split()[-1], f"{folder}/meet", args)
            mp.start_processes(worker, words, nprocs=args.ranks, start_method="fork")
        return
    network = digits.network(args)
    apart = way == "DataParallel"
    model = DataParallel(network, ["cpu"] * args.ranks) if apart else network
    report(epochs(model, args), network)


def run_apart(way, words):
    """Train in one way, in a process of its own; its report."""
    done = subprocess.run(
        [sys.executable, __file__, *words, "--way", way],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def machine():
    """The processor's name."""
    try:
        names = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0].strip() if names else platform.machine()


def commit():
    """Which state of the project this is; of an installed package, its release."""
    words = ["describe", "--always", "--abbrev=12", "--match=", "--dirty"]
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words],
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError:
        return ringcomm.__version__
    return done.stdout.strip() or ringcomm.__version__


def chart(times, title, origin):
    """A bar chart as SVG: `title` says what was measured, `origin` where and when."""
    width, height, left, bottom, top = 640, 380, 60, 70, 60
    tallest = max(max(values) for values in times.values())
    scale = (height - top - bottom) / tallest
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="26" text-anchor="middle" font-size="16">time per epoch</text>',
        f'<text x="{width / 2}" y="45" text-anchor="middle" fill="#555">{escape(title)}</text>',
    ]
    floor, gap = height - bottom, (width - left) / len(times)
    for index, (way, values) in enumerate(times.items()):
        middle, median = left / 2 + gap * (index + 0.5), statistics.median(values)
        high, low = floor - max(values) * scale, floor - min(values) * scale
        lines += [
            f'<rect x="{middle - 45:.1f}" y="{floor - median * scale:.1f}" width="90" '
            f'height="{median * scale:.1f}" fill="{COLOURS[index % len(COLOURS)]}"/>',
            f'<path d="M{middle:.1f} {high:.1f}V{low:.1f}" stroke="#333"/>',
            f'<text x="{middle + 6:.1f}" y="{floor - median * scale - 6:.1f}">'
            f"{median * 1000:.1f} ms</text>",
            f'<text x="{middle:.1f}" y="{floor + 20}" text-anchor="middle">{escape(way)}</text>',
        ]
    lines += [
        f'<path d="M{left / 2} {floor}H{width - left / 2}" stroke="#333"/>',
        f'<text x="{width / 2}" y="{height - 16}" text-anchor="middle" font-size="11" fill="#555">'
        f"{escape(origin)}</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main():
    """Take turns, then draw."""
    without = ["backend", "save"]
    parser = digits.options(__doc__.splitlines()[0], without, epochs=5, hidden=4096)
    parser.add_argument("--ranks", type=int, default=2, help="ranks, and devices of DataParallel")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default="compare", help="writes OUT.svg and OUT.json")
    parser.add_argument("--way", choices=WAYS, help="run only this one, and report")
    args = parser.parse_args()
    if args.way:
        run_here(args.way, args)
        return
    times, backends, norms = {way: [] for way in WAYS}, {}, {}
    for number in range(args.rounds):
        for way in WAYS:
            said = run_apart(way, sys.argv[1:])
            times[way] += said["times"]
            backends[way], norms[way] = said["backend"], said["norm"]
            print(f"round {number + 1} of {args.rounds}: {way}", file=sys.stderr)
    samples = digits.TRAINED_ON // args.batch * args.batch
    for way, values in times.items():
        median = statistics.median(values)
        print(f"{way}: {median * 1000:.1f} ms per epoch, {samples / median:.0f} samples per second")
    size = sum(parameter.numel() for parameter in digits.network(args).parameters())
    title = f"{size} parameters, batch {args.batch}, {args.ranks} ranks on {os.cpu_count()} cores"
    facts = {
        "parameters": size,
        "batch": args.batch,
        "ranks": args.ranks,
        "cores": os.cpu_count(),
        "machine": machine(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
    }
    facts.update({"backends": backends, "norms of the weights": norms})
    origin = "{machine}, {date}, commit {commit}, torch {torch}".format(**facts)
    with open(f"{args.out}.json", "w", encoding="utf-8") as file:
        json.dump({**facts, "unit": "seconds of an epoch", "times": times}, file, indent=1)
    with open(f"{args.out}.svg", "w", encoding="utf-8") as file:
        file.write(chart(times, title, origin))


if __name__ == "__main__":
    main()
