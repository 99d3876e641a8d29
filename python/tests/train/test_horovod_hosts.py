"""Elastic training under ringrun: ranks are replaced, and follow the hosts that there are."""

import json
import subprocess

import pytest

import launching


def elastic(folder, *options):
    """The example under ringrun: its status, and all that was said."""
    start = launching.ringrun("-np", "3", "--min-np", "2")
    done = subprocess.run(
        [*start, str(launching.EXAMPLES / "horovod_elastic.py"), "--epochs", "1", *options],
        check=False, cwd=folder, env=launching.environment(), timeout=launching.MOST_SECONDS,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_ringrun_starts_a_newcomer_in_the_place_of_the_dead(tmp_path):
    options = ("--kill-in-step", "4", "--wait-in-step", "8", "--ranks", "3")
    status, said = elastic(tmp_path, *options, "--save", str(tmp_path / "weights"))
    assert status == 0, said
    assert "killed by signal 9 (SIGKILL); the others go on, and process" in said
    assert "by 3 then 2 then 3 ranks" in said, said
    assert launching.weights(tmp_path / "weights")


def test_ringrun_replaces_nobody_before_the_ranks_have_met(tmp_path):
    status, said = elastic(tmp_path, "--no-such-option")
    assert status == 2 and "joins them" not in said, said


CHANGING = """
import json
import sys
import time
from pathlib import Path
import torch
import ringcomm.horovod.torch as hvd

hosts, (then, expected) = Path(sys.argv[1]), json.loads(sys.argv[2])
hvd.init()


@hvd.elastic.run
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    if hvd.rank() == 0 and state.sizes != expected and len(then) >= len(state.sizes):
        # Whole at once, whenever it is read.
        (hosts.parent / "new").write_text(then[len(state.sizes) - 1])
        (hosts.parent / "new").rename(hosts)
    while state.sizes != expected:
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
        time.sleep(0.02)
        state.commit()


state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, sizes=[])
train(state)
print("sizes", state.sizes)
"""


@pytest.mark.parametrize(
    ("least", "then", "sizes"),
    [
        # Another host comes, and the first one goes.
        (1, ["localhost:2\nother\n", "other\n"], [2, 3, 1]),
        # All at once: who goes waits for who comes, and gives them the state.
        (2, ["other:2\n"], [2, 4, 2]),
        # As many go as come.
        (2, ["localhost\nother\n"], [2, 2]),
    ],
    ids=["one by one", "all", "some"],
)
def test_ranks_follow_what_the_hosts_script_says(tmp_path, least, then, sizes):
    """A shell in place of ssh leads to this machine."""
    (tmp_path / "program.py").write_text(CHANGING)
    (tmp_path / "hosts").write_text("localhost:2\n")
    (tmp_path / "meeting").mkdir(mode=0o700)
    for name, text in (
        ("script", 'cat "$(dirname "$0")/hosts"'),
        ("shell", 'while [ "$1" != other ]; do shift; done\nshift\nexec sh -c "$*"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    start = launching.ringrun(
        "-np", "2", "--min-np", str(least), "--host-discovery-script", str(tmp_path / "script"),
        "--ssh-command", str(tmp_path / "shell"), "--wdir", str(tmp_path),
        "-x", "PYTHONPATH", "-x", "OMP_NUM_THREADS=1",
    )  # fmt: skip
    variables = {**launching.environment(), "RINGCOMM_ELASTIC": str(tmp_path / "meeting")}
    done = subprocess.run(
        [*start, str(tmp_path / "program.py"), tmp_path / "hosts", json.dumps([then, sizes])],
        check=False, cwd=tmp_path, timeout=launching.MOST_SECONDS, env=variables,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "more on host other" in done.stdout
    assert "is to leave host localhost" in done.stdout
    assert done.stdout.count(f"sizes {sizes}") == sizes[-1], done.stdout
