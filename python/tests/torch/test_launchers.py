"""The launchers, with torch's env:// and with the backend found as a user has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from ranks import with_free_port

PROGRAM = """
import os, torch, torch.distributed as dist
import ringcomm.torch
dist.init_process_group("ringcomm")
tensor = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
assert tensor.tolist() == [3.0] * 3, tensor
# In one write: the other rank writes to the same pipe.
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()}\\n".encode())
dist.destroy_process_group()
"""
LIMIT_S = 120


def ringrun():
    library = os.environ.get("RINGCOMM_LIBRARY")
    beside = Path(library).with_name("ringrun") if library else None
    return [str(beside)] if beside and beside.exists() else [sys.executable, "-m", "ringcomm.run"]


def launch(words):
    ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


@pytest.mark.parametrize("launcher", ["torchrun", "torchrun standalone", "ringrun"])
def test_launchers(launcher, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    if launcher == "torchrun":
        ran = with_free_port(lambda port: launch([*torchrun, "--master-port", str(port), program]))
    elif launcher == "torchrun standalone":
        ran = launch([*torchrun, "--standalone", program])
    else:
        ran = launch([*ringrun(), "-np", "2", sys.executable, program])
    assert "rank 0 of 2" in ran.stdout and "rank 1 of 2" in ran.stdout


def _spawned(rank, url):
    import torch
    import torch.distributed as dist

    import ringcomm.torch  # noqa: F401

    dist.init_process_group("ringcomm", init_method=url, rank=rank, world_size=2)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2
    dist.destroy_process_group()


def test_spawn(tmp_path):
    mp.spawn(_spawned, (f"file://{tmp_path}/store",), nprocs=2)
