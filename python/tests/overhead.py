"""What Python adds to a call: an all-reduce of one element, by a communicator of one rank.

Such a call moves nothing, so its time is that of the way there and back. `python overhead.py`
prints what was measured, where and when, and of several runs the median and the least of many
rounds; the machine should do nothing else. It ends with status 1 where the least of a call of the
package is above `MOST_NS` in every run.
"""

import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
import timeit
from pathlib import Path

import numpy as np

try:
    from torch import __version__ as torch_version
    from torch import ones
except ImportError:
    # Also where there is no PyTorch: this program's folder has one of that name.
    ones = torch_version = None

import ringcomm
from ringcomm import _native

#: Short rounds, many of them: some fall into moments in which nobody else needs the core.
RUNS, ROUNDS, CALLS = 3, 400, 500
#: Nanoseconds that a call may take from Python when nobody disturbs it: what is promised. It takes
#: up to 1,500 (`benches/results/python-overhead-2026-11-25.txt`), and has taken up to 1,900.
MOST_NS = 2000


def nanoseconds(statements, names):
    """Median and least time of one run of each statement; rounds take turns."""
    timers = [timeit.Timer(statement, globals=names) for statement in statements]
    rounds = [[1e9 * timer.timeit(CALLS) / CALLS for timer in timers] for _ in range(ROUNDS)]
    return [(statistics.median(times), min(times)) for times in zip(*rounds)]


def commit():
    """Which state of the project this is; of an installed package, its release."""
    words = ["describe", "--always", "--abbrev=12", "--match=", "--dirty"]
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True
        )
    except OSError:
        return ringcomm.__version__
    return done.stdout.strip() or ringcomm.__version__


def origin():
    """Where this is measured, when, with what, and of which state of the project."""
    processors = Path("/proc/cpuinfo").read_text()
    named = re.search(r"^model name\s*: (.*)", processors, re.MULTILINE)
    return [
        f"{datetime.date.today()}, commit {commit()}",
        f"{os.cpu_count()} cores, {named[1] if named else platform.machine()}, Linux "
        f"{platform.release()}; load average before it {os.getloadavg()[0]:.1f}",
        f"Python {platform.python_version()}, NumPy {np.__version__}, torch {torch_version}",
        f"all-reduce of one float32, communicator of one rank, {ROUNDS} rounds of {CALLS} calls",
    ]


def rows_of(comm):
    """What is measured by its title, and the names in it."""
    send, recv = np.ones(1, np.float32), np.ones(1, np.float32)
    names = {
        "comm": comm, "send": send, "recv": recv,
        "call": _native.lib.ringAllReduce, "handle": comm.handle,
        "a": send.ctypes.data, "b": recv.ctypes.data,
        "nothing": lambda *arguments: None,
    }  # fmt: skip
    rows = {
        "all_reduce(send, recv)": "comm.all_reduce(send, recv)",
        "all_reduce(buffer)": "comm.all_reduce(send)",
        "barrier()": "comm.barrier()",
        "the library's function through ctypes": "call(a, b, 1, 7, 0, handle, None)",
        "a Python function that does nothing": "nothing(a, b, 1, 7, 0, handle, None)",
    }
    if ones is not None:
        names.update(source=ones(1), result=ones(1))
        rows["all_reduce(send, recv), tensors"] = "comm.all_reduce(source, result)"
        rows["all_reduce(buffer), a tensor"] = "comm.all_reduce(source)"
    return rows, names


def main():
    """Measure, print, and hold the calls to `MOST_NS`."""
    print("\n".join(origin()))
    with ringcomm.init(nranks=1) as comm:
        rows, names = rows_of(comm)
        best = dict.fromkeys(rows, float("inf"))
        for _ in range(RUNS):
            print(f"\n{'nanoseconds':40} median    least")
            for title, (median, least) in zip(rows, nanoseconds(rows.values(), names)):
                print(f"{title:40} {median:6.0f}   {least:6.0f}", flush=True)
                best[title] = min(best[title], least)
    slow = [title for title in rows if rows[title].startswith("comm.") and best[title] > MOST_NS]
    if slow:
        sys.exit(f"more than {MOST_NS} ns: {'; '.join(slow)}")


if __name__ == "__main__":
    main()
