"""PyTorch's own tests of a backend (torch.testing._internal.distributed) on ringcomm, 2 ranks.

    python distributed_suite.py [--backend gloo] [--ranks 2] [--output FILE] [NAME ...]

Tests that torch keeps for backends that it knows by name are run, too: to the question whether it
is gloo the backend's name says yes, and remains ringcomm. Prints a line for each test that ran,
then the counts. What is skipped wants GPUs, or more ranks; the file has a line for each, too, with
torch's reason.
"""

import argparse
import inspect
import os
import platform
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch


#: What passed with 2 ranks, by release; in 2.15 the same tests as on gloo
#: (`benches/results/distributed-test-2026-11-21.txt`).
PASSED = {"2.7": 90, "2.15": 90}


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


def least_of(version):
    """How many tests pass under a release of torch, as far as that has been seen."""
    return PASSED.get(".".join(version.split(".")[:2]), 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="ringcomm")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--output", metavar="FILE", help="write every line there, too")
    parser.add_argument("names", nargs="*", metavar="NAME", help="tests whose name contains this")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="ringcomm-distributed-")
    os.environ.update(
        BACKEND=options.backend,
        WORLD_SIZE=str(options.ranks),
        TEMP_DIR=folder,
        INIT_METHOD="env://",
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    module = load(options.backend)
    result, begin = Lines(), time.monotonic()
    suite(module, options.names).run(result)
    failed = len(result.failures) + len(result.errors)
    result.say(
        f"DistributedTest of torch {module.torch.__version__}, Python {platform.python_version()}, "
        f"on {options.backend}, {options.ranks} ranks: "
        f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped "
        f"({time.monotonic() - begin:.0f} s)"
    )
    if options.output:
        Path(options.output).write_text("\n".join(result.lines) + "\n")
    least = 1 if options.names or options.ranks != 2 else least_of(module.torch.__version__)
    if result.passed < least:
        print(f"FAILED: {result.passed} tests passed, and at least {least} should")
    return 1 if failed or result.passed < least else 0


if __name__ == "__main__":
    sys.exit(main())
