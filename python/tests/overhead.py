"""What Python adds to a call: an all-reduce of one element, by a communicator of one rank.

Such a call moves nothing, so its time is that of the way there and back. `python overhead.py`
prints the median and the least of many rounds; the machine should do nothing else. It ends with
status 1 where the least of a call of the package is above `MOST_NS`.
"""

import statistics
import sys
import timeit

import numpy as np

try:
    from torch import ones
except ImportError:
    # Also where there is no PyTorch: this program's folder has one of that name.
    ones = None

import ringcomm
from ringcomm import _native

#: Short rounds, many of them: some fall into moments in which nobody else needs the core.
ROUNDS, CALLS = 400, 500
#: Nanoseconds that a call may take from Python when nobody disturbs it: it takes up to 1,900
#: (`benches/results/python-overhead-2026-11-21.txt`), and a look at an argument that costs 100 more
#: is what this has to find.
MOST_NS = 2000


def nanoseconds(statements, names):
    """Median and least time of one run of each statement; rounds take turns."""
    timers = [timeit.Timer(statement, globals=names) for statement in statements]
    rounds = [[1e9 * timer.timeit(CALLS) / CALLS for timer in timers] for _ in range(ROUNDS)]
    return [(statistics.median(times), min(times)) for times in zip(*rounds)]


def main():
    """Measure, print, and hold the calls to `MOST_NS`."""
    with ringcomm.init(nranks=1) as comm:
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
        print(f"{'nanoseconds':40} median    least")
        slow = []
        for title, (median, least) in zip(rows, nanoseconds(rows.values(), names)):
            print(f"{title:40} {median:6.0f}   {least:6.0f}")
            if rows[title].startswith("comm.") and least > MOST_NS:
                slow.append(title)
    if slow:
        sys.exit(f"more than {MOST_NS} ns: {'; '.join(slow)}")


if __name__ == "__main__":
    main()
