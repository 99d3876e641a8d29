"""Ranks that are processes: by `spawn`, by ringrun, and the programs of the package."""

import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest
import ranks as processes

import ringcomm
from ringcomm import launch


def run(*words, **more):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, check=False, **more
    )


def test_spawn():
    results = ringcomm.spawn(
        processes.add, 3, (1,), {"scale": 2}, config=ringcomm.Config(deterministic=True)
    )
    assert results == [(rank, 12, 3) for rank in range(3)]


def test_spawn_tells_which_rank_failed():
    with pytest.raises(ringcomm.SpawnError) as caught:
        ringcomm.spawn(processes.fail, 3)
    error = caught.value
    assert (
        error.rank == 1
        and isinstance(error.exception, KeyError)
        and error.__cause__ is error.exception
    )
    assert "rank 1 failed first: KeyError: 'a defect'" in str(error) and "in fail" in str(error)
    assert "RingRemoteError" in error.failures[0] and " failed and rank 0" in error.failures[0]


def test_a_process_that_died_is_the_first_whoever_was_heard_before():
    class Process:
        def __init__(self, exitcode):
            self.exitcode = exitcode

        def join(self):
            pass

    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(3)]
    pipes[0][1].send((False, "it missed rank 2", None))
    pipes[1][1].send((True, "fine", None))
    for _, there in pipes:
        there.close()
    with pytest.raises(ringcomm.SpawnError, match="rank 2 failed first: .*SIGKILL") as caught:
        launch._collect([Process(1), Process(0), Process(-9)], [here for here, _ in pipes])
    assert caught.value.rank == 2 and caught.value.failures[0] == "it missed rank 2"


def test_a_process_that_died_in_the_middle_of_its_result():
    """What came of it is no end of a file, but half of a message."""

    class Process:
        exitcode = -9

        def join(self):
            pass

    here, there = multiprocessing.Pipe(duplex=False)
    os.write(there.fileno(), struct.pack("!i", 1000) + b"half")
    there.close()
    with pytest.raises(ringcomm.SpawnError, match="rank 0 failed first: .*SIGKILL"):
        launch._collect([Process()], [here])


class Unknown:
    """As what only the rank's own process can import."""

    def __reduce__(self):
        return int, ("a word",)


def test_a_result_that_cannot_be_unpickled():
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    pipes[0][1].send((True, "fine", None))
    pipes[1][1].send((True, Unknown(), None))
    said = "rank 1 failed .* unpickled .*'a word'"
    with pytest.raises(ringcomm.SpawnError, match=said) as caught:
        launch._collect([None, None], [here for here, _ in pipes])
    assert isinstance(caught.value.exception, ValueError)


def test_an_error_of_its_own_is_the_first_whoever_was_heard_before():
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    error = ringcomm.RingRemoteError("rank 1 failed", ringcomm.Result.REMOTE_ERROR)
    pipes[0][1].send((False, "it missed rank 1", error))
    heard = threading.Timer(0.2, pipes[1][1].send, [(False, "a defect", KeyError("a defect"))])
    heard.start()
    with pytest.raises(ringcomm.SpawnError, match="rank 1 failed first: a defect"):
        launch._collect([None, None], [here for here, _ in pipes])
    heard.join()


def test_spawn_ends_the_others():
    started = time.monotonic()
    with pytest.raises(
        ringcomm.SpawnError, match="ended with status 3 before its function returned"
    ):
        ringcomm.spawn(processes.leave, 2)
    # Far below the ten minutes for which the other rank sleeps.
    assert time.monotonic() - started < 300


def test_spawn_waits_for_what_ranks_do_at_their_end(tmp_path):
    assert ringcomm.spawn(processes.leave_late, 3, (str(tmp_path),)) == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_spawn_ends_a_process_that_does_not(monkeypatch):
    monkeypatch.setattr(launch, "_FAREWELL", 1.0)
    # Under load rank 0 may still be ending, too.
    with pytest.warns(RuntimeWarning, match=r"ranks \[.*1\] returned, and .* had not ended 1 s"):
        assert ringcomm.spawn(processes.stay, 2) == [0, 1]


def test_spawn_waits_for_its_ranks_and_not_for_their_children(tmp_path):
    children = ringcomm.spawn(processes.leave_a_child, 2, (str(tmp_path),))
    # They have all that the ranks had open, and are not the ranks.
    assert not list(tmp_path.iterdir())
    for child in children:
        os.kill(child, signal.SIGKILL)


def test_spawn_in_a_rank_of_another_job(monkeypatch):
    for name, value in (("RANK", 7), ("NRANKS", 9), ("LOCAL_RANK", 3), ("LOCAL_SIZE", 5)):
        monkeypatch.setenv(f"RINGCOMM_{name}", str(value))
    assert ringcomm.spawn(processes.place, 2) == [(rank, 2, rank, "2") for rank in range(2)]


def test_spawn_of_nobody():
    with pytest.raises(ValueError, match="0 processes"):
        ringcomm.spawn(processes.add, 0)


PROGRAM = """
import numpy as np, ringcomm
with ringcomm.init() as comm:
    array = np.full(3, comm.rank + 1.0)
    comm.all_reduce(array)
    place = ringcomm.launcher()
    print("sum", array[0], "rank", place.rank, "of", place.nranks, "local", place.local_rank)
"""


def test_ringrun(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run("-m", "ringcomm.run", "-np", "3", sys.executable, str(program))
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"[{rank}]<stdout>:sum 6.0 rank {rank} of 3 local {rank}" in done.stdout


def test_ringrun_tells_which_rank_failed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM
        + "    import os, time\n"
        + "    if comm.rank == 1: os._exit(7)\n"
        + "    try: comm.barrier()\n"
        # Who fails for another's sake ends later, however late the launcher looks.
        + "    finally: time.sleep(2)\n"
    )
    done = run("-m", "ringcomm.run", "-np", "2", sys.executable, str(program))
    assert done.returncode == 7 and "rank 1" in done.stderr


def test_the_programs():
    perf = run(
        "-m",
        "ringcomm.perf",
        "--minbytes",
        "1K",
        "--maxbytes",
        "1K",
        "--iters",
        "2",
        "--probe",
        "0",
    )
    assert perf.returncode == 0 and "1024" in perf.stdout, perf.stderr
    assert run("-m", "ringcomm.perf", "--help").returncode == 0
    assert "ringrun" in run("-m", "ringcomm.run", "--help").stdout
    assert run("-m", "ringcomm.run", "--nonsense").returncode != 0
