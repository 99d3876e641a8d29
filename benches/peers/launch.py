"""Starting one system once: its rows, within a time limit, and nothing of it left running."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

# ring-perf's own warm-up and checks are those of its table; here results are checked in one run of
# their own (`check_ringcomm`), because checking evicts the caches that the peers may keep.
UNCHECKED = ["-c", "0", "--probe", "0"]


def unchecked(rewrite):
    """ring-perf's options for a timed run, in which inputs are written before every block, or not."""
    return [*UNCHECKED, "--rewrite"] if rewrite else UNCHECKED


# Seconds that a launcher gets to clean up after its ranks before it is killed.
GRACE_S = 3
SHARED = Path("/dev/shm")
# The peers' own names there: MPICH, Intel MPI, Open MPI.
LEFT_BEHIND = ("mpich_shm_", "Intel_MPI_", "sm_segment", "vader_segment")

MODES = {
    "processes": lambda ranks: ["--procs", str(ranks)],
    "registered": lambda ranks: ["--procs", str(ranks), "--register"],
    "threads": lambda ranks: ["-t", str(ranks)],
}
# Over loopback TCP: every process a host of its own, under each protection.
TCP_MODES = ("checksum", "clear", "encrypted")
MODES.update({name: lambda ranks: ["--procs", str(ranks), "--tcp"] for name in TCP_MODES})


def start(command, limit, environment=None, at_line=None):
    """Run it in a session of its own: (status, output, last words).

    `at_line` is called with every line of the output, as it comes, and the process group. At the
    limit it is killed with all its ranks; the status is then None."""
    environment = dict(os.environ, **(environment or {}))
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    output, errors = [], []
    readers = [
        threading.Thread(target=collect, args=(*arguments, process.pid))
        for arguments in ((process.stdout, output, at_line), (process.stderr, errors, None))
    ]
    for reader in readers:
        reader.start()
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        status = None
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    if status is None:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for reader, stream in zip(readers, (process.stdout, process.stderr)):
        reader.join(GRACE_S)
        stream.close()
    return status, "".join(output), "".join(errors)


def collect(stream, lines, at_line, group):
    for line in stream:
        lines.append(line)
        if at_line:
            at_line(line, group)


@contextlib.contextmanager
def stopped(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)


class Probes:
    """What the probe said before the first row and after each, for rows that end as lines come."""

    def __init__(self, probe, is_row):
        self.probe, self.is_row = probe, is_row
        self.seen = [probe()] if probe else []

    def at_line(self, line, group):
        """Probe at the end of a row, with the processes of the group stopped: the next row waits. The
        ranks of some launchers are in other groups; these warm up meanwhile."""
        if self.probe and self.is_row(line):
            with stopped(group):
                self.seen.append(self.probe())

    def give(self, rows, key):
        """Every row gets the probes around it; rows of one key end with one line."""
        at = -1
        last = None
        for row in rows:
            at += key(row) != last
            last = key(row)
            if at + 1 < len(self.seen):
                row["cross_core_ns"] = self.seen[at : at + 2]
        return rows


def rows_in(text):
    """The JSON objects of a text that have a time: lines, a list, or an object with `rows`."""
    try:
        whole = json.loads(text)
        found = whole.get("rows", [whole]) if isinstance(whole, dict) else whole
    except ValueError:
        found = []
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return [row for row in found if isinstance(row, dict) and "time_us" in row]


def last_words(errors):
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


def run_peer(system, ranks, wishes, sizes, budget, limit, rewrite=False, probe=None):
    """(rows, problem or None); `probe` is called between rows."""
    probes = Probes(probe, lambda line: bool(rows_in(line)))
    memory = str(SHARED) if os.access(SHARED, os.W_OK) else None
    before = shared_names()
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        own = {
            "BENCH_BOARD": str(Path(folder) / "board"),
            "BENCH_LIMIT_S": str(int(limit) + GRACE_S),
        }
        if rewrite:
            own["BENCH_REWRITE"] = "1"
        command = system.command(ranks, ",".join(wishes), ",".join(map(str, sizes)), budget)
        environment = {**system.environment, **own}
        status, output, errors = start(command, limit, environment, probes.at_line)
    problem = None
    if status is None:
        problem = f"stopped after {limit:.0f} s"
        sweep(shared_names() - before)
    elif status != 0:
        problem = f"exit status {status}: {last_words(errors)}"
    return probes.give(rows_in(output), id), problem


def shared_names():
    return set(os.listdir(SHARED)) if SHARED.is_dir() else set()


def sweep(names):
    """Remove what a stopped library left in shared memory: files of ours by its names for them."""
    for name in names:
        path = SHARED / name
        if name.startswith(LEFT_BEHIND) and path.stat().st_uid == os.getuid():
            path.unlink(missing_ok=True)


def progressions(sizes):
    """The sizes as runs of `(first, last, factor)`, since ring-perf scans by a factor."""
    runs = []
    rest = sorted(sizes)
    while rest:
        run = rest[:1]
        factor = rest[1] // rest[0] if len(rest) > 1 and rest[1] % rest[0] == 0 else 2
        while len(rest) > len(run) and rest[len(run)] == run[-1] * factor:
            run.append(rest[len(run)])
        runs.append((run[0], run[-1], factor))
        rest = rest[len(run) :]
    return runs


def placements(wishes):
    """ring-perf's invocations for the wishes: operations by `--placement`."""
    plain = {wish for wish in wishes if not wish.endswith(":in")}
    inside = {wish[:-3] for wish in wishes if wish.endswith(":in")}
    groups = [("both", plain & inside), ("out", plain - inside), ("in", inside - plain)]
    return [(placement, sorted(operations)) for placement, operations in groups if operations]


def ringcomm_commands(command, mode, ranks, wishes, sizes, budget):
    for first, last, factor in progressions(sizes):
        for placement, operations in placements(wishes):
            scan = [
                "-b",
                str(first),
                "-e",
                str(last),
                "-f",
                str(factor),
                "-d",
                "float",
                "-o",
                "sum",
            ]
            tail = ["--placement", placement, "--budget", str(budget)]
            yield [*command, *operations, *scan, *MODES[mode](ranks), *tail]


def is_table_row(line):
    return line.split()[:1] != [] and line.split()[0].isdigit()


def run_ringcomm(
    command, mode, ranks, wishes, sizes, budget, limit, extra=UNCHECKED, probe=None
):
    """(rows, problem or None); `probe` is called between rows."""
    rows = []
    environment = {"RINGCOMM_PROTECTION": mode} if mode in TCP_MODES else {}
    end = time.monotonic() + limit
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "rows.json"
        for line in ringcomm_commands(command, mode, ranks, wishes, sizes, budget):
            report.unlink(missing_ok=True)
            left = max(end - time.monotonic(), 1)
            probes = Probes(probe, is_table_row)
            words = [*line, *extra, "--json", str(report)]
            status, _, errors = start(words, left, environment, probes.at_line)
            if report.exists():
                found = rows_in(report.read_text())
                rows += probes.give(found, lambda row: (row["op"], row["bytes"]))
            if status is None:
                return rows, f"stopped after {limit:.0f} s"
            if status != 0:
                return rows, f"{' '.join(line)}: exit status {status}: {last_words(errors)}"
    return rows, None
