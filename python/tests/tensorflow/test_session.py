"""Programs in the style of TensorFlow 1, on ringcomm's Horovod, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).resolve().parent / "programs"
MOST_SECONDS = 400
STEPS = 8


def started(program, ranks, *arguments):
    """What the ranks of a program print."""
    built = Path(os.environ.get("RINGCOMM_LIBRARY", "/")).parent / "ringrun"
    ringrun = [str(built if built.exists() else "ringrun"), "-n", str(ranks)]
    done = subprocess.run(
        [*ringrun, sys.executable, PROGRAMS / program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        env={
            **os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def trained(folder, ranks, *settings):
    """What every rank saw; checkpoints are in `folder/checkpoints`."""
    answers = folder / f"answers-{ranks}"
    started("session.py", ranks, answers, folder / "checkpoints", *settings)
    return [json.loads(Path(f"{answers}.{rank}").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process on the whole batch."""
    (answer,) = trained(tmp_path_factory.mktemp("alone"), 1)
    assert len(answer["losses"]) == STEPS and answer["losses"][2] < answer["losses"][0] / 2
    return answer


@pytest.mark.parametrize(
    "settings",
    [("threads=1",), ("passes=3", "threads=1"), ("passes=3", "ref")],
    ids="-".join,
)
def test_a_session_trains_as_one_process_does(alone, settings, tmp_path):
    passes = 3 if "passes=3" in settings else 1
    answers = trained(tmp_path, 2, *settings)
    assert answers[0] == answers[1]
    # Nothing changes before the last of the passes.
    expected = np.repeat(alone["losses"], passes)
    np.testing.assert_allclose(answers[0]["losses"], expected, atol=1e-5)
    np.testing.assert_allclose(answers[0]["weight"], alone["weight"], atol=1e-5)
    np.testing.assert_allclose(answers[0]["slot"], alone["slot"], atol=1e-5)
    last = STEPS * passes
    assert (tmp_path / f"checkpoints/model.ckpt-{last}.index").exists()


def test_a_session_goes_on_from_the_checkpoint_of_rank_0(tmp_path):
    trained(tmp_path, 2)
    # Rank 1 has no checkpoint, and begins with what rank 0 read: also with the momentum.
    again = trained(tmp_path, 2, "steps=10")
    assert len(again[0]["losses"]) == 2 and again[0] == again[1]
    (tmp_path / "whole").mkdir()
    whole = trained(tmp_path / "whole", 1, "steps=10")
    np.testing.assert_allclose(again[0]["losses"], whole[0]["losses"][8:], atol=1e-5)


def test_steps_are_added_by_adasum(alone, tmp_path):
    answers = trained(tmp_path, 2, "adasum")
    # Momenta are of each rank's own steps.
    for what in ("losses", "weight"):
        assert answers[0][what] == answers[1][what]
    assert answers[0]["slot"] != answers[1]["slot"]
    losses = answers[0]["losses"]
    assert losses[0] == pytest.approx(alone["losses"][0], abs=1e-5)
    # Steps that point the same way are averaged, others added: not what an average makes.
    assert losses[1] < losses[0] and abs(losses[1] - alone["losses"][1]) > 1e-5


def test_operations_in_any_order_share_one_thread():
    assert started("independent.py", 2).count("all came") == 2
