"""The steps of scripts/gpu-check, in order: what each runs, how long it may take, what it needs and has to say."""
import os
import re
import shutil
import sys
from pathlib import Path

from gpu_goals import EVERYWHERE, KINDS, LARGE, ON_ONE_DEVICE, OPERATIONS, RANKS, SMALL

SCRIPTS = Path(__file__).resolve().parent
# All limits together: under eight minutes, with what it takes to begin and to end a step; and of the first steps.
MOST_SECONDS, FIRST_SECONDS = 472, 60
# Of what steps before it have not spent a step takes what it needs, up to so many times its limit.
LONGEST = 3
# Stands in a command for the seconds that it gets, of which a peer leaves so many to a cell that it has
# just begun, and to its end.
SECONDS, PEERS_OWN = "SECONDS", 4
# Sizes of the ten thousand operations: the rows of those that are through stay when time runs out.
PROCESS_SIZES = [256, 512, 1024, 2048, 4096]
# What libtest says where a test ran: a filter that matches none ends well, too.
TESTED = r"^test result: ok\. [1-9]\d* passed"
# What compute-sanitizer says when it cannot look, or has not looked at all; its summary may say 0 errors.
REFUSED = re.compile(r"^.*(?:Device not supported|Internal Sanitizer Error|No attachable process).*$", re.MULTILINE)
# What ncu says when it may not read counters, or cannot.
UNREADABLE = re.compile(r"^.*(?:ERR_NVGPUCTRPERM|Failed to initialize the profiler).*$", re.MULTILINE)
# Steps that may take longer than they get: what they are under is slow, or what they measure is others'.
MAY_BE_SLOW = ("peer-", "sanitizer-", "costs-counters")
# The deadline of the library's calls in a step, as a share of the step's limit: its own report of who waits for
# whom, and where in a kernel, is there before the step is ended.
DEADLINE = 0.5
# Steps whose time is judged or read: the clocks matter.
TIMING = ("processes-large", "small-", "large-", "avg", "together-", "ranks", "costs-", "peer-", "first-timed")
# What the frameworks say of PyTorch: of two processes, what the backend comes to last; and in NCCL's place, who is
# called, and what comes of failures.
TRAINED = r'"processes": 2, .*"DistributedDataParallel".*"wrong": false'
IN_ITS_PLACE = ["NCCL's calls are ringcomm's", "a rank that does not come", "abort of all"]
# Tests of the packed program that a dry run makes, as all of them run: a few seconds' worth.
DRY_TESTS = ["capture::", "calls::all_ranks"]


class Step:
    """A command. `rows` names a file in which it leaves results, beside JSON lines that it prints; each of
    its rows has what `present` names, and is alike in what `expects` says; what it prints has a line for every
    pattern of `says`."""

    def __init__(self, name, limit, *words, needs=(), env=None, rows=None, expects=None, present=(), says=()):
        self.name, self.limit, self.words = name, limit, [str(word) for word in words]
        # A path that was not asked for says why it was taken.
        self.needs, self.env, self.rows = needs, {"RINGCOMM_DEBUG": 1, **(env or {})}, rows
        self.expects, self.present, self.says = expects or {}, present, says

    def is_timed(self):
        return self.name.startswith(TIMING)

    def may_be_slow(self):
        return self.name.startswith(MAY_BE_SLOW)

    def is_called(self, name):
        """Whether a name that was asked for means it: its own, or what that begins with up to a hyphen."""
        return self.name == name or self.name.startswith(f"{name}-")

    def command(self, seconds):
        """Its words, where it gets so many seconds."""
        return [f"{max(seconds - PEERS_OWN, 1):.0f}" if word == SECONDS else word for word in self.words]

    def surprises(self, said, reports):
        """What it and its rows lack, and what they have that they should not."""
        for pattern in self.says:
            if not re.search(pattern, said, re.MULTILINE):
                yield f"nothing that it printed is {pattern}"
        for report in reports:
            for row in report.get("rows", []):
                for field, want in self.expects.items():
                    if row.get(field) != want:
                        yield f"{row.get('bytes')} bytes: {field} is {row.get(field)}, not {want}"
                for field in self.present:
                    if row.get(field) is None:
                        yield f"{row.get('bytes')} bytes: there is no {field}"

    def excuse(self, status, said, rows):
        """Why a step that did not end well says nothing of the library; None if it does."""
        if self.name.startswith("peer-") and status != 0:
            # Which of them run on one GPU is for their versions to say.
            return f"{status}: {next((row['error'] for row in rows if 'error' in row), '')}"
        if self.name.startswith("costs-counters") and status != 0:
            refused = UNREADABLE.search(said)
            return refused[0].strip("= ") if refused else status if status == "out of time" else None
        if self.name.startswith("sanitizer-"):
            refused = REFUSED.search(said)
            # How much slower it makes a program nobody promises.
            return refused[0].strip("= ") if refused else status if status == "out of time" else None
        return None


def allowance(step, rest, left):
    """Seconds for a step, when so many are left for it and for the rest: its limit, and what those before it
    have not spent. What the rest may take is theirs."""
    unspent = left - step.limit - sum(one.limit for one in rest)
    return min(left, step.limit + max(unspent, 0), LONGEST * step.limit)


def deadline(limit, dry):
    """Of ring-perf's calls; a machine without a GPU may be busy."""
    return [] if dry else ["-T", max(1, int(DEADLINE * limit))]


class Measures:
    """Makes steps of ring-perf."""

    def __init__(self, folder, dry, scratch):
        self.perf, self.dry, self.scratch = folder / "ring-perf", dry, scratch

    def __call__(self, name, limit, *words, lacks=(), **more):
        rows = self.scratch / f"{name}.json"
        # A field that nobody fills any more is found without a GPU; on one its goal says so.
        present = [field for field in [*EVERYWHERE, *ON_ONE_DEVICE] if self.dry and field not in lacks]
        return Step(name, limit, self.perf, *words, *deadline(limit, self.dry), "--json", rows, needs=[self.perf],
                    rows=rows, present=present, **more)


def every_step(folder, dry, scratch):
    """All of them, in order: what is right, what it takes, and what looks at every access and goes on for long."""
    kernels = [folder / "ringcomm.fatbin", folder / "kernels-host.so"]
    most = "4K" if dry else "4M"
    measure = Measures(folder, dry, scratch)
    if not dry:
        yield Step("facts", 10, "sh", "-c", facts(), says=[r"Driver Version\s*: [1-9]"])
    # Correctness: each kernel alone, against the host's bits; then calls.
    yield Step("kernels", 15, sys.executable, SCRIPTS / "gpu-kernels.py", *kernels, needs=kernels,
               says=[r"^ok: \w+: [1-9]\d* launches"])
    # And those that meet, which end, too, where a rank never comes.
    ranks = [sys.executable, SCRIPTS / "gpu-ranks.py", *kernels]
    yield Step("kernels-that-meet", 8, *ranks, "--checks", needs=kernels,
               says=[r'"absent": .*"cancelled": true, "wrong": null', r'^{"type": "float".*"wrong": null'])
    yield from correctness(folder / "cuda-tests", dry)
    operations = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]
    yield measure("checked-operations", 8, *operations, "-g", 1, "-t", 4, "-b", 8, "-e", most, "-f", 32,
                  "-n", 3, "-d", "float", lacks=EMPTY)
    yield measure("checked-types", 8, "all_reduce", "-g", 1, "-t", 3, "-b", "1K", "-e", "1K", "-n", 2,
                  "-d", "all", "-o", "all")
    yield from processes(folder, dry, scratch)
    yield from timing(measure, dry)
    yield from together(measure, dry)
    # The kernels alone.
    yield Step("ranks", 12, *ranks, *([64 << 10] if dry else []), "--times", needs=kernels,
               says=[r'^\{"algorithm": "ring'])
    yield from costs(kernels, dry)
    yield from frameworks(folder, dry)
    for peer, limit in {} if dry else {"stack": 18, "nccl": 21, "symmetric": 26}.items():
        yield Step(f"peer-{peer}", limit, sys.executable, SCRIPTS / "gpu-peers.py", peer, SECONDS)
    yield from sanitized(kernels)
    yield from stress(folder / "cuda-tests", dry)


def first_steps(folder, dry, scratch):
    """What the first minute on a GPU is for, the simplest first; the first that fails is the last."""
    kernels = [folder / "ringcomm.fatbin", folder / "kernels-host.so"]
    measure = Measures(folder, dry, scratch)
    if not dry:
        # A driver that nobody has open yet takes seconds to answer.
        yield Step("first-facts", 6, "sh", "-c", "; ".join(["uname -r", "timeout -k 1 5 nvidia-smi", ":"]),
                   says=[r"Driver Version\s*: [1-9]"])
    # The kernels are loaded, and each gives the host's bits.
    yield Step("first-bits", 12, sys.executable, SCRIPTS / "gpu-kernels.py", *kernels, "float", "bfloat16", "int32",
               needs=kernels, says=[rf"^ok: {name}: [1-9]" for name in ("float", "bfloat16", "int32")])
    one = ["all_reduce", "-g", 1, "-d", "float", "-b", "4K", "-e", "4K", "-n", 2]
    yield measure("first-fused", 7, *one, "-t", 2, expects={"transport": "gpu/fused", "wrong": 0})
    yield measure("first-cooperative", 7, *one, "-t", 2, "--algo", "ring",
                  expects={"transport": "gpu/cooperative", "algorithm": "ring", "wrong": 0})
    yield pair(folder, dry, scratch, "first-processes", 9, "-b", "4K", "-e", "4K", "-n", 2)
    sizes = ("1K", "4K", 4) if dry else (SMALL[-1], LARGE[0], LARGE[0] // SMALL[-1])
    yield measure("first-timed", 9, "all_reduce", "-g", 1, "-t", 2, "-d", "float", "-b", sizes[0], "-e", sizes[1],
                  "-f", sizes[2], expects={"transport": "gpu/fused", "wrong": 0})


# Of a call with too few bytes for an element of every rank nothing is compared.
EMPTY = ["wrong"]


def facts():
    """What the machine says of itself. Where nobody else has the device open, each question to the driver
    loads its half of it anew."""
    asked = ["nvidia-smi", "nvidia-smi -q -d CLOCK,POWER,ECC,COMPUTE", "nvidia-smi topo -m"]
    return "; ".join(["uname -a", "nproc", "head -n 2 /etc/os-release", "ldd --version 2>&1 | head -n 1",
                      f"{sys.executable} -V", "free -m", "ulimit -l", "df -h /dev/shm",
                      *(f"timeout -k 1 3 {one}" for one in asked), ":"])


def correctness(tests, dry):
    """What the tests say of calls, and, by themselves, of memory that is mapped piece by piece, which goes
    between processes by the driver's descriptors."""
    chosen = DRY_TESTS if dry else ["--skip", "stress::", "--skip", "pieces::"]
    env = {} if dry else {"RINGCOMM_TIMEOUT_MS": 20_000}
    yield Step("correctness", 70, sys.executable, SCRIPTS / "gpu-tests.py", tests, *chosen, needs=[tests],
               says=[TESTED], env=env)
    yield Step("pieces", 8, tests, "pieces::a_piece" if dry else "pieces::", needs=[tests], says=[TESTED])


def stress(tests, dry):
    """Half with one hardware queue, in which everything is in line, and half with many."""
    operations = 400 if dry else 50_000
    for queues in [1, 32]:
        # With one thread libtest begins a line for the row.
        yield Step(f"stress-{queues}-queues", 18, tests, "stress::", "--nocapture", "--test-threads", 2,
                   needs=[tests], says=[TESTED, rf'^{{"stress": {operations},'],
                   env={"CUDA_DEVICE_MAX_CONNECTIONS": queues, "RINGCOMM_STRESS_SEED": queues,
                        "RINGCOMM_STRESS_OPERATIONS": operations,
                        **({} if dry else {"RINGCOMM_TIMEOUT_MS": 10_000})})


def pair(folder, dry, scratch, name, limit, *words):
    """Two processes on one device."""
    perf, runner, rows = folder / "ring-perf", folder / "ringrun", scratch / f"{name}.json"
    return Step(name, limit, runner, "-n", 2, perf, "all_reduce", "-g", 1, "-d", "float", *words,
                *deadline(limit, dry), "--json", rows, needs=[perf, runner], rows=rows,
                present=EVERYWHERE if dry else (), expects={"transport": "gpu/fused by ipc", "wrong": 0})


def processes(folder, dry, scratch):
    """Two processes on one device: ten thousand operations, and how near large ones come to the bound. Each
    operation may take a turn of the device for each of them."""
    size = "4K" if dry else LARGE[-1]
    times = 10 if dry else OPERATIONS // (2 * len(PROCESS_SIZES))
    yield pair(folder, dry, scratch, "processes-many", 10, "-b", PROCESS_SIZES[0], "-e", PROCESS_SIZES[-1], "-f", 2,
               "-n", times)
    yield pair(folder, dry, scratch, "processes-large", 8, "-b", size, "-e", size)


def frameworks(folder, dry):
    """Others' programs: through the backend, and with the library in NCCL's place. Of these a driver without a GPU
    has the examples, which need no framework."""
    library, nccl = folder / "libringcomm.so", folder / "libringcomm_nccl.so"
    if not dry:
        yield Step("frameworks", 40, sys.executable, SCRIPTS / "gpu-frameworks.py", library, needs=[library],
                   says=[TRAINED])
    whole = [] if dry else [TRAINED, *(rf'"what": "{what}".*"wrong": false' for what in IN_ITS_PLACE)]
    yield Step("frameworks-nccl", 30, sys.executable, SCRIPTS / "gpu-nccl.py", nccl, *(["examples"] if dry else []),
               needs=[nccl], says=[r'"what": "a rank that dies", "seconds".*"wrong": false', *whole])


def found(program):
    """A tool of CUDA's, where it usually is."""
    usual = f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin"
    return Path(shutil.which(program, path=usual) or program)


def costs(kernels, dry):
    """What the parts of a call cost, what the counters say of the fused kernel, and the PTX compiled there."""
    script = [sys.executable, SCRIPTS / "gpu-costs.py", *kernels]
    yield Step("costs-parts", 4, *script, needs=kernels, says=[r'^{"cost": "a step of the timer"'])
    profiler = found("ncu")
    sections = ["SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis", "WarpStateStats"]
    for ranks in RANKS[:1] if dry else (RANKS[0], RANKS[-1]):
        # The clocks stay as they are: what is timed elsewhere has them so.
        yield Step(f"costs-counters-{ranks}", 4, profiler, "--clock-control", "none", "--launch-skip", 1,
                   "--launch-count", 1, "--kernel-name", "regex:ringcomm_reduce",
                   *(word for section in sections for word in ("--section", section)), *script, "--fused", ranks,
                   needs=[profiler, *kernels], says=[r"Duration"])
    if not dry:
        # The driver without a GPU runs no PTX. A real one takes 8 s to compile all of it.
        yield Step("costs-ptx", 15, sys.executable, SCRIPTS / "gpu-kernels.py", *kernels, "float", needs=kernels,
                   env={"CUDA_FORCE_PTX_JIT": 1}, says=[r"^ok: float: [1-9]\d* launches"])


def sanitized(kernels):
    """What each tool of compute-sanitizer looks at, each launch a few times and not timed: every kind of
    kernel, those whose memory is all written before, and every kind once more for the memory that a block
    shares."""
    python = [sys.executable]
    looked_at = {
        "memcheck": [*python, SCRIPTS / "gpu-ranks.py", *kernels, 1000, 1],
        "initcheck": [*python, SCRIPTS / "gpu-kernels.py", *kernels, "float", "bfloat16", "int8"],
        "racecheck": [*python, SCRIPTS / "gpu-ranks.py", *kernels, 8, 1],
    }
    # What the driver answers is looked at by who asks: that an event has not passed is no error.
    options = {"memcheck": ["--report-api-errors", "no"]}
    program = found("compute-sanitizer")
    for tool, words in looked_at.items():
        yield Step(f"sanitizer-{tool}", 11, program, "--tool", tool, *options.get(tool, []),
                   "--error-exitcode", 9, *words, needs=[program, *kernels],
                   says=[r"SUMMARY: 0 (errors|hazards)"])
        if not program.is_file():
            return


def timing(measure, dry):
    """Calls as they are made: small ones at every power of two, large ones past every cache."""
    fused = {"expects": {"transport": "gpu/fused", "wrong": 0}}
    for ranks in RANKS:
        most, factor, times = (512, 64, 5) if dry else (SMALL[-1], 2, 500)
        yield measure(f"small-{ranks}", 5, "all_reduce", "-g", 1, "-t", ranks, "-b", SMALL[0], "-e", most,
                      "-f", factor, "-d", "float", "-n", times, **fused)
    for ranks in [] if dry else RANKS:
        for kind in KINDS:
            yield measure(f"large-{ranks}-{kind}", 5, "all_reduce", "-g", 1, "-t", ranks, "-b", "1M",
                          "-e", LARGE[-1], "-f", 4, "-d", kind, **fused)
    # A type and operation whose arithmetic is wider than its elements.
    yield measure("avg", 4, "all_reduce", "-g", 1, "-t", 3, "-b", "4K" if dry else LARGE[0],
                  "-e", "4K" if dry else LARGE[0], "-d", "float", "-o", "avg", **fused)


def together(measure, dry):
    """Calls of all ranks in one cooperative launch, by the kernels of ranks on a device each."""
    def one(algorithm, ranks, limit, least, most, factor):
        return measure(f"together-{algorithm}-{ranks}", limit, "all_reduce", "-g", 1, "-t", ranks, "-b", least,
                       "-e", most, "-f", factor, "-d", "float", "--algo", algorithm,
                       expects={"transport": "gpu/cooperative", "algorithm": algorithm, "wrong": 0})
    for algorithm in ["twoshot", "ring"]:
        for ranks in RANKS[:1] if dry else RANKS:
            sizes = ("1K", "4K", 4) if dry else (*LARGE, LARGE[1] // LARGE[0])
            yield one(algorithm, ranks, 5, *sizes)
    yield one("oneshot", 2 if dry else 8, 4, SMALL[0], 512 if dry else SMALL[-1], 64 if dry else 8192)
