"""Values of every type, and what reductions make of them."""

import ml_dtypes
import numpy as np

OPERATIONS = ("SUM", "PRODUCT", "MAX", "MIN", "AVG")


def contribution(rank, count, dtype):
    """A rank's vector of 1s, 2s and 4s: what four ranks make of them is exact in 8 bits, too."""
    steps = (rank + 1) * np.arange(1, count + 1) % 3
    return (1 << steps).astype(dtype)


def reduced(operation, nranks, count, dtype):
    """What an operation makes of the contributions of so many ranks."""
    all_ranks = np.stack([contribution(rank, count, np.int64) for rank in range(nranks)])
    made = {
        "SUM": all_ranks.sum(axis=0),
        "PRODUCT": all_ranks.prod(axis=0),
        "MAX": all_ranks.max(axis=0),
        "MIN": all_ranks.min(axis=0),
        "AVG": all_ranks.sum(axis=0) / nranks,
    }[operation]
    # An average of integers is cut to one.
    return (np.trunc(made).astype(np.int64) if np.dtype(dtype).kind in "iu" else made).astype(dtype)


def check(result, operation, nranks, note=""):
    """Every rank has the reduced vector; an average may be the next number of its type."""
    wanted = reduced(operation, nranks, len(result), result.dtype)
    close = 0.0
    if operation == "AVG" and result.dtype.kind not in "iu":
        close = 2 * float(ml_dtypes.finfo(result.dtype).eps)
    np.testing.assert_allclose(
        result.astype(np.float64), wanted.astype(np.float64), rtol=close,
        err_msg=f"{operation} of {result.dtype} on {nranks} ranks {note}")
