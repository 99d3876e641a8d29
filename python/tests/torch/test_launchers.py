"""The launchers, with torch's env:// and with the backend found as a user has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from ports import with_free_port

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
ROOT = Path(__file__).resolve().parents[2]
#: From 2.14 on an installed package tells torch about its backend.
HAS_ENTRY_POINTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)


def ringrun():
    library = os.environ.get("RINGCOMM_LIBRARY")
    beside = Path(library).with_name("ringrun") if library else None
    return [str(beside)] if beside and beside.exists() else [sys.executable, "-m", "ringcomm.run"]


def launch(words, **more):
    ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, **more)
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


@pytest.mark.skipif(not HAS_ENTRY_POINTS, reason="this torch looks for no entry points")
def test_an_installed_package_needs_no_import(tmp_path):
    project = (ROOT / "pyproject.toml").read_text()
    section = '[project.entry-points."torch.distributed.backends"]'
    line = project.split(section)[1].strip().splitlines()[0].replace('"', "")
    told = tmp_path / "ringcomm-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: ringcomm\nVersion: 1\n")
    (told / "entry_points.txt").write_text(f"[torch.distributed.backends]\n{line}\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("import ringcomm.torch\n", ""))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = launch(
        [*ringrun(), "-np", "2", sys.executable, program], env={**os.environ, "PYTHONPATH": path}
    )
    assert "rank 0 of 2" in ran.stdout and "rank 1 of 2" in ran.stdout


#: A program for NCCL that knows nothing of ringcomm, on memory of the host: torch on a CPU has no
#: NCCL of its own, so it asks for the library as programs do that open it.
FOR_NCCL = """
import ctypes, os, sys, torch, torch.distributed as dist

class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]

def check(result):
    assert result == 0, result

assert sys.argv[1:] == ["--epochs", "2"] and "ringcomm" not in sys.modules
dist.init_process_group("gloo")
rank, nranks = dist.get_rank(), dist.get_world_size()
nccl, unique_id, comm = ctypes.CDLL("libnccl.so.2"), UniqueId(), ctypes.c_void_p()
if rank == 0:
    check(nccl.ncclGetUniqueId(ctypes.byref(unique_id)))
told = [bytes(unique_id)]
dist.broadcast_object_list(told)
ctypes.memmove(ctypes.byref(unique_id), told[0], 128)
check(nccl.ncclCommInitRank(ctypes.byref(comm), nranks, unique_id, rank))
tensor = torch.full((3,), rank + 1.0)
place, FLOAT, SUM = ctypes.c_void_p(tensor.data_ptr()), 7, 0
check(nccl.ncclAllReduce(place, place, ctypes.c_size_t(3), FLOAT, SUM, comm, None))
assert tensor.tolist() == [3.0] * 3, tensor
check(nccl.ncclCommDestroy(comm))
os.write(1, f"rank {rank} of {nranks}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["module", "no python", "around"])
def test_a_program_for_nccl_runs_on_ringcomm(way, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FOR_NCCL)
    job = [str(program), "--epochs", "2"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words = {
        "module": [*torchrun, "-m", "ringcomm.nccl", *job],
        "no python": [*torchrun, "--no-python", sys.executable, "-m", "ringcomm.nccl", *job],
        "around": ["-m", "ringcomm.nccl", *torchrun, *job],
    }
    ran = launch([sys.executable, *words[way]])
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
