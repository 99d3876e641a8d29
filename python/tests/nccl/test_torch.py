"""PyTorch's wheels with CUDA, with this library in the place of the one that they are linked with.

No tensor moves: PyTorch makes no group of NCCL's without a GPU. The loader tells where each of PyTorch's
names leads, and looks for all of them as PyTorch starts.
"""

import os
import re
import subprocess
from pathlib import Path

import processes
import pytest

PYTHON = os.environ["TORCH_PYTHON"]
ROOT = Path(__file__).resolve().parents[3]
ASKED = """
import sys
import torch
sys.path.insert(0, {tests!r})
import processes
unique_id = torch.cuda.nccl.unique_id()
version = "2." + ".".join(map(str, torch.cuda.nccl.version()[1:]))
print(torch.__version__, version, unique_id.hex(), *sorted(processes.loaded()), sep="|")
"""
BINDING = re.compile(r"binding file (\S+) \[0\] to (\S+) \[0\]: normal symbol `(p?nccl[A-Z]\w*)'")


def start(script, **variables):
    """What a Python with PyTorch prints, and the loader before it."""
    environment = {**os.environ, "LD_PRELOAD": processes.library(), **variables}
    environment.pop("LD_LIBRARY_PATH", None)
    program = [PYTHON, "-W", "ignore", "-c", script]
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT) as started:
        yield from started.stdout
    assert started.returncode == 0, f"ended with {started.returncode}"


@pytest.fixture(scope="module")
def said():
    """Version of PyTorch and of the NCCL that it was compiled for, an id, and what is loaded."""
    lines = list(start(ASKED.format(tests=str(Path(__file__).parent))))
    torch, version, unique_id, *loaded = lines[-1].strip().split("|")
    return torch.partition("+")[0], version, bytes.fromhex(unique_id), set(loaded)


def test_an_id_is_of_this_library(said):
    _, version, unique_id, loaded = said
    assert unique_id.startswith(b"ringcomm") and len(unique_id) == 128
    # PyTorch tells the version of the header that it was compiled with.
    assert version.startswith("2.")
    assert processes.library() in loaded
    # Where NVIDIA's wheel is installed, a new PyTorch loads that, too, by its path, and calls nothing of it.
    others = loaded - {processes.library()}
    assert all("site-packages/nvidia/nccl/lib" in other for other in others)
    installed = list(Path(PYTHON).parents[1].glob("lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
    assert installed or not others


def test_every_name_of_pytorch_leads_to_this_library(said):
    torch, *_ = said
    names = {}
    for line in start("import torch; torch.cuda.nccl.unique_id()", LD_BIND_NOW="1", LD_DEBUG="bindings"):
        if (found := BINDING.search(line)) and "/torch/lib/" in found[1]:
            assert os.path.realpath(found[2]) == processes.library(), line
            names[found[3]] = found[1]
    listed = (ROOT / "cbindings/nccl/clients.txt").read_text()
    wanted = re.search(rf"^torch {re.escape(torch)}: (.*)$", listed, re.MULTILINE)
    assert wanted, f"cbindings/nccl/clients.txt has no PyTorch {torch}; scripts/nccl_clients.py adds it"
    assert names and set(names) == set(wanted[1].split())
