"""Which ranks of Horovod's interface share a host, and in which order."""

import subprocess
import sys

from ringcomm.horovod import job


def test_the_launchers_numbers_count_where_its_hosts_are_these():
    assert job._local_ranks([("a", 1), ("a", 0), ("b", 0)]) == [1, 0, 0]
    # Two launchers on one machine, one launcher that takes two for one, one that does not say.
    assert job._local_ranks([("a", 0), ("a", 1), ("a", 0), ("a", 1)]) == [0, 1, 2, 3]
    assert job._local_ranks([("a", 0), ("b", 1)]) == [0, 0]
    assert job._local_ranks([("a", None), ("b", None), ("a", None)]) == [0, 0, 1]


PROGRAM = r"""
import sys
from ringcomm.horovod import job
job.init()
place = [job.rank(), job.local_rank(), job.local_size(), job.cross_rank(), job.cross_size()]
# In one piece: print would write word by word, and the ranks' words would mix.
sys.stdout.write(" ".join(map(str, ["place", *place])) + "\n")
job.shutdown()
"""


def test_hosts_are_those_of_the_library(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = f"RINGCOMM_HOSTID=$((RANK / 2)) exec {sys.executable} {program}"
    words = ["-m", "ringcomm.run", "--no-prefix", "-np", "4", "sh", "-c", command]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    places = sorted(line for line in done.stdout.splitlines() if line.startswith("place"))
    assert places == ["place 0 0 2 0 2", "place 1 1 2 0 2", "place 2 0 2 1 2", "place 3 1 2 1 2"]
