"""Every example, started as its users do, comes to the weights of one process on the full batch.

Bit for bit where one process can do the same arithmetic: it adds the gradients of as many parts of
the batch, in the order of ranks. `test_parts_of_a_batch_are_the_batch` says how far that is from
the batch in one go.
"""

import ast
import datetime
import importlib
import json
import os
import pty
import re
import statistics
import sys
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import digits
import warmup
from launching import (
    EXAMPLES,
    MOST_SECONDS,
    ROOT,
    difference,
    ringrun,
    run,
    same_bits,
    started,
    weights,
)
from ports import with_free_port

#: Which of the options that examples share an example has not, because they would change nothing.
REFUSED = {
    "compare": {"backend", "save"},
    "data_parallel": {"backend"},
    "horovod_script": {"backend"},
    "horovod_elastic": {"backend"},
    "ring_allreduce": set(digits.OPTIONS),
    "warmup": {"batch"},
}
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "digits")
#: How far float32 and float64 carry two orders of adding, over the examples' 45 steps.
FLOAT32, FLOAT64 = 1e-4, 1e-12


def settings(*words, **more):
    """An example's options, as it has them unasked."""
    args = digits.options("").parse_args(list(words))
    vars(args).update(more)
    return args


def check_output(output, error, name, ranks="2 ranks"):
    """One line says how fast it was, and before that one bar for each epoch how far."""
    lines = [line for line in output.splitlines() if "samples per second" in line]
    assert len(lines) == 1, output
    assert re.search(rf"{re.escape(name)} on {ranks}: \d+ samples per second", lines[0])
    assert re.findall(r"\[#{30}\] epoch (\d)/3", error) == ["1", "2", "3"], error


@pytest.fixture(scope="module")
def by_parts():
    """One process that adds the gradients of two parts of each batch."""
    return digits.alone(settings(), shards=2)


def test_parts_of_a_batch_are_the_batch(by_parts):
    whole = digits.alone(settings())
    assert 0 < difference(by_parts.state_dict(), whole) < FLOAT32
    whole, parts = (digits.alone(settings("--double"), shards=count) for count in (1, 2))
    assert difference(parts.state_dict(), whole) < FLOAT64


def test_data_parallel(tmp_path):
    words = ["--devices", "3", "--double", "--save", "w"]
    output, error = run([sys.executable, EXAMPLES / "data_parallel.py", *words], tmp_path)
    check_output(output, error, "DataParallel of 3 devices", "1 rank")
    expected = digits.alone(settings("--double"))
    assert difference(weights(tmp_path / "w"), expected) < FLOAT64


def test_ddp_under_ringrun(tmp_path, by_parts):
    output, error = run([*ringrun("-np", "2"), EXAMPLES / "ddp.py", "--save", "w"], tmp_path)
    check_output(output, error, "DDP")
    assert same_bits(weights(tmp_path / "w"), by_parts)


def test_ddp_under_torchrun(tmp_path, by_parts):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output, error = run([*words, EXAMPLES / "ddp.py", "--save", "w"], tmp_path)
    check_output(output, error, "DDP")
    assert same_bits(weights(tmp_path / "w"), by_parts)


def test_ddp_by_spawn(tmp_path):
    words = [sys.executable, EXAMPLES / "ddp_spawn.py", "--ranks", "4", "--save", "w"]
    output, error = with_free_port(lambda port: run([*words, "--port", port], tmp_path))
    check_output(output, error, "DDP by mp.spawn", "4 ranks")
    assert same_bits(weights(tmp_path / "w"), digits.alone(settings(), shards=4))


def test_slurm_and_a_file(tmp_path, by_parts):
    words = [sys.executable, EXAMPLES / "slurm_file.py", "--meet", tmp_path, "--save", "w"]
    slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}
    ranks = [
        started(words, tmp_path, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **slurm)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=MOST_SECONDS)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    check_output(outputs[0], outputs[0], "DDP under Slurm")
    assert same_bits(weights(tmp_path / "w"), by_parts)


def test_horovod_style_with_accumulation(tmp_path):
    words = [EXAMPLES / "horovod_style.py", "--update-cycle", "3", "--double", "--save", "w"]
    output, error = run([*ringrun("-np", "2"), *words], tmp_path)
    check_output(output, error, "Horovod-style")
    assert difference(weights(tmp_path / "w"), digits.alone(settings("--double"))) < FLOAT64


def test_horovod_style_compressed(tmp_path):
    words = [EXAMPLES / "horovod_style.py", "--compression", "fp16", "--save", "w"]
    output, error = run([*ringrun("-np", "2"), *words], tmp_path)
    check_output(output, error, "Horovod-style")
    # Every gradient was rounded to 11 bits: a thousandth of weights that are about 1.
    assert 0 < difference(weights(tmp_path / "w"), digits.alone(settings())) < 1e-2


def test_a_script_of_horovods(tmp_path):
    words = [EXAMPLES / "horovod_script.py", "--save", "w", "--double"]
    words += ["--batches-per-allreduce", "3"]
    output, error = run([*ringrun("-np", "2"), *words], tmp_path)
    check_output(output, error, "Horovod's script")
    expected = digits.alone(settings("--double"))
    assert difference(weights(tmp_path / "w"), expected) < FLOAT64
    x, y = digits.data(settings("--double"))[1].tensors
    right = float((expected(x).argmax(1) == y).double().mean())
    assert f"accuracy {right:.4f}" in output


def test_a_script_of_horovods_compressed(tmp_path):
    words = [EXAMPLES / "horovod_script.py", "--save", "w", "--fp16-allreduce"]
    output, error = run([*ringrun("-np", "2"), *words], tmp_path)
    check_output(output, error, "Horovod's script")
    assert 0 < difference(weights(tmp_path / "w"), digits.alone(settings())) < 1e-2


@pytest.mark.parametrize("precision", ["none", "bf16", "fp16"])
def test_mixed_precision(tmp_path, precision):
    exact = precision == "none"
    words = [EXAMPLES / "mixed_precision.py", "--precision", precision, "--save", "w"]
    words += ["--double"] if exact else []
    output, error = run([*ringrun("-np", "2"), *words], tmp_path)
    check_output(output, error, f"mixed precision ({precision})")
    args = settings(*["--double"] if exact else [])
    low = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    expected = digits.alone(args, model=digits.network(args, batchnorm=True), autocast=low)
    # bf16 has 8 bits, fp16 11; what is rounded differently once grows over 45 steps. Statistics of
    # half a batch would differ by 0.18.
    tolerance = {"none": 1e-10, "bf16": 0.02, "fp16": 0.02}[precision]
    assert difference(weights(tmp_path / "w"), expected) < tolerance


def test_an_overflow_on_one_rank_is_skipped_by_all(tmp_path):
    words = [EXAMPLES / "mixed_precision.py", "--precision", "fp16", "--save", "w"]
    words += ["--overflow-at", "7"]
    output, error = run([*ringrun("-np", "2"), *words], tmp_path)
    check_output(output, error, "mixed precision (fp16)")
    assert sorted(re.findall(r"rank (\d) skipped 1 of 45 steps", output)) == ["0", "1"]
    found = weights(tmp_path / "w")
    assert all(torch.isfinite(one).all() for one in found.values())
    made = {
        skip: digits.alone(
            settings(),
            model=digits.network(settings(), batchnorm=True),
            autocast=torch.float16,
            skip=skip,
        )
        for skip in (7, None)
    }
    # Nearer to the run without this step than to the one with it.
    near, far = difference(found, made[7]), difference(found, made[None])
    assert near < 0.02 and near < far / 2, (near, far)


def test_warmup(tmp_path):
    output, error = run([*ringrun("-np", "2"), EXAMPLES / "warmup.py", "--save", "w"], tmp_path)
    check_output(output, error, "DDP with warm-up")
    rates = [warmup.rate_at(step, 0.05, 2, 20) for step in (0, 10, 20, 99)]
    assert rates == pytest.approx([0.05, 0.075, 0.1, 0.1])
    expected = digits.alone(
        settings(batch=64), shards=2, schedule=lambda step: warmup.rate_at(step, 0.05, 2, 20)
    )
    assert same_bits(weights(tmp_path / "w"), expected)


def test_evaluation_and_a_restart(tmp_path, by_parts):
    words = [EXAMPLES / "evaluation.py", "--kill-in-epoch", "2", "--save", "w"]
    output, error = run([*ringrun("-np", "2", "--max-restarts", "1"), *words], tmp_path)
    assert "SIGKILL" in error and "starting the job anew" in error
    check_output(output, error, "DDP with evaluation")
    # It went on from the checkpoint: no epoch is done twice, and the weights are those of one run.
    epochs = re.findall(r"epoch (\d): loss ([\d.]+), accuracy ([\d.]+)", output)
    assert [epoch for epoch, _, _ in epochs] == ["1", "2", "3"]
    assert same_bits(weights(tmp_path / "w"), by_parts)
    x, y = digits.data(settings())[1].tensors
    with torch.no_grad():
        logits = by_parts(x)
    loss = torch.nn.functional.cross_entropy(logits, y).item()
    assert float(epochs[-1][1]) == pytest.approx(loss, abs=2e-6)
    assert float(epochs[-1][2]) == pytest.approx(
        float((logits.argmax(1) == y).double().mean()), abs=1e-4
    )
    check_board(tmp_path / "runs/digits", loss)


def check_board(folder, loss):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    assert [event.step for event in board.Scalars("accuracy/test")] == [0, 1, 2]
    assert board.Scalars("loss/test")[-1].value == pytest.approx(loss, abs=2e-6)


def test_the_ring_is_that_of_the_textbooks(tmp_path):
    output, _ = run([sys.executable, EXAMPLES / "ring_allreduce.py"], tmp_path)
    tables = re.split(r"^(?=\w)", output, flags=re.MULTILINE)[1:]
    titles = [table.splitlines()[0] for table in tables]
    assert titles == (
        ["start"]
        + [f"scatter-reduce, step {step}" for step in (1, 2, 3)]
        + [f"all-gather, step {step}" for step in (1, 2, 3)]
        + ["the library's own all_reduce gives the same"]
    )
    cells = [[line.split()[2:] for line in table.splitlines()[1:]] for table in tables[:-1]]
    assert cells[0] == [[f"{chunk}{rank}" for chunk in "abcd"] for rank in range(4)]
    assert cells[1][1] == ["a0+a1", "b1", "c1", "d1"]
    assert cells[3] == [
        ["a0", "b0+b1+b2+b3", "c0+c2+c3", "d0+d3"],
        ["a0+a1", "b1", "c0+c1+c2+c3", "d0+d1+d3"],
        ["a0+a1+a2", "b1+b2", "c2", "d0+d1+d2+d3"],
        ["a0+a1+a2+a3", "b1+b2+b3", "c2+c3", "d3"],
    ]
    assert cells[6] == [[f"{c}0+{c}1+{c}2+{c}3" for c in "abcd"]] * 4


@pytest.mark.parametrize("ranks", ["2", "7"])
def test_the_ring_has_any_number_of_ranks(tmp_path, ranks):
    run(
        [sys.executable, EXAMPLES / "ring_allreduce.py", "--ranks", ranks, "--length", "3"],
        tmp_path,
    )


def test_the_comparison_draws_what_it_measured(tmp_path):
    words = ["--epochs", "2", "--rounds", "1", "--hidden", "16", "--out", "chart"]
    output, _ = run([sys.executable, EXAMPLES / "compare.py", *words], tmp_path)
    found = json.loads((tmp_path / "chart.json").read_text())
    assert list(found["times"]) == ["one process", "DataParallel", "DDP, gloo", "DDP, ringcomm"]
    assert all(len(times) == 2 and min(times) > 0 for times in found["times"].values())
    # Each way is what it is called, and all have done the same work, which is not none.
    assert found["backends"] == dict(zip(found["times"], [None, None, "gloo", "ringcomm"]))
    args = settings("--hidden", "16")
    trained, fresh = (
        nn.utils.parameters_to_vector(model.parameters()).detach().double().norm().item()
        for model in (digits.alone(args), digits.network(args))
    )
    assert abs(trained - fresh) > 1
    norms = found["norms of the weights"]
    assert norms == {way: pytest.approx(trained, abs=FLOAT32) for way in found["times"]}
    chart = ElementTree.parse(tmp_path / "chart.svg").getroot()
    texts = [one.text for one in chart.iter("{http://www.w3.org/2000/svg}text")]
    # Both say where they are from, and the machine is one of which there are several kinds.
    assert found["date"] == datetime.date.fromisoformat(found["date"]).isoformat()
    assert found["commit"] and found["machine"] and found["machine"] != "x86_64"
    origin = "{machine}, {date}, commit {commit}, torch {torch}".format(**found)
    assert origin in texts and found["torch"] == torch.__version__
    heights = [float(one.get("height")) for one in chart.iter("{http://www.w3.org/2000/svg}rect")][
        1:
    ]
    # The bars are as high as the medians, which are written above them and in the output.
    medians = [statistics.median(times) for times in found["times"].values()]
    for way, median, height in zip(found["times"], medians, heights):
        assert f"{way}: {median * 1000:.1f} ms per epoch" in output
        assert way in texts and f"{median * 1000:.1f} ms" in texts
        assert height / max(heights) == pytest.approx(median / max(medians), abs=0.01)


def drawn_on_a_terminal(words, folder):
    """What a program writes to a terminal that is its standard error."""
    ours, theirs = pty.openpty()
    process = started(words, folder, stderr=theirs)
    os.close(theirs)
    drawn = b""
    try:
        while piece := os.read(ours, 1 << 16):
            drawn += piece
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    output = process.communicate(timeout=MOST_SECONDS)[0]
    assert process.returncode == 0, (output, drawn)
    return drawn.decode()


def test_a_terminal_has_the_bar_of_rank_0_in_one_line(tmp_path):
    words = [sys.executable, EXAMPLES / "ddp_spawn.py", "--ranks", "2", "--port"]
    drawn = with_free_port(lambda port: drawn_on_a_terminal([*words, port], tmp_path))
    # The terminal itself makes "\r\n" of the end of a line.
    lines = [line for line in drawn.split("\r\n") if "epoch" in line]
    assert len(lines) == 3, drawn
    for epoch, line in enumerate(lines, 1):
        before, *bars = line.split("\r")
        assert before == "" and len(bars) == digits.TRAINED_ON // 96
        for number, bar in enumerate(bars, 1):
            done = 30 * number // len(bars)
            text = f"[{'#' * done}{'.' * (30 - done)}] epoch {epoch}/3"
            assert re.fullmatch(re.escape(text) + r"( loss \d\.\d{4})?", bar), bar
        # What is drawn over a longer text would leave the end of that.
        assert [len(bar) for bar in bars] == sorted(len(bar) for bar in bars)
        assert "loss" in bars[-1]


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_would_change_nothing_is_refused(name, monkeypatch, capsys):
    words = ["--double", *[f"--{other}=3" for other in digits.OPTIONS if other != "double"]]
    # One that no example has, so that nothing is started.
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words, "--nothing"])
    monkeypatch.syspath_prepend(EXAMPLES)
    with pytest.raises(SystemExit):
        importlib.import_module(name).main()
    refused = capsys.readouterr().err.splitlines()[-1].split("unrecognized arguments: ")[1]
    assert {word.split("=")[0].lstrip("-") for word in refused.split()} == (
        REFUSED.get(name, set()) | {"nothing"}
    )


def test_the_page_says_which_options_an_example_has_not():
    page = (ROOT / "docs/python/training.md").read_text()
    said = re.search(r"An option that would change nothing is refused: (.*?)\.\n", page, re.S)[1]
    found = {}
    for part in said.split(";"):
        names, options = (re.findall(rf"`{word}`", part) for word in (r"(\w+)\.py", r"--(\w+)"))
        found.update(dict.fromkeys(names, set(options or digits.OPTIONS)))
    assert found == REFUSED


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_one_file_beside_digits(name):
    """Who starts from it copies two files."""
    imported = set()
    for node in ast.walk(ast.parse((EXAMPLES / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported & {*NAMES, "digits"} <= {"digits"}


def test_every_example_is_tested():
    folder = ROOT / "python/tests/train"
    tests = ("examples", "survive", "horovod_hosts")
    text = "".join((folder / f"test_{name}.py").read_text() for name in tests)
    assert [name for name in NAMES if f"{name}.py" not in text] == []
