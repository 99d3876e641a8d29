"""Programs that import `horovod` and `apex`, unedited, on ringcomm."""

import subprocess
import sys

import pytest
import torch

import launching
from ringcomm.compat import backend

PROGRAM = """
import argparse, os, sys
import horovod.torch as hvd
import horovod.common.util, horovod.common.exceptions
from horovod.torch.mpi_ops import allreduce
from apex import amp
from apex.parallel import DistributedDataParallel, SyncBatchNorm
import ringcomm.horovod.torch, ringcomm.apex.amp
assert hvd is ringcomm.horovod.torch and amp is ringcomm.apex.amp
assert horovod.common.exceptions.HorovodInternalError is hvd.HorovodInternalError
try:
    import horovod.spark
except ImportError:
    pass
else:
    raise AssertionError("there is no such module")
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--name", default="")
given = parser.parse_args()
import torch
hvd.init()
assert allreduce(torch.tensor([1.0]), op=hvd.Sum).item() == hvd.size()
os.write(1, f"rank {hvd.rank()} of {hvd.size()}, local {given.local_rank} {given.name}\\n".encode())
hvd.shutdown()
"""

BACKEND = """
import os, sys
import torch
from torch import distributed as dist
from torch.distributed import init_process_group
init_process_group(backend="NCCL" if sys.argv[1:] == ["upper"] else "nccl", init_method="env://")
assert dist.get_backend() == "ringcomm"
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.full((3,), rank + 1.0)
for group in (None, dist.new_group(backend="nccl"), dist.new_group(backend="cpu:nccl")):
    inner = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    assert inner.name() == "ringcomm"
    mine = tensor.clone()
    dist.all_reduce(mine, group=group)
    assert mine.tolist() == [sum(range(1, size + 1))] * 3
assert dist.get_backend(dist.new_group(backend="gloo")) == "gloo"
os.write(1, f"rank {rank} of {size} is done\\n".encode())
dist.destroy_process_group()
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


def test_under_ringrun(program, tmp_path):
    said, _ = launching.run([*launching.ringrun("--compat", "-n", "2"), program], tmp_path)
    assert "rank 0 of 2, local -1" in said and "rank 1 of 2, local -1" in said


def test_ringrun_called_horovodrun(program, tmp_path):
    ringrun, *words = launching.ringrun("--gloo", "--verbose", "-np", "2")
    (tmp_path / "horovodrun").symlink_to(ringrun)
    said, _ = launching.run([tmp_path / "horovodrun", *words, program], tmp_path)
    assert "rank 0 of 2, local -1" in said and "rank 1 of 2, local -1" in said


@pytest.mark.parametrize("way", [["{program}"], ["-m", "program"]], ids=["file", "module"])
def test_with_the_argument_of_the_old_launcher(way, program, tmp_path):
    words = [part.format(program=program) for part in way]
    ranks = [*launching.ringrun("-n", "2"), "-m", "ringcomm.compat", "--local_rank", *words]
    said, _ = launching.run([*ranks, "--name", "it"], tmp_path)
    assert "rank 0 of 2, local 0 it" in said and "rank 1 of 2, local 1 it" in said


def test_nobody_gets_it_unasked(tmp_path):
    program = "import importlib.util as u; print([u.find_spec(n) for n in ('horovod', 'apex')])"
    said, _ = launching.run([*launching.ringrun("-n", "1"), "-c", program], tmp_path)
    assert "[None, None]" in said


def test_what_is_missing_is_said(tmp_path):
    compat = [sys.executable, "-m", "ringcomm.compat"]
    done = subprocess.run(compat, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "usage: python -m ringcomm.compat" in done.stderr
    words = [*compat, "--local_rank", "program.py"]
    unset = {"LOCAL_RANK": None}
    environment = {
        name: value for name, value in launching.environment().items() if name not in unset
    }
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1 and "LOCAL_RANK is not set" in done.stderr


def test_nccl_is_ringcomm_where_the_variable_says_so(tmp_path):
    (tmp_path / "program.py").write_text(BACKEND)
    words = [*launching.ringrun("--compat", "-n", "2"), "program.py", "upper"]
    said, _ = launching.run(words, tmp_path, RINGCOMM_AS_BACKEND="nccl")
    assert "rank 0 of 2 is done" in said and "rank 1 of 2 is done" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL itself works here")
def test_nccl_is_nccl_without_the_variable(tmp_path):
    (tmp_path / "program.py").write_text(BACKEND)
    words = [sys.executable, "-m", "ringcomm.compat", "program.py"]
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=tmp_path,
        env=launching.environment(**place),
    )  # fmt: skip
    assert done.returncode == 1 and "NCCL" in done.stderr and "is done" not in done.stdout


def test_a_backend_that_is_none_is_refused(monkeypatch):
    plain = torch.distributed.Backend.__new__
    monkeypatch.setenv(backend.VARIABLE, "ncl")
    with pytest.raises(ValueError, match="RINGCOMM_AS_BACKEND: torch has no backend ncl; name"):
        backend.install()
    monkeypatch.setenv(backend.VARIABLE, "")
    backend.install()
    assert torch.distributed.Backend.__new__ is plain
