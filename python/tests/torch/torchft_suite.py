"""torchft's own tests on ringcomm: `ProcessGroupRingcomm` in the place of its group for gloo.

    python torchft_suite.py [DIR] [--output FILE] [--modules NAME ...] [--names NAME ...]

The tests come with torchft's wheel; DIR is a checkout of torchft whose tests are to be run instead.
Prints a line for each test that ran, then the counts; the file has a line for each that was
skipped, too, with torchft's reason. In one thing they are answered for: where a rank has left,
tests want one of the sentences in which gloo and NCCL say so, and here get ringcomm's.
"""

import argparse
import importlib
import os
import platform
import sys
import time
import unittest
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import distributed_suite

#: The modules with tests over a process group.
MODULES = [
    "process_group_test",
    "ddp_test",
    "manager_integ_test",
    "local_sgd_integ_test",
    "parameter_server_test",
    "lighthouse_test",
    "checkpointing.pg_transport_test",
]
#: Tests that are left out, and why.
OTHERWISE = {
    "test_pg_transport_gloo": "wants a send to end soon that nobody receives, as on gloo, where a "
    "receive that has timed out breaks the connection; on ringcomm it waits for its own timeout"
}
#: Seconds that children get to import torch, of which tests allow 10: a busy machine takes longer.
CHILD_S = 120
#: What ringcomm says where a rank has left a group.
LEFT = "left|died|ended|failed|destroyed"


def prepare(folder):
    """torchft, with ringcomm's groups under the names of gloo's."""
    if folder:
        # Its tests beside the installed package, which has what is compiled.
        import torchft

        torchft.__path__.append(str(Path(folder).resolve() / "torchft"))
    import torchft
    from torchft import process_group

    from ringcomm.torch import torchft as ours

    for module in (process_group, torchft):
        module.ProcessGroupGloo = ours.ProcessGroupRingcomm
    process_group.ProcessGroupBabyGloo = ours.ProcessGroupBabyRingcomm
    begin = ours.ProcessGroupBabyRingcomm.__init__

    def __init__(self, timeout=CHILD_S):
        # What is less is to be too short.
        short = isinstance(timeout, timedelta) and timeout < timedelta(seconds=1)
        begin(self, timeout if short else CHILD_S)

    def set_timeout(self, timeout):
        short = timeout < timedelta(seconds=10)
        self._timeout = timeout.total_seconds() if short else CHILD_S

    ours.ProcessGroupBabyRingcomm.__init__ = __init__
    ours.ProcessGroupBabyRingcomm.set_timeout = set_timeout
    wanted = unittest.TestCase.assertRaisesRegex

    def assert_raises_regex(self, error, pattern, *more, **named):
        if "Connection closed by peer" in pattern or pattern == "aborted":
            pattern = f"{pattern}|{LEFT}"
        return wanted(self, error, pattern, *more, **named)

    unittest.TestCase.assertRaisesRegex = assert_raises_regex


def tests_of(modules, names):
    """The tests of these modules whose names contain one of these, if there are any."""
    tests = unittest.TestSuite()
    for module in modules:
        found = importlib.import_module(f"torchft.{module}")
        tests.addTests(unittest.defaultTestLoader.loadTestsFromModule(found))
    for test in flat(tests):
        why = OTHERWISE.get(test.id().rsplit(".", 1)[1])
        if why:
            setattr(type(test), test._testMethodName, unittest.skip(why)(lambda self: None))
    if not names:
        return tests
    return unittest.TestSuite(
        test for test in flat(tests) if any(name in test.id() for name in names)
    )


def flat(tests):
    """Every test of suites in suites."""
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", metavar="DIR", help="a checkout of torchft")
    parser.add_argument("--output", metavar="FILE", help="write every line there, too")
    parser.add_argument("--modules", nargs="+", default=MODULES, metavar="NAME")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="tests whose name contains this")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare(chosen.folder)
    result = distributed_suite.Lines()
    result.begin = time.monotonic()  # what fails before the first test has a time, too
    tests_of(chosen.modules, chosen.names).run(result)
    failed = len(result.failures) + len(result.errors)
    result.say(
        f"tests of torchft {metadata.version('torchft')} under torch "
        f"{distributed_suite.torch.__version__}, Python {platform.python_version()}, on ringcomm: "
        f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped"
    )
    if chosen.output:
        Path(chosen.output).write_text("\n".join(result.lines) + "\n")
    # Threads of groups that a test has left alone may still wait.
    sys.stdout.flush()
    os._exit(1 if failed or not result.passed else 0)


if __name__ == "__main__":
    main()
