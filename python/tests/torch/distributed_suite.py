"""PyTorch's own tests of a backend (torch.testing._internal.distributed) on ringcomm.

    python distributed_suite.py [--backend gloo] [--ranks 2] [--output FILE] [NAME ...]

Tests that torch keeps for backends that it knows by name are run, too: to the question whether it
is gloo the backend's name says yes, and remains ringcomm; what tests look for in the profiler they
look for here, too. Prints a line for each test that ran, then the counts. What is skipped wants
GPUs, or more ranks; the file has a line for each, too, with torch's reason. As many tests as pass
on gloo have to pass; under releases of torch for which their number is not written here, gloo runs
first, as it does for numbers of ranks for which it is not.
"""

import argparse
import inspect
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch


#: What passed, by release and number of ranks; in 2.6, 2.9 and 2.15 the same tests as on gloo
#: (`benches/results/distributed-test-2026-11-21.txt`, `-25.txt` and `-27.txt`).
PASSED = {"2.6": {2: 90}, "2.7": {2: 90}, "2.9": {2: 90}, "2.15": {2: 90, 3: 90, 4: 93}}


class Answering(str):
    """A backend's name that also answers to gloo's."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        # So that sets of the names find it.
        return hash("gloo")


class Environment(dict):
    """The environment with one variable that is not plain text."""

    def __getitem__(self, key):
        found = super().__getitem__(key)
        return Answering(found) if key == "BACKEND" and found != "gloo" else found


def load(backend):
    """The module of tests, with its doors open."""
    # What DistributedDataParallel imports: seconds in every rank of every test.
    import torch._dynamo  # noqa: F401
    import torch.testing._internal.common_distributed as common

    if backend == "ringcomm":
        import ringcomm.torch  # noqa: F401

    # What torch's tests know of a backend that is not built into torch.
    common.DistTestCases.backend_feature.setdefault("plugin", set()).add(backend)
    for feature in common.DistTestCases.backend_feature.values():
        if "gloo" in feature:
            feature.add(backend)
    known, os.environ = os.environ, Environment(os.environ)
    try:
        import torch.testing._internal.distributed.distributed_test as module
    finally:
        os.environ = known
    return module


def show_events(module):
    """Have the suite look at ringcomm's events in the profiler, which it does for backends that it
    knows by name."""
    from ringcomm.torch import core, profiling

    for which in ("", "CUDA_", "SEND_RECV_"):
        getattr(module, f"{which}PROFILING_SUPPORTED_BACKENDS").append("ringcomm")
    events, track, ends = module.get_profiling_event, core.track, []

    def tracked(name, work, *tensors):
        track(name, work, *tensors)
        # A work whose future nobody asks for goes other ways, which tests without a profiler are
        # to see as well.
        if profiling.active():
            # Called back when the event has its end.
            ends.append(work.get_future().then(lambda done: None))

    class Profile(torch.autograd.profiler.profile):
        def __exit__(self, *exception):
            # An event ends a moment after its operation, and one without an end is not shown.
            while ends:
                ends.pop().wait()
            return super().__exit__(*exception)

    def looked_at(*named, **more):
        found = events(*named, **more)
        for event in found:
            # The one thing that is answered for: that the event ended on another thread. Operations
            # whose caller waits are made on its own, and others may be done before anyone looks.
            event.is_async = True
        return found

    core.track = tracked
    torch.autograd.profiler.profile = Profile
    module.get_profiling_event = looked_at


def suite(module, names):
    class Tests(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Ranks are forked: a process that imports torch anew takes seconds a test.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    if "only implemented for GLOO" in inspect.getsource(torch.distributed.monitored_barrier):
        # Older releases ask there for the group's real name; the group has the method itself.
        for name in ("", "_subgroup"):
            kept = getattr(Tests, f"test_monitored_barrier_gloo{name}")
            why = "torch keeps dist.monitored_barrier for gloo"
            setattr(Tests, kept.__name__, unittest.skip(why)(kept))
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
    if names:
        tests = unittest.TestSuite(
            test for test in tests if any(name in name_of(test) for name in names)
        )
    return tests


class Lines(unittest.TestResult):
    """A line for each test."""

    def __init__(self):
        super().__init__()
        self.passed = 0
        self.lines = []

    def startTest(self, test):
        super().startTest(test)
        self.begin = time.monotonic()

    def say(self, line):
        self.lines.append(line)
        print(line, flush=True)

    def ran(self, word, test, text=""):
        self.say(f"{word}: {name_of(test)} ({time.monotonic() - self.begin:.1f} s)")
        if text:
            self.say(text)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1
        self.ran("ok", test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.ran("FAILED", test, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.ran("FAILED", test, self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.lines.append(f"skipped: {name_of(test)}: {reason}")


def name_of(test):
    return test.id().rsplit(".", 1)[1]


def least(chosen):
    """How many tests have to pass: as many as on gloo, of the same names with as many ranks."""
    if chosen.backend == "gloo":
        return 1
    release = ".".join(torch.__version__.split(".")[:2])
    known = PASSED.get(release, {}).get(chosen.ranks)
    if known and not chosen.names:
        return known
    words = [sys.executable, __file__, "--backend", "gloo", "--ranks", str(chosen.ranks)]
    ran = subprocess.run([*words, *chosen.names], check=False, capture_output=True, text=True)
    found = re.search(r"^DistributedTest .* on gloo, .* (\d+) passed.*", ran.stdout, re.MULTILINE)
    if not found:
        raise SystemExit(
            f"FAILED: gloo, to compare with, ended with {ran.returncode}\n{ran.stderr}"
        )
    print(found[0], flush=True)
    return int(found[1])


def options():
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="ringcomm")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--output", metavar="FILE", help="write every line there, too")
    parser.add_argument("names", nargs="*", metavar="NAME", help="tests whose name contains this")
    return parser.parse_args()


def main():
    chosen = options()
    floor = least(chosen)
    folder = tempfile.mkdtemp(prefix="ringcomm-distributed-")
    os.environ.update(
        BACKEND=chosen.backend,
        WORLD_SIZE=str(chosen.ranks),
        TEMP_DIR=folder,
        INIT_METHOD="env://",
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    module = load(chosen.backend)
    if chosen.backend == "ringcomm":
        show_events(module)
    result, begin = Lines(), time.monotonic()
    suite(module, chosen.names).run(result)
    failed = len(result.failures) + len(result.errors)
    result.say(
        f"DistributedTest of torch {module.torch.__version__}, Python {platform.python_version()}, "
        f"on {chosen.backend}, {chosen.ranks} ranks: "
        f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped "
        f"({time.monotonic() - begin:.0f} s)"
    )
    if chosen.output:
        Path(chosen.output).write_text("\n".join(result.lines) + "\n")
    if result.passed < floor:
        print(f"FAILED: {result.passed} tests passed, and at least {floor} should")
    return 1 if failed or result.passed < floor else 0


if __name__ == "__main__":
    sys.exit(main())
