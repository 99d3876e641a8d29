"""Horovod's own tests on ringcomm, from a checkout of Horovod.

    python python/tests/horovod_suite.py DIR [--ranks 2] [--output FILE] [--tests NAME ...]

DIR is the checkout, whose files are used as they are: its test/parallel/test_torch.py,
test_common.py and test_timeline.py, or those that --tests names. Needs pytest, numpy, packaging and
cloudpickle. Every rank is a process of pytest; prints rank 0's line for each test, then the counts,
and ends with 1 if a test has failed on any rank. These are answered for: `mock` is Python's own;
Horovod's helpers for threads, ranks and eager code are here; and torch's optimizer Muon, which
takes matrices alone, is not among those that tests try with every parameter.
"""

import argparse
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = ["test_torch.py", "test_common.py", "test_timeline.py"]
#: Without an answer for so long a rank says where it stands, and ends.
MOST_SECONDS = 120
#: With three ranks these want that three halves add up without being rounded, on every rank or on
#: some; on Horovod itself they fail or hang.
OF_THREE = [
    "test_horovod_allreduce_prescale",
    "test_horovod_reducescatter_prescale",
    "test_horovod_grouped_reducescatter_prescale",
]

#: What every rank's Python runs first.
SITE = '''
import os, sys, threading, types


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def get_env_rank_and_size():
    return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])


def _executing_eagerly():
    import tensorflow

    return tensorflow.executing_eagerly()


for name, helper in (
    ("horovod.runner", None),
    ("horovod.runner.common", None),
    ("horovod.runner.common.util", None),
    ("horovod.runner.common.util.env", get_env_rank_and_size),
    ("horovod.runner.util", None),
    ("horovod.runner.util.threads", in_thread),
    ("horovod.tensorflow.util", _executing_eagerly),
):
    made = sys.modules[name] = types.ModuleType(name)
    if helper is not None:
        setattr(made, helper.__name__, helper)
'''
PLUGIN = '''
try:
    import torch
except ImportError:
    pass
else:
    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "left out"
try:
    import tensorflow
except ImportError:
    pass
else:
    import sys, horovod.tensorflow

    horovod.tensorflow.util = sys.modules["horovod.tensorflow.util"]
    horovod.tensorflow._executing_eagerly = tensorflow.executing_eagerly
'''


def started(rank, ranks, folder, tests, words):
    """A rank, whose output goes to a file of the folder."""
    import ringcomm.compat

    ours = Path(ringcomm.compat.path())
    path = [folder, ours, ours.parents[1], *os.environ.get("PYTHONPATH", "").split(":")]
    place = {
        "HOROVOD_RANK": rank, "HOROVOD_SIZE": ranks, "HOROVOD_LOCAL_RANK": rank,
        "HOROVOD_LOCAL_SIZE": ranks, "RINGCOMM_RANK": rank, "RINGCOMM_NRANKS": ranks,
        "RINGCOMM_ADDRESS": f"file://{folder}/meet", "OMP_NUM_THREADS": 1,
        "PYTHONPATH": ":".join(str(one) for one in path if str(one)),
    }  # fmt: skip
    command = [
        sys.executable, "-u", "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "plugin",
        "--tb=short", "-rsfE", "-o", f"faulthandler_timeout={MOST_SECONDS}",
        "-o", "faulthandler_exit_on_timeout=true", *words,
    ]  # fmt: skip
    with open(folder / f"rank{rank}", "w") as file:
        return subprocess.Popen(
            command, cwd=tests, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, **{name: str(value) for name, value in place.items()}},
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--tests", nargs="+", default=FILES)
    options = parser.parse_args()
    tests = (options.checkout / "test/parallel").resolve()
    if not tests.is_dir():
        parser.error(f"{tests} is no folder: name a checkout of Horovod")
    words = list(options.tests)
    if options.ranks == 3:
        words += ["-k", " and ".join(f"not {name}" for name in OF_THREE)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "sitecustomize.py").write_text(SITE)
        (folder / "plugin.py").write_text(PLUGIN)
        (folder / "mock.py").write_text("from unittest.mock import *\n\nversion_info = (5, 0, 0)\n")
        ranks = [
            started(rank, options.ranks, folder, tests, words) for rank in range(options.ranks)
        ]
        codes = [rank.wait() for rank in ranks]
        said = [(folder / f"rank{rank}").read_text() for rank in range(options.ranks)]
    kinds = (r"\S+::\S+ [A-Z]+", r"(?:SKIPPED|SUBFAILED|FAILED|ERROR)\S* .*", r"=+ .*(?:passed|failed).*")
    lines = re.findall("|".join(f"^{kind}" for kind in kinds), said[0], re.M)
    text = "\n".join([*lines, *told(codes, said)]) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(head(options) + text)
    return 1 if any(codes) else 0


def told(codes, said):
    """Where a rank has ended otherwise than well, the end of what it said."""
    for rank, (code, text) in enumerate(zip(codes, said)):
        if code:
            yield f"rank {rank} ended with {code}:"
            yield "\n".join(text.splitlines()[-60:])


def head(options):
    import ringcomm

    root = Path(__file__).resolve().parents[2]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True
    ).stdout.strip()
    known = ("torch", "tensorflow", "tensorflow-cpu", "keras", "numpy")
    every = importlib.metadata.distributions()
    there = {one.metadata["Name"].replace("_", "-"): one.version for one in every}
    frameworks = [f"{name} {there[name]}" for name in known if name in there]
    of_three = f"; left out: {', '.join(OF_THREE)}" if options.ranks == 3 else ""
    return (
        f"Horovod's own tests on ringcomm {ringcomm.__version__} at {commit}, {options.ranks} ranks; "
        f"horovod_suite.py DIR --ranks {options.ranks}"
        f"{' --tests ' + ' '.join(options.tests) if options.tests != FILES else ''}\n"
        f"{', '.join(frameworks)}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores{of_three}\n\n"
    )


if __name__ == "__main__":
    sys.exit(main())
