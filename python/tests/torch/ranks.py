"""Ranks as forked processes, which begin in a tenth of a second; the parent itself only imports
torch, with what DistributedDataParallel imports of it: that takes seconds."""

import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch._dynamo  # noqa: F401
import torch.distributed as dist

import ringcomm.torch  # noqa: F401

#: Long enough for a machine that does ten other things; a test that waits for it is about to fail.
PATIENCE_S = 90


class Ended(Exception):
    """A rank ended without a result."""


def _child(rank, nranks, url, function, arguments, settings, pipe):
    torch.set_num_threads(1)
    try:
        settings = {"backend": "ringcomm", "timeout": timedelta(seconds=PATIENCE_S), **settings}
        dist.init_process_group(init_method=url, rank=rank, world_size=nranks, **settings)
        result = function(rank, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    pipe.close()
    sys.stdout.flush()
    # Threads of torch may still live; what the test wanted to know is said.
    os._exit(0)


def run(nranks, function, *arguments, url=None, may_die=(), **settings):
    """`function(rank, *arguments)` on every rank of a group; their results.

    A rank's exception fails the test. Ranks in `may_die` may end without a result.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        url = url or f"file://{folder}/store"
        pipes, processes = [], []
        for rank in range(nranks):
            ours, theirs = context.Pipe()
            words = (rank, nranks, url, function, arguments, settings, theirs)
            process = context.Process(target=_child, args=words, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return _collect(pipes, may_die)
        finally:
            for process in processes:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(pipes, may_die):
    results, waiting = [None] * len(pipes), dict(zip(pipes, range(len(pipes))))
    end = time.monotonic() + PATIENCE_S
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), timeout=end - time.monotonic())
        if not ready:
            raise AssertionError(f"ranks {sorted(waiting.values())} did not come to an end")
        for pipe in ready:
            rank = waiting.pop(pipe)
            try:
                passed, results[rank] = pipe.recv()
            except EOFError:
                if rank not in may_die:
                    raise AssertionError(f"rank {rank} ended without a word") from None
                continue
            assert passed, f"rank {rank}:\n{results[rank]}"
    return results
