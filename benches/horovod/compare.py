"""Horovod's calls on several builds, in turns: `python compare.py NAME=COMMAND... [--rounds 5]`.

Each COMMAND starts ranks.py as 2 ranks, such as
    "new=ringrun -n 2 python benches/horovod/ranks.py ringcomm"
    "gloo=horovodrun -np 2 --gloo python benches/horovod/ranks.py"
Prints each case's median over rounds of the medians, and its ratio to the first command's.
"""

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess


# Memory stays with the process: else each step waits for pages of its gradients anew, or does not,
# as it happens.
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}


def measured(command):
    done = subprocess.run(
        shlex.split(command), stdout=subprocess.PIPE, text=True, timeout=600, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **KEPT},
    )  # fmt: skip
    found = [json.loads(line) for line in re.findall(r"\{.*\}", done.stdout)]
    return {one["case"]: one for one in found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("ways", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ways = dict(way.split("=", 1) for way in options.ways)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; in turns, us")
    for name, command in ways.items():
        print(f"{name}: {command}")
    rounds = []
    for number in range(options.rounds):
        load = os.getloadavg()[0]
        rounds.append({name: measured(command) for name, command in ways.items()})
        print(f"round {number}, load {load:.1f} before: {json.dumps(rounds[-1])}", flush=True)
    first = next(iter(ways))
    print(f"\n{'median of medians':44}" + "".join(f"{name:>14}" for name in ways) + "   ratios")
    for case in rounds[0][first]:
        medians = {
            name: statistics.median(one[name][case]["median"] for one in rounds) for name in ways
        }
        ratios = [f"{medians[name] / medians[first]:.2f}" for name in ways]
        columns = "".join(f"{medians[name]:14.0f}" for name in ways)
        print(f"{case:44}{columns}   {' '.join(ratios)}")


if __name__ == "__main__":
    main()
