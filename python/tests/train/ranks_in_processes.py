"""Run a function as every rank of a job, each in a forked process, as a launcher would start it."""

import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor

#: Longer than any test waits on a machine that does ten other things.
MOST_SECONDS = 90


def run(nranks, function, *arguments):
    """`[function(*arguments) for every rank]`; the first error is raised."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(nranks, fork) as pool:
        ranks = [
            pool.submit(_rank, rank, nranks, folder, function, arguments) for rank in range(nranks)
        ]
        return [rank.result() for rank in ranks]


def _rank(rank, nranks, folder, function, arguments):
    os.environ.update(
        RINGCOMM_RANK=str(rank),
        RINGCOMM_NRANKS=str(nranks),
        RINGCOMM_ADDRESS=f"file://{folder}/meet",
        RINGCOMM_TIMEOUT_MS=str(1000 * MOST_SECONDS),
    )
    return function(*arguments)
