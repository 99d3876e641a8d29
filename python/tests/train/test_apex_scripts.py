"""Whole scripts for apex, which change their import, under the launchers that start them."""

import sys

import pytest
import torch

import launching
from ringcomm.apex.parallel import multiproc

#: As tutorials on apex have it, but for the imports, the backend's name and the device.
SCRIPT = """
import argparse
import os

import torch
from ringcomm.apex import amp
from ringcomm.apex.fp16_utils import *
from ringcomm.apex.multi_tensor_apply import multi_tensor_applier
from ringcomm.apex.optimizers import FusedAdam
from ringcomm.apex.parallel import DistributedDataParallel as DDP
from ringcomm.apex.parallel import convert_syncbn_model

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--rank", default=os.getenv("LOCAL_RANK", 0), type=int)
parser.add_argument("--world-size", default=0, type=int)
parser.add_argument("--opt-level", type=str)
parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
parser.add_argument("--loss-scale", type=str, default=None)
args = parser.parse_args()
args.distributed = "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1
if args.distributed:
    torch.distributed.init_process_group(backend="ringcomm", init_method="env://")
torch.manual_seed(args.local_rank)
x, y = torch.randn(64, 32), torch.randn(64, 16)
model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.BatchNorm1d(16))
model = convert_syncbn_model(model)
optimizer = FusedAdam(model.parameters(), lr=1e-2)
model, optimizer = amp.initialize(
    model, optimizer, opt_level=args.opt_level, keep_batchnorm_fp32=args.keep_batchnorm_fp32,
    loss_scale=args.loss_scale,
)
if args.distributed:
    model = DDP(model, delay_allreduce=True)
loss_fn = torch.nn.MSELoss()
for t in range(20):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    first = loss if t == 0 else first
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 5.0)
    optimizer.step()
assert to_python_float(loss.data) < 0.9 * to_python_float(first.data)
total = sum(p.double().sum() for p in amp.master_params(optimizer)).detach()
if args.distributed:
    totals = [torch.zeros_like(total) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(totals, total)
    assert all(one == total for one in totals)
size = len(totals) if args.distributed else 1
os.write(1, f"rank {args.local_rank} of {size} is done\\n".encode())
if args.distributed:
    torch.distributed.destroy_process_group()
"""


def written(folder, text=SCRIPT):
    (folder / "main.py").write_text(text)
    return str(folder / "main.py")


@pytest.mark.parametrize(
    "options",
    [
        ["--opt-level", "O1", "--loss-scale", "128.0"],
        ["--opt-level", "O3", "--keep-batchnorm-fp32", "True", "--loss-scale", "dynamic"],
    ],
    ids=" ".join,
)
def test_under_torchrun(tmp_path, options):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    said, _ = launching.run([*words, written(tmp_path), *options], tmp_path)
    assert "rank 0 of 2 is done" in said and "rank 1 of 2 is done" in said
    assert said.count(f"level {options[1]}") == 1


def test_under_ringrun(tmp_path):
    words = launching.ringrun("-np", "2")
    said, _ = launching.run([*words, written(tmp_path), "--opt-level", "O2"], tmp_path)
    assert "rank 0 of 2 is done" in said and "rank 1 of 2 is done" in said


def test_without_a_launcher(tmp_path):
    said, _ = launching.run([sys.executable, written(tmp_path), "--opt-level", "O2"], tmp_path)
    assert "rank 0 of 1 is done" in said


def test_under_multiproc(tmp_path):
    words = [sys.executable, "-m", "ringcomm.apex.parallel.multiproc", written(tmp_path)]
    said, _ = launching.run([*words, "--opt-level", "O0"], tmp_path, WORLD_SIZE="2")
    assert "rank 0 of 2 is done" in said and "rank 1" not in said
    assert "rank 1 of 2 is done" in (tmp_path / "GPU_1.log").read_text()


@pytest.mark.parametrize("named", ["--world-size 2", "--rank 7 --world-size=2", "WORLD_SIZE"])
def test_multiproc_gives_a_script_its_arguments(tmp_path, monkeypatch, capfd, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    text = "import os, sys\nprint(sys.argv[1:], *map(os.environ.get, ['RANK', 'MASTER_PORT']))\n"
    words = [] if named == "WORLD_SIZE" else named.split()
    monkeypatch.setenv("WORLD_SIZE", "2" if named == "WORLD_SIZE" else "5")
    assert multiproc.main([written(tmp_path, text), "-a", "b", *words]) == 0
    first, second = capfd.readouterr().out, (tmp_path / "GPU_1.log").read_text()
    assert first.startswith("['-a', 'b', '--world-size', '2', '--rank', '0'] 0 ")
    assert second.startswith("['-a', 'b', '--world-size', '2', '--rank', '1'] 1 ")
    assert first.split()[-1] == second.split()[-1]


@pytest.mark.parametrize(
    "words,said",
    [
        ([], "give the number of processes, as --world-size 2"),
        (["--world-size", "none"], "1 or more; got none"),
        (["--world-size", "0"], "1 or more; got 0"),
    ],
)
def test_multiproc_without_a_number(monkeypatch, words, said):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit, match=said):
        multiproc.main(["script.py", *words])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert multiproc._size(["script.py"]) == 3


def test_multiproc_ends_all_when_one_fails(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    text = (
        "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(3)\ntime.sleep(1000)\n"
    )
    # Were the others not ended, this would wait for a quarter of an hour.
    assert multiproc.main([written(tmp_path, text), "--world-size", "3"]) == 3
    assert "rank 1 ended with status 3" in capfd.readouterr().err
