"""Ranks that have a process group of torch, for the tests of `ringcomm.apex.parallel`."""

import os

import torch
import torch.distributed as dist

from ranks_in_processes import run


def _joined(backend, body, arguments):
    torch.set_num_threads(1)
    folder = os.path.dirname(os.environ["RINGCOMM_ADDRESS"])
    place = {"rank": int(os.environ["RINGCOMM_RANK"])}
    place["world_size"] = int(os.environ["RINGCOMM_NRANKS"])
    dist.init_process_group(backend, init_method=f"{folder}/store", **place)
    try:
        return body(*arguments)
    finally:
        dist.destroy_process_group()


def everyone(ranks, body, *arguments, backend="ringcomm"):
    """`[body(*arguments) for every rank]`, each a process with a default process group."""
    return run(ranks, _joined, backend, body, arguments)
