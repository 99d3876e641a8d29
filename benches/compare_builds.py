"""Times all-reduce of two builds of ring-perf in turn, and prints one JSON line for each kind of ranks and size.

    python3 benches/compare_builds.py OLD/target/release/ring-perf NEW/target/release/ring-perf [ROUNDS]

Each round runs both builds once, in alternating order, with 2 ranks as threads, as processes, and over loopback TCP with
checksums. Times are microseconds of a call out of place.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

KINDS = {"threads": ["-t", "2"], "processes": ["--procs", "2"], "tcp": ["--procs", "2", "--tcp"]}
SIZES = ["8", "8K", "1M"]


def time_us(program, arguments, size):
    """One run's time."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [program, *arguments, "-b", size, "-e", size, "-J", file.name, "all_reduce"]
        env = {**os.environ, "RINGCOMM_PROTECTION": "checksum"}
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=100, env=env)
        return json.load(file)["rows"][0]["time_us"]


def main():
    programs = dict(zip(("old", "new"), sys.argv[1:3], strict=True))
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    times = {(kind, size, who): [] for kind in KINDS for size in SIZES for who in programs}
    for turn in range(rounds):
        for kind, arguments in KINDS.items():
            for size in SIZES:
                for who in sorted(programs, reverse=turn % 2 == 0):
                    times[kind, size, who].append(time_us(programs[who], arguments, size))
    for kind in KINDS:
        for size in SIZES:
            old, new = (sorted(times[kind, size, who]) for who in ("old", "new"))
            ratio = statistics.median(new) / statistics.median(old)
            print(json.dumps({"ranks": kind, "size": size, "old_us": old, "new_us": new, "ratio": round(ratio, 3)}))


if __name__ == "__main__":
    main()
