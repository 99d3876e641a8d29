#!/usr/bin/env python3
"""ringcomm's bandwidth over loopback TCP beside iperf3's with as many streams, in turns.

    python3 benches/iperf/ratio.py [--rounds N] [--program target/release/ring-perf]

Both directions at once: two ranks that send to each other, and `iperf3 --bidir`. Prints GB/s of one
direction for each round, and the ratios.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not iperf3's own port, which a server of somebody else may have.
PORT = "15201"
BYTES = "64M"
LIMIT_S = 20


def iperf(streams, seconds):
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", PORT], stdout=subprocess.DEVNULL)
    # The server has no way to say that it listens.
    time.sleep(0.2)
    command = ["iperf3", "-c", "127.0.0.1", "-p", PORT, "-J", "--bidir", "-t", str(seconds)]
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


def ringcomm(program, streams, seconds, protection):
    environment = {"RINGCOMM_SOCKETS": str(streams), "RINGCOMM_PROTECTION": protection}
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/rows.json"
        line = [program, "send_recv", "--tcp", "-b", BYTES, "-e", BYTES, "-c", "0", "--probe", "0"]
        line += ["--budget", str(seconds * 1000), "--json", report]
        subprocess.run(
            line, env={**os.environ, **environment}, check=True, capture_output=True, timeout=LIMIT_S
        )
        return json.loads(Path(report).read_text())["rows"][0]["algbw"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--streams", default="1,2")
    parser.add_argument("--program", default=str(ROOT / "target/release/ring-perf"))
    chosen = parser.parse_args()
    print("streams  round  iperf3 GB/s  clear GB/s  ratio  checksum GB/s  ratio")
    for number in range(chosen.rounds):
        for streams in map(int, chosen.streams.split(",")):
            theirs = iperf(streams, chosen.seconds)
            ours = [
                ringcomm(chosen.program, streams, chosen.seconds, protection)
                for protection in ("clear", "checksum")
            ]
            cells = "  ".join(f"{one:10.2f}  {one / theirs:5.2f}" for one in ours)
            print(f"{streams:7}  {number + 1:5}  {theirs:11.2f}  {cells}", flush=True)


if __name__ == "__main__":
    main()
