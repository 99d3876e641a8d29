#!/usr/bin/env python3
"""Compare ringcomm with the libraries that a user can install: in one run, interleaved, as ratios.

    python3 benches/peers/compare.py

needs no arguments, only Python, gcc, cargo and a network connection for the peers' packages. In
every round every system runs every size once, in rotating order; the result is the ratio to the
best peer of the same round.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import chart
import launch
import options
import report
import systems

ROOT = Path(__file__).resolve().parents[2]


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    except OSError:
        return ""


def machine():
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in facts if line.startswith("model name")),
        platform.machine(),
    )
    commit = output_of("git", "rev-parse", "--short=12", "HEAD")
    changed = (
        "+changes" if output_of("git", "status", "--porcelain", "--untracked-files=no") else ""
    )
    return {
        "cpu": model,
        "cores": systems.cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "load": os.getloadavg(),
        "commit": (commit or "unknown") + changed,
    }


def others_cores():
    """The cores that other programs use, over a second in which this one sleeps."""

    def idle():
        # Ticks of all cores together: user, nice, system, idle, waiting for a disk, ...
        ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        return (int(ticks[3]) + int(ticks[4])) / os.sysconf("SC_CLK_TCK")

    before, begun = idle(), time.monotonic()
    time.sleep(1)
    taken = time.monotonic() - begun
    return round(max(0.0, os.cpu_count() - (idle() - before) / taken), 2)


def ringcomm_systems(command, modes):
    """ringcomm's ways of running; cargo builds it first, unless it is up to date."""
    if command is None:
        program = ROOT / "target/release/ring-perf"
        # Always: a binary older than the commit would be measured under its name.
        line = ["cargo", "build", "--release", "--quiet", "--bin", "ring-perf"]
        systems.run(line, systems.INSTALL_LIMIT_S, folder=ROOT)
        command = [str(program)]
    version = systems.run([*command, "--version"], 60).strip().splitlines()
    said = (version or ["unknown"])[0]
    limit = systems.RINGCOMM_LIMIT_S
    return command, [
        systems.System(f"ringcomm {mode}", "ringcomm", said, None, limit_s=limit)
        for mode in modes
    ]


class Comparison:
    """The run: what takes part, what has been measured."""

    def __init__(self, chosen, arguments):
        self.chosen = chosen
        self.raw = {
            "date": date.today().isoformat(),
            "command": shlex.join(["compare.py", *arguments]),
            "machine": machine(),
            "operations": chosen.ops,
            "systems": [],
            "missing": {},
            "notes": [],
            "rounds_done": 0,
            "others_cores": [],
            "starts": [],
        }
        # The sizes that a system still runs with so many ranks: fewer once it was too slow.
        self.sizes = {}
        self.stopped = {}
        # Whether ringcomm gave a wrong result or none.
        self.failed = False

    def prepare(self):
        chosen = self.chosen
        if chosen.rewrite:
            self.note("all inputs were written anew before every block of calls")
        chosen.cache.mkdir(parents=True, exist_ok=True)
        self.systems, missing = systems.prepare(chosen.only, chosen.cache, chosen.torch, chosen.tcp)
        self.command = None
        if "ringcomm" in chosen.only:
            try:
                self.command, own = ringcomm_systems(chosen.ringcomm, chosen.modes)
                self.systems = own + self.systems
            except systems.Missing as why:
                missing["ringcomm"] = str(why)
        self.raw["missing"] = missing
        self.raw["systems"] = [
            {"name": one.name, "peer": one.peer, "version": one.version} for one in self.systems
        ]
        try:
            self.probe_program = systems.build(
                chosen.cache, "crosscore", "crosscore.c", (["gcc", "-pthread"], [])
            )
        except systems.Missing as why:
            self.probe_program = None
            self.raw["notes"].append(f"cross-core latency not probed: {why}")

    def probe(self, *runs):
        if self.probe_program is None:
            return None
        said = output_of(self.probe_program, *runs)
        try:
            return float(said)
        except ValueError:  # one core only, or it was killed
            return None

    def probe_between_rows(self):
        """As `probe`, in a millisecond or two."""
        return self.probe("5")

    def note(self, text):
        if text not in self.raw["notes"]:
            self.raw["notes"].append(text)
            print(f"note: {text}", file=sys.stderr, flush=True)

    def check_ringcomm(self):
        """One short run with every result checked; the timed ones do not look."""
        chosen = self.chosen
        if self.command is None:
            return
        for ranks in chosen.ranks:
            for mode in chosen.modes:
                extra = ["--probe", "0", "-n", "3"]
                sizes = [one for one in chosen.sizes if one <= 1 << 20]
                rows, problem = launch.run_ringcomm(
                    self.command, mode, ranks, chosen.ops, sizes, 1, 60, extra
                )
                wrong = sum(row.get("wrong") or 0 for row in rows)
                self.failed |= bool(wrong or problem)
                if wrong or problem:
                    found = problem or f"{wrong} wrong elements"
                    self.note(f"ringcomm {mode}, {ranks} ranks, checked: {found}")

    def start(self, system, ranks, number):
        """One start of one system, framed by probes as its rows are."""
        chosen = self.chosen
        sizes = self.sizes.setdefault((system.name, ranks), list(chosen.sizes))
        if not sizes:
            return
        before = self.probe()
        begun = time.monotonic()
        rows, problem = [], None
        for operations, some in options.scans(chosen, sizes):
            shared = (ranks, operations, some, chosen.cell_budget, system.limit_s)
            if system.is_ringcomm:
                mode = system.name.split()[1]
                found, problem = launch.run_ringcomm(
                    self.command,
                    mode,
                    *shared,
                    launch.unchecked(chosen.rewrite),
                    self.probe_between_rows,
                )
            else:
                found, problem = launch.run_peer(
                    system, *shared, chosen.rewrite, self.probe_between_rows
                )
            rows += found
            if problem:
                reached = max((row["bytes"] for row in found), default=min(some))
                self.note(f"{system.name}, {ranks} ranks: {problem}, at {report.human(reached)}")
                self.shorten(system, ranks, operations, reached)
                break
        seconds = time.monotonic() - begun
        wrong = sum(row.get("wrong") or 0 for row in rows)
        if wrong:
            self.note(f"{system.name}, {ranks} ranks: {wrong} wrong elements")
        self.raw["starts"].append(
            {
                "round": number,
                "system": system.name,
                "ranks": ranks,
                "seconds": round(seconds, 2),
                "cross_core_ns": [before, self.probe()],
                "problem": problem,
                "rows": rows,
            }
        )

    def shorten(self, system, ranks, operations, reached):
        """Leave out what a peer had no time for in two rounds, from the size that it had reached: one
        may be bad luck, and so may one in each of two scans."""
        failed = self.stopped.setdefault((system.name, ranks, *operations), [])
        failed.append(reached)
        if len(failed) == 2 and not system.is_ringcomm:
            sizes = self.sizes[system.name, ranks]
            self.sizes[system.name, ranks] = [one for one in sizes if one < max(failed)]

    def rounds(self):
        """Rounds until they are done or the next would pass the budget."""
        begun = time.monotonic()
        for number in range(self.chosen.rounds):
            used = time.monotonic() - begun
            if number and used + used / number > self.chosen.time_budget:
                self.note(f"stopped after {number} of {self.chosen.rounds} rounds: --time-budget")
                break
            self.raw["others_cores"].append(others_cores())
            turn = number % len(self.systems)
            for ranks in self.chosen.ranks:
                for system in self.systems[turn:] + self.systems[:turn]:
                    print(
                        f"\rround {number + 1}: {ranks} ranks, {system.name:24}",
                        end="",
                        file=sys.stderr,
                        flush=True,
                    )
                    self.start(system, ranks, number)
            self.raw["rounds_done"] = number + 1
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)

    def write(self):
        out = self.chosen.out
        out.mkdir(parents=True, exist_ok=True)
        self.raw["summary"] = report.summary(self.raw)
        kind = "peers-tcp" if self.chosen.tcp else "peers"
        target = out / f"{kind}-{self.raw['date']}.json"
        target.write_text(json.dumps(self.raw, separators=(",", ":")) + "\n")
        words = report.table(self.raw)
        target.with_suffix(".txt").write_text(words)
        print(words)
        print(f"raw: {target}")
        if self.chosen.tcp:
            return
        for name, arguments in (("peers.svg", {}), ("peers-in-place.svg", {"in_place": True})):
            picture = chart.draw(self.raw, **arguments)
            if picture:
                (out / name).write_text(picture)
                print(f"chart: {out / name}")


def main(arguments):
    comparison = Comparison(options.parse(arguments), arguments)
    comparison.prepare()
    if comparison.chosen.list or not comparison.systems:
        for one in comparison.systems:
            print(f"{one.name}: {one.version}")
        for title, why in comparison.raw["missing"].items():
            print(f"missing: {title}: {why}")
        return 0 if comparison.systems else 1
    comparison.check_ringcomm()
    try:
        comparison.rounds()
    except KeyboardInterrupt:
        comparison.note("interrupted")
    comparison.write()
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
