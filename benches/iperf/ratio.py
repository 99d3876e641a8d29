#!/usr/bin/env python3
"""ringcomm's bandwidth over loopback TCP beside iperf3's with as many streams, in turns.

    python3 benches/iperf/ratio.py [--rounds N] [--program target/release/ring-perf]

Both directions at once: `iperf3 --bidir`, two ranks that send to each other, and two ranks that
all-reduce (each sends and receives as many bytes as the vector has, and adds half of them). iperf3
sends one piece of 128 KiB again and again and receives onto itself, so its bytes never leave the
cache; vectors of 1 MiB do not either, vectors of 64 MiB do. What such vectors cost the kernel
without a library is the bare exchange of benches/loopback/floor.c, in the same turns.

Prints GB/s of one direction for each round, and at the end the medians and what they are of
iperf3's and of the bare exchange's.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not iperf3's own port, which a server of somebody else may have.
PORT = "15201"
LIMIT_S = 20
SIZES = {"1M": 1 << 20, "64M": 64 << 20}


def iperf(streams, seconds):
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", PORT], stdout=subprocess.DEVNULL)
    # The server has no way to say that it listens.
    time.sleep(0.2)
    command = ["iperf3", "-c", "127.0.0.1", "-p", PORT, "-J", "--bidir", "-t", str(seconds)]
    # As ringcomm over loopback: where the system's choice is BBR, iperf3 is paced to 0.5 to 0.9 of it.
    command += ["-C", "reno"]
    try:
        done = subprocess.run(
            [*command, "-P", str(streams)], capture_output=True, text=True, timeout=LIMIT_S
        )
        end = json.loads(done.stdout)["end"]
        both = [end["sum_received"], end["sum_received_bidir_reverse"]]
        return sum(one["bits_per_second"] for one in both) / 2 / 8e9
    finally:
        server.kill()
        server.wait()


def bare(floor, size):
    """The median of exchanges without a library, in pieces as long as ringcomm's."""
    line = [floor, str(SIZES[size])]
    done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    return SIZES[size] / float(done.stdout.split()[-1]) / 1e3


def ringcomm(program, call, size, streams, seconds):
    environment = {"RINGCOMM_NSOCKS": str(streams), "RINGCOMM_PROTECTION": "clear"}
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/rows.json"
        line = [program, call, "--tcp", "-b", size, "-e", size, "-c", "0", "--probe", "0"]
        line += ["--placement", "out", "--budget", str(seconds * 1000), "--json", report]
        subprocess.run(
            line, env={**os.environ, **environment}, check=True, capture_output=True, timeout=LIMIT_S
        )
        return json.loads(Path(report).read_text())["rows"][0]["algbw"]


def one_round(chosen, floor, streams):
    """GB/s of one direction, by who moved the bytes."""
    found = {"iperf3": iperf(streams, chosen.seconds)}
    for size in SIZES:
        found[f"bare {size}"] = bare(floor, size)
        for call in ("send_recv", "all_reduce"):
            found[f"{call} {size}"] = ringcomm(chosen.program, call, size, streams, chosen.seconds)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--streams", default="1,2")
    parser.add_argument("--program", default=str(ROOT / "target/release/ring-perf"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        floor = f"{folder}/floor"
        source = str(ROOT / "benches/loopback/floor.c")
        subprocess.run(["cc", "-O2", "-o", floor, source], check=True)
        for streams in map(int, chosen.streams.split(",")):
            rounds = []
            for number in range(chosen.rounds):
                rounds.append(one_round(chosen, floor, streams))
                if number == 0:
                    print(f"streams {streams}, GB/s:  " + "  ".join(rounds[0]))
                cells = "  ".join(f"{rate:{len(name)}.2f}" for name, rate in rounds[-1].items())
                print(f"round {number + 1:3}           {cells}", flush=True)
            report(rounds)


def report(rounds):
    median = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    for name in median:
        if name.split()[0] in ("send_recv", "all_reduce"):
            kernel = median[f"bare {name.split()[1]}"]
            of_iperf, of_bare = median[name] / median["iperf3"], median[name] / kernel
            print(f"{name:16} {median[name]:6.2f}  {of_iperf:.2f} of iperf3, {of_bare:.2f} of bare")


if __name__ == "__main__":
    main()
