"""The steps of scripts/gpu-check, in order: what each runs, how long it may take, and what it needs."""
import os
import shutil
import sys
from pathlib import Path

from gpu_goals import KINDS, LARGE, OPERATIONS, RANKS, SMALL

SCRIPTS = Path(__file__).resolve().parent
# All limits together: under eight minutes, with what it takes to begin and to end a step.
MOST_SECONDS = 472
# Of its limit a peer leaves this to a cell that it has just begun, and to its end.
PEERS_OWN = 4


class Step:
    """A command. `rows` names a file in which it leaves results, beside JSON lines that it prints; its rows
    are alike in what `expects` says."""

    def __init__(self, name, limit, *words, needs=(), env=None, rows=None, expects=None):
        self.name, self.limit, self.words = name, limit, [str(word) for word in words]
        self.needs, self.env, self.rows, self.expects = needs, env or {}, rows, expects or {}

    def surprises(self, reports):
        """What its rows have that they should not."""
        for report in reports:
            for row in report.get("rows", []):
                for field, want in self.expects.items():
                    if row.get(field) != want:
                        yield f"{row.get('bytes')} bytes: {field} is {row.get(field)}, not {want}"


def every_step(folder, dry, scratch):
    """All of them, in order."""
    perf, tests = folder / "ring-perf", folder / "cuda-tests"
    kernels = [folder / "ringcomm.fatbin", folder / "kernels-host.so"]
    most = "4K" if dry else "4M"

    def measure(name, limit, *words, **more):
        rows = scratch / f"{name}.json"
        return Step(name, limit, perf, *words, "--json", rows, needs=[perf], rows=rows, **more)

    # Where nobody else has the device open, each of these loads the driver's half of it anew.
    asked = ["nvidia-smi", "nvidia-smi -q -d CLOCK,POWER,ECC,COMPUTE", "nvidia-smi topo -m"]
    facts = "; ".join(["uname -a", "nproc", *(f"timeout -k 1 3 {one}" for one in asked), ":"])
    if not dry:
        yield Step("facts", 12, "sh", "-c", facts)
    # Correctness: each kernel alone, against the host's bits; then calls.
    yield Step("kernels", 36, sys.executable, SCRIPTS / "gpu-kernels.py", *kernels, needs=kernels)
    yield Step("correctness", 55, tests, "--test-threads", 4, "--skip", "stress::", "--skip", "pieces::",
               needs=[tests])
    # Memory that is mapped piece by piece, between processes, by the driver's descriptors.
    yield Step("pieces", 10, tests, "pieces::", needs=[tests])
    operations = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]
    yield measure("checked-operations", 14, *operations, "-g", 1, "-t", 4, "-b", 8, "-e", most, "-f", 32,
                  "-n", 3, "-d", "float")
    yield measure("checked-types", 10, "all_reduce", "-g", 1, "-t", 3, "-b", "1K", "-e", "1K", "-n", 2,
                  "-d", "all", "-o", "all")
    yield from sanitized(kernels)
    # Stress: half with one hardware queue, in which everything is in line, and half with many.
    for queues in [1, 32]:
        yield Step(f"stress-{queues}-queues", 38, tests, "stress::", "--nocapture", needs=[tests],
                   env={"CUDA_DEVICE_MAX_CONNECTIONS": queues, "RINGCOMM_STRESS_SEED": queues,
                        "RINGCOMM_STRESS_OPERATIONS": 400 if dry else 50_000})
    yield from processes(folder, dry, scratch)
    yield from timing(measure, dry)
    yield from together(measure, dry)
    # The kernels alone.
    ranks = [SCRIPTS / "gpu-ranks.py", *kernels, *([64 << 10] if dry else [])]
    yield Step("ranks", 20, sys.executable, *ranks, needs=kernels)
    for peer, limit in {} if dry else {"stack": 18, "nccl": 24, "symmetric": 26}.items():
        yield Step(f"peer-{peer}", limit, sys.executable, SCRIPTS / "gpu-peers.py", peer, limit - PEERS_OWN)


def processes(folder, dry, scratch):
    """Two processes on one device: ten thousand operations, and how near large ones come to the bound."""
    perf, runner = folder / "ring-perf", folder / "ringrun"
    size = "4K" if dry else LARGE[-1]
    words = {"many": ["-b", "1K", "-e", "1K", "-n", 50 if dry else OPERATIONS // 2],
             "large": ["-b", size, "-e", size]}
    for name, sizes in words.items():
        rows = scratch / f"processes-{name}.json"
        yield Step(f"processes-{name}", 11, runner, "-n", 2, perf, "all_reduce", "-g", 1, "-d", "float", *sizes,
                   "--json", rows, needs=[perf, runner], rows=rows,
                   expects={"transport": "cuda fused by ipc", "wrong": 0})


def sanitized(kernels):
    """What each tool of compute-sanitizer looks at, each launch a few times and not timed: every kind of kernel, those whose memory is all written
    before, and every kind once more for the memory that a block shares."""
    python = [sys.executable]
    looked_at = {
        "memcheck": [*python, SCRIPTS / "gpu-ranks.py", *kernels, 1000, 1],
        "initcheck": [*python, SCRIPTS / "gpu-kernels.py", *kernels, "float", "bfloat16", "int8"],
        "racecheck": [*python, SCRIPTS / "gpu-ranks.py", *kernels, 8, 1],
    }
    # What the driver answers is looked at by who asks: that an event has not passed is no error.
    options = {"memcheck": ["--report-api-errors", "no"]}
    usual = f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin"
    program = Path(shutil.which("compute-sanitizer", path=usual) or "compute-sanitizer")
    for tool, words in looked_at.items():
        yield Step(f"sanitizer-{tool}", 12, program, "--tool", tool, *options.get(tool, []),
                   "--error-exitcode", 9, *words, needs=[program, *kernels])
        if not program.is_file():
            return


def timing(measure, dry):
    """Calls as they are made: small ones at every power of two, large ones past every cache."""
    fused = {"expects": {"transport": "cuda fused", "wrong": 0}}
    for ranks in RANKS:
        most, factor, times = (512, 64, 5) if dry else (SMALL[-1], 2, 500)
        yield measure(f"small-{ranks}", 7, "all_reduce", "-g", 1, "-t", ranks, "-b", SMALL[0], "-e", most,
                      "-f", factor, "-d", "float", "-n", times, **fused)
    for ranks in [] if dry else RANKS:
        for kind in KINDS:
            yield measure(f"large-{ranks}-{kind}", 7, "all_reduce", "-g", 1, "-t", ranks, "-b", "1M",
                          "-e", LARGE[-1], "-f", 4, "-d", kind, **fused)
    # A type and operation whose arithmetic is wider than its elements.
    yield measure("avg", 4, "all_reduce", "-g", 1, "-t", 3, "-b", "4K" if dry else LARGE[0],
                  "-e", "4K" if dry else LARGE[0], "-d", "float", "-o", "avg", **fused)


def together(measure, dry):
    """Calls of all ranks in one cooperative launch, by the kernels of ranks on a device each."""
    def one(algorithm, ranks, limit, least, most, factor):
        return measure(f"together-{algorithm}-{ranks}", limit, "all_reduce", "-g", 1, "-t", ranks, "-b", least,
                       "-e", most, "-f", factor, "-d", "float", "--algo", algorithm,
                       expects={"transport": "cuda cooperative", "algorithm": algorithm, "wrong": 0})
    for algorithm in ["twoshot", "ring"]:
        for ranks in RANKS[:1] if dry else RANKS:
            sizes = ("1K", "4K", 4) if dry else (*LARGE, LARGE[1] // LARGE[0])
            yield one(algorithm, ranks, 7, *sizes)
    yield one("oneshot", 2 if dry else 8, 4, SMALL[0], 512 if dry else SMALL[-1], 64 if dry else 8192)
