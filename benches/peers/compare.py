#!/usr/bin/env python3
"""Compare ringcomm with the libraries that a user can install: in one run, interleaved, as ratios.

    python3 benches/peers/compare.py

needs no arguments, only Python, gcc, cargo and a network connection for the peers' packages. In every round every system
runs every size once, in rotating order; the result is the ratio to the best peer of the same round.
"""

import argparse
import difflib
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
import report
import systems

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = [
    "all_reduce",
    "all_reduce:in",
    "all_gather",
    "reduce_scatter",
    "broadcast:in",
    "send_recv",
]
ALSO = ["all_to_all", "all_gather:in", "reduce_scatter:in"]
SIZES = "8,64,1K,8K,64K,1M,16M,64M"
# Milliseconds for each cell: seven rows of eight sizes stay near three seconds a start.
CELL_MS = 25
# Seconds for one start of one system; spinning libraries with more ranks than cores would take hours.
START_LIMIT_S = 12
NAMES = ["ringcomm", *(peer.key for peer in systems.PEERS)]


class Parser(argparse.ArgumentParser):
    """Says what was probably meant, and exits 2."""

    def error(self, message):
        known = [option for action in self._actions for option in action.option_strings]
        for word in message.replace(",", " ").split():
            near = (
                difflib.get_close_matches(word.split("=")[0], known, 1, 0.5)
                if word[:1] == "-"
                else []
            )
            if near and near[0] != word and "unrecognized" in message:
                message += f"; did you mean {near[0]}?"
        self.exit(2, f"compare.py: {message}\n")


def size(word):
    letters = {"K": 10, "M": 20, "G": 30}
    shift = letters.get(word[-1:].upper(), 0)
    digits = word[:-1] if shift else word
    if not digits.isdigit() or int(digits) << shift < 4:
        raise argparse.ArgumentTypeError(
            f"{word!r} is not a size of at least 4 bytes: write 8, 64K or 16M"
        )
    return int(digits) << shift


def list_of(one):
    def parse(words):
        return list(dict.fromkeys(one(word) for word in words.split(",") if word))

    return parse


def choice(known):
    def parse(word):
        if word in known:
            return word
        near = difflib.get_close_matches(word, known, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"known: {' '.join(known)}"
        raise argparse.ArgumentTypeError(f"there is no {word!r}; {hint}")

    return parse


def at_least(least):
    def parse(word):
        if not word.isdigit() or int(word) < least:
            raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least {least}")
        return int(word)

    return parse


def options(arguments):
    parser = Parser(description=__doc__.split("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    operation = choice(OPERATIONS + ALSO)
    add(
        "--ops",
        type=list_of(operation),
        default=OPERATIONS,
        help="with :in for in place; " + ",".join(OPERATIONS + ALSO),
    )
    add("--ranks", type=list_of(at_least(2)), default=[2, 4], help="numbers of ranks (default 2,4)")
    add(
        "--sizes",
        type=list_of(size),
        default=list_of(size)(SIZES),
        help=f"in bytes (default {SIZES})",
    )
    add("--rounds", type=at_least(1), default=5, help="default 5")
    add(
        "--time-budget",
        type=at_least(10),
        default=780,
        metavar="SECONDS",
        help="start no round past it (default 780)",
    )
    add(
        "--cell-budget",
        type=at_least(1),
        default=CELL_MS,
        metavar="MS",
        help=f"per size and round (default {CELL_MS})",
    )
    add("--only", type=list_of(choice(NAMES)), default=NAMES, help="of " + ",".join(NAMES))
    add(
        "--ringcomm",
        type=shlex.split,
        metavar="COMMAND",
        help="instead of target/release/ring-perf",
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringcomm-peers"
    add(
        "--cache",
        type=Path,
        default=cache,
        help="where the peers are installed (default ~/.cache/ringcomm-peers)",
    )
    add("--torch", action="store_true", help="install torch for its gloo (5.4 GB)")
    add("--out", type=Path, default=ROOT / "benches/results", help="folder of the results")
    add(
        "--list",
        action="store_true",
        help="install and build what is wanted, name it, measure nothing",
    )
    return parser.parse_args(arguments)


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


def ringcomm_systems(command):
    """ringcomm's three ways of running; built first where it is not."""
    if command is None:
        program = ROOT / "target/release/ring-perf"
        if not program.exists():
            print("building target/release/ring-perf", file=sys.stderr, flush=True)
            built = subprocess.run(["cargo", "build", "--release", "--bin", "ring-perf"], cwd=ROOT)
            if built.returncode != 0:
                raise systems.Missing("cargo build --release failed")
        command = [str(program)]
    version = systems.run([*command, "--version"], 60).strip().splitlines()
    made = [
        systems.System(f"ringcomm {mode}", "ringcomm", (version or ["unknown"])[0], None)
        for mode in launch.MODES
    ]
    return command, made


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
            "starts": [],
        }
        # The sizes that a system still runs with so many ranks: fewer once it was too slow.
        self.sizes = {}
        self.stopped = {}

    def prepare(self):
        chosen = self.chosen
        chosen.cache.mkdir(parents=True, exist_ok=True)
        self.systems, missing = systems.prepare(chosen.only, chosen.cache, chosen.torch)
        self.command = None
        if "ringcomm" in chosen.only:
            try:
                self.command, own = ringcomm_systems(chosen.ringcomm)
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

    def probe(self):
        if self.probe_program is None:
            return None
        said = output_of(self.probe_program)
        return float(said) if said else None

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
            for mode in launch.MODES:
                extra = ["--probe", "0", "-n", "3"]
                sizes = [one for one in chosen.sizes if one <= 1 << 20]
                rows, problem = launch.run_ringcomm(
                    self.command, mode, ranks, chosen.ops, sizes, 1, 60, extra
                )
                wrong = sum(row.get("wrong") or 0 for row in rows)
                if wrong or problem:
                    self.note(
                        f"ringcomm {mode}, {ranks} ranks, checked: {problem or f'{wrong} wrong elements'}"
                    )

    def start(self, system, ranks, number):
        """One start of one system, framed by probes."""
        chosen = self.chosen
        sizes = self.sizes.setdefault((system.name, ranks), list(chosen.sizes))
        if not sizes:
            return
        before = self.probe()
        begun = time.monotonic()
        shared = (ranks, chosen.ops, sizes, chosen.cell_budget, START_LIMIT_S)
        if system.is_ringcomm:
            rows, problem = launch.run_ringcomm(self.command, system.name.split()[1], *shared)
        else:
            rows, problem = launch.run_peer(system, *shared)
        seconds = time.monotonic() - begun
        wrong = sum(row.get("wrong") or 0 for row in rows)
        if wrong:
            self.note(f"{system.name}, {ranks} ranks: {wrong} wrong elements")
        if problem:
            self.note(f"{system.name}, {ranks} ranks: {problem}; got {len(rows)} rows")
            self.shorten(system, ranks, rows)
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

    def shorten(self, system, ranks, rows):
        """Leave out what a peer has no time for, once that was so in two rounds: one may be bad luck."""
        reached = max((row["bytes"] for row in rows), default=0)
        failed = self.stopped.setdefault((system.name, ranks), [])
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
        target = out / f"peers-{self.raw['date']}.json"
        target.write_text(json.dumps(self.raw, separators=(",", ":")) + "\n")
        words = report.table(self.raw)
        target.with_suffix(".txt").write_text(words)
        print(words)
        print(f"raw: {target}")
        for name, arguments in (("peers.svg", {}), ("peers-in-place.svg", {"in_place": True})):
            picture = chart.draw(self.raw, **arguments)
            if picture:
                (out / name).write_text(picture)
                print(f"chart: {out / name}")


def main(arguments):
    comparison = Comparison(options(arguments), arguments)
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
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
