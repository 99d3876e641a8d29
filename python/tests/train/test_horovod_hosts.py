"""Elastic training under ringrun: ranks are replaced, and follow the hosts that there are."""

import subprocess

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
import sys
import time
from pathlib import Path
import torch
import ringcomm.horovod.torch as hvd

hosts, wanted = Path(sys.argv[1]), {2: "localhost:2\\nother\\n", 3: "other\\n"}
hvd.init()


@hvd.elastic.run
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    if hvd.rank() == 0 and hvd.size() in wanted:
        # Whole at once, whenever it is read.
        (hosts.parent / "new").write_text(wanted[hvd.size()])
        (hosts.parent / "new").rename(hosts)
    while hvd.size() > 1:
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
        time.sleep(0.02)
        state.commit()


state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, sizes=[])
train(state)
print("sizes", state.sizes)
"""


def test_ranks_follow_what_the_hosts_script_says(tmp_path):
    """Another host comes, and the first one goes; a shell in place of ssh leads to this machine."""
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
        "-np", "2", "--min-np", "1", "--host-discovery-script", str(tmp_path / "script"),
        "--ssh-command", str(tmp_path / "shell"), "--wdir", str(tmp_path),
        "-x", "PYTHONPATH", "-x", "OMP_NUM_THREADS=1",
    )  # fmt: skip
    variables = {**launching.environment(), "RINGCOMM_ELASTIC": str(tmp_path / "meeting")}
    done = subprocess.run(
        [*start, str(tmp_path / "program.py"), str(tmp_path / "hosts")],
        check=False, cwd=tmp_path, timeout=launching.MOST_SECONDS, env=variables,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "1 rank more on host other" in done.stdout
    assert "rank 0 is to leave host localhost" in done.stdout
    assert done.stdout.count("sizes [2, 3, 1]") == 1, done.stdout
