"""Scripts as tutorials publish them, unedited, have the losses of one process on the whole batch.

What they get from outside is in `scripts/outside`: data in the shape of CIFAR-10, and a device that
is not there. That `nccl` is ringcomm they have from `RINGCOMM_AS_BACKEND`.
"""

import importlib.util
import os
import re
import sys

import pytest
import torch
from torch import nn

from launching import MOST_SECONDS, ROOT, ringrun, run, started
from ports import with_free_port

SCRIPTS = ROOT / "python/tests/train/scripts"
OUTSIDE = SCRIPTS / "outside"
EPOCHS, BATCH, RATE = 2, 32, 0.05
#: Sums of float32 in another order, over ten steps; losses are printed with six digits.
FLOAT32 = 1e-5
#: Gradients that travel in fp16 are rounded to 11 bits, a two-thousandth.
FP16 = 5e-4
#: bfloat16 has 8 bits, of activations as well, and losses are about 2.
BF16 = 0.02


def loaded(path):
    """A script's module under a name of its own: torchvision may be another one here."""
    spec = importlib.util.spec_from_file_location(f"scripts_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


models = loaded(SCRIPTS / "models.py")
datasets = loaded(OUTSIDE / "torchvision/datasets.py")
transforms = loaded(OUTSIDE / "torchvision/transforms.py")


def pictures():
    """All that is trained on, as the scripts normalize it."""
    normal = transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
    made = datasets.CIFAR10("", transform=transforms.Compose([transforms.ToTensor(), normal]))
    pairs = [made[index] for index in range(len(made))]
    return torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs])


def shuffled(epoch):
    """The order of DistributedSampler: rank r of n has every n-th of it, so that the batches of all
    ranks are the next of it."""
    count = datasets.TRAINED_ON
    return torch.randperm(count, generator=torch.Generator().manual_seed(epoch)).tolist()


def alone(network, rates, *, order=shuffled, batch=BATCH, parts=1):
    """The losses of one process on whole batches; `rates(epoch, step)` is the learning rate. In
    parts, batch normalization has other statistics."""
    torch.manual_seed(1)
    model, (x, y) = network(), pictures()
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=1e-4)
    losses = []
    for epoch in range(EPOCHS):
        indices = torch.tensor(order(epoch))
        for step, taken in enumerate(indices.split(batch)):
            optimizer.param_groups[0]["lr"] = rates(epoch, step)
            all_parts = taken.chunk(parts)
            loss = sum(nn.functional.cross_entropy(model(x[one]), y[one]) for one in all_parts)
            loss = loss / parts
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def even(epoch, step):
    return RATE


def compare(output, expected, tolerance):
    """The printed losses are the expected ones; how far they are apart."""
    found = [float(one) for one in re.findall(r"Loss (\d+\.\d{6})", output)]
    # A test of the network, at the end, prints more.
    assert len(found) >= len(expected), output
    furthest = max(abs(mine - its) for mine, its in zip(found, expected))
    assert furthest < tolerance, (furthest, found, expected)
    return furthest


def outside():
    """What the scripts get from outside, as variables."""
    path = os.pathsep.join([str(OUTSIDE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "RINGCOMM_AS_BACKEND": "nccl"}


def train(words, folder, **more):
    """Run to the end; what was said on standard output."""
    return run(words, folder, **outside(), **more)[0]


#: Starts Python as the rank of a launcher that knows nothing of ringcomm.
COMPAT = ["-m", "ringcomm.compat"]
LAUNCH = [sys.executable, "-m", "torch.distributed.launch", "--standalone", "--use_env"]
LAUNCH = [*LAUNCH, "--nproc_per_node"]


BROKEN = {
    "sums for means": (models.SmallNet, {"rates": lambda *_: 2 * RATE}, FP16),
    "a smaller batch": (models.SmallNet, {"batch": BATCH // 2}, FP16),
    "one order in all epochs": (models.SmallNet, {"order": lambda _: shuffled(0)}, FP16),
    "BatchNorm of each rank": (models.SmallNetBN, {"parts": 2}, BF16),
}


@pytest.mark.parametrize("what", BROKEN)
def test_losses_tell_what_is_wrong(what):
    network, wrong, tolerance = BROKEN[what]
    said = "".join(f"Loss {one:.6f}\n" for one in alone(network, **{"rates": even, **wrong}))
    with pytest.raises(AssertionError):
        compare(said, alone(network, even), tolerance)


@pytest.mark.parametrize("devices", [2, 4])
def test_data_parallel(tmp_path, devices):
    words = [sys.executable, SCRIPTS / "data_parallel.py"]
    said = train(words, tmp_path, CPU_DEVICES=str(devices))
    assert f"{devices} devices" in said and "Accuracy of the network on the 40 test images" in said
    drawn = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(
        range(datasets.TRAINED_ON), batch_size=BATCH, shuffle=True, generator=drawn
    )
    expected = alone(models.SmallNet, even, order=lambda _: torch.cat(list(loader)).tolist())
    compare(said, expected, FLOAT32)


@pytest.mark.parametrize(
    "ranks, start",
    [(2, ringrun("-np", "2")), (4, [*LAUNCH, "4"])],
    ids=["2 by ringrun", "4 by launch"],
)
def test_distributed_under_launch(tmp_path, ranks, start):
    words = [*start, *COMPAT, "--local_rank", SCRIPTS / "distributed_launch.py"]
    said = train(words, tmp_path)
    compare(said, alone(models.SmallNet, lambda epoch, step: RATE * 0.1**epoch), FLOAT32)
    assert " * test Loss" in said


@pytest.mark.parametrize("ranks", [2, 4])
def test_multiprocessing_spawn(tmp_path, ranks):
    words = [sys.executable, *COMPAT, SCRIPTS / "multiprocessing_spawn.py", "--gpus", ranks]
    said = with_free_port(
        lambda port: train([*words, "--dist-url", f"tcp://127.0.0.1:{port}"], tmp_path)
    )
    compare(said, alone(models.SmallNet, even), FLOAT32)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "start, level, tolerance",
    [
        ([*ringrun("--compat", "-np", "2")], "O0", FLOAT32),
        ([*LAUNCH, "2", *COMPAT], "O1", BF16),
        ([*ringrun("--compat", "-np", "4")], "O1", BF16),
    ],
    ids=["2, O0", "2, O1", "4, O1"],
)
def test_apex(tmp_path, start, level, tolerance):
    words = [*start, SCRIPTS / "apex_distributed.py", "--sync_bn", "--opt-level", level]
    said = train(words, tmp_path)
    per_epoch = datasets.TRAINED_ON // BATCH
    warm = alone(
        models.SmallNetBN,
        lambda epoch, step: RATE * min(1, (1 + step + epoch * per_epoch) / per_epoch),
    )
    compare(said, warm, tolerance)


@pytest.mark.parametrize("ranks", [2, 4])
def test_horovod_with_fp16(tmp_path, ranks):
    words = [*ringrun("--compat", "-np", str(ranks)), SCRIPTS / "horovod_fp16.py"]
    said = train([*words, "--fp16-allreduce"], tmp_path)
    expected = alone(models.SmallNet, lambda *_: 0.0125 * ranks, batch=8 * ranks)
    # Without rounding they would be as near as FLOAT32 says.
    assert compare(said, expected, FP16) > 2e-6


@pytest.mark.parametrize("ranks", [2, 4])
def test_slurm_and_a_file(tmp_path, ranks):
    words = [sys.executable, *COMPAT, SCRIPTS / "slurm_file.py", "--dist-file", tmp_path / "meet"]
    job = {"SLURM_NPROCS": str(ranks), "SLURM_JOBID": "7", **outside()}
    processes = [
        started(words, tmp_path, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **job)
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=MOST_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, said
    compare(said[0], alone(models.SmallNet, even), FLOAT32)


def test_objects_by_files_of_a_shared_folder(tmp_path):
    """They are those of all_gather_object, in ranks that a launcher written by hand started."""
    launcher = [sys.executable, *COMPAT, SCRIPTS / "launcher.py", "--nproc", "2"]
    (tmp_path / "shared").mkdir()
    said = train([*launcher, SCRIPTS / "shared_dir.py", "--shared-dir", "shared"], tmp_path)
    # Both write to the same pipe, so lines may be in one.
    assert all(said.count(f"rank {rank} of 2: all objects are equal") == 1 for rank in (0, 1)), said
    assert list((tmp_path / "shared").iterdir()) == []


def test_the_measurement_of_objects_compares_them(tmp_path):
    words = [*ringrun("-np", "2"), ROOT / "benches/torch/objects.py", "--quick"]
    said, _ = run(words, tmp_path)
    assert len(re.findall(r"1 [KM]iB .* \d+\.\d\d \(", said)) == 10, said


def test_the_scripts_know_nothing_of_ringcomm():
    scripts = sorted(SCRIPTS.glob("*.py"))
    assert len(scripts) >= 7
    assert [one.name for one in scripts if "ringcomm" in one.read_text().lower()] == []


def test_the_page_names_what_is_there():
    page = (ROOT / "docs/python/training.md").read_text()
    table = page.split("### Which file shows it")[1].split("\n### ")[0]
    places = {"scripts": SCRIPTS, "examples": ROOT / "python/examples"}
    files = re.findall(r"`(scripts|examples)/(\w+\.py)`", table)
    assert all((places[folder] / name).is_file() for folder, name in files)
    named = {name for folder, name in files if folder == "scripts"}
    assert named == {path.name for path in SCRIPTS.glob("*.py")} - {"models.py"}
    tests = re.findall(r"`(test_\w+\.py)::(\w+)`", table)
    assert len(tests) > 15
    for file, test in tests:
        assert f"\ndef {test}(" in (ROOT / "python/tests/train" / file).read_text(), (file, test)
