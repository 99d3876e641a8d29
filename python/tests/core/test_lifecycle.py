"""How communicators are made, asked, divided and ended."""

import gc
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import on_threads

import ringcomm
from ringcomm import Collective, DataType


def test_what_a_communicator_says_of_itself(ranks):
    comms = ranks(3)
    assert [comm.rank for comm in comms] == [0, 1, 2]
    assert all(comm.nranks == comm.size == 3 and comm.device == -1 for comm in comms)
    assert repr(comms[1]) == "<ringcomm.Communicator rank 1 of 3>"
    assert comms[0].error() is None
    comms[1].abort()
    assert repr(comms[1]) == "<ringcomm.Communicator rank 1 of 3, ended>"


def test_unique_ids():
    unique_id = ringcomm.get_unique_id()
    assert len(unique_id) == 128 and unique_id != ringcomm.get_unique_id()

    class Seat:
        def __init__(self, rank):
            self.rank = rank

    def work(seat):
        config = ringcomm.Config(timeout_ms=60_000, deterministic=True)
        with ringcomm.Communicator.init(3, seat.rank, unique_id, config) as comm:
            array = np.full(3, float(comm.rank))
            comm.all_reduce(array)
            return array[0]

    assert on_threads([Seat(rank) for rank in range(3)], work) == [3, 3, 3]


def test_ids_for_some_ranks():
    comms = ringcomm.Communicator.all(3)
    unique_id = comms[2].get_unique_id([2, 0])

    class Seat:
        def __init__(self, rank):
            self.rank = rank

    def work(seat):
        with ringcomm.Communicator.init(2, seat.rank, unique_id) as comm:
            return comm.all_gather_object(comm.rank)

    assert on_threads([Seat(0), Seat(1)], work) == [[0, 1]] * 2
    with pytest.raises(ringcomm.RingArgumentError, match="rank 3 is not a rank"):
        comms[0].get_unique_id([3])


def test_meeting_at_a_url(tmp_path):
    class Seat:
        def __init__(self, rank):
            self.rank = rank

    def work(seat):
        with ringcomm.init(f"file://{tmp_path}/meet", 2, seat.rank) as comm:
            return comm.all_gather_object(comm.rank)

    assert on_threads([Seat(0), Seat(1)], work) == [[0, 1]] * 2
    assert os.listdir(tmp_path) == []


def test_all_with_devices():
    comms = ringcomm.Communicator.all(2, devices=[-1, -1])
    assert [comm.device for comm in comms] == [-1, -1]
    for comm in comms:
        comm.abort()
    with pytest.raises(ringcomm.RingError):
        ringcomm.Communicator.all(1, devices=[63])


def test_a_setting_that_is_no_number_leaves_no_group_open():
    with pytest.raises(ringcomm.RingArgumentError, match="timeout_ms"):
        ringcomm.Communicator.all(2, config=ringcomm.Config(timeout_ms="5"))
    with pytest.raises(ringcomm.RingUsageError, match="never started"):
        ringcomm.group_end()


def test_one_rank_alone():
    with ringcomm.init(nranks=1) as comm:
        array = np.arange(5.0)
        comm.all_reduce(array)
        assert (array == np.arange(5.0)).all() and comm.nranks == 1


def test_split(ranks):
    def work(comm):
        with comm.split(comm.rank % 2, key=-comm.rank) as half:
            members = half.all_gather_object(comm.rank)
        nobody = comm.split(None if comm.rank else 0)
        assert (nobody is None) == (comm.rank != 0)
        if nobody is not None:
            nobody.destroy()
        return members

    assert on_threads(ranks(5), work) == [[4, 2, 0], [3, 1], [4, 2, 0], [3, 1], [4, 2, 0]]


def test_shrink(ranks):
    comms = ranks(4)

    def work(comm):
        with comm.shrink([1]) as fewer:
            return fewer.all_gather_object(comm.rank)

    assert on_threads([comms[0], comms[2], comms[3]], work) == [[0, 2, 3]] * 3


def test_shrink_finds_who_is_gone(ranks):
    comms = ranks(3)
    comms[0].abort()

    def work(comm):
        with pytest.raises(ringcomm.RingError):
            comm.barrier()
        with comm.shrink(abort=True) as fewer:
            return fewer.all_gather_object(comm.rank)

    assert on_threads(comms[1:], work) == [[1, 2]] * 2


def test_the_record(ranks):
    def work(comm):
        comm.all_reduce(np.zeros(8, np.float32))
        comm.barrier()
        return comm.dump(), comm.trace()

    record, trace = on_threads(ranks(2), work)[0]
    calls = [operation["call"] for operation in record["operations"]]
    assert record["nranks"] == 2 and calls[0].startswith("AllReduce(count=8, type=float, op=sum")
    assert calls[1].startswith("Barrier")
    assert "AllReduce" in trace and json.loads(trace)


def test_a_record_that_grows_while_it_is_read(ranks):
    one = ranks(1)[0]
    for _ in range(3000):
        one.barrier()
    assert len(one.dump()["operations"]) > 1000


def test_explain(ranks):
    one = ranks(4)[0]
    answer = one.explain(Collective.ALL_REDUCE, 1 << 20, DataType.FLOAT32, ringcomm.SUM)
    assert answer.algorithm and "thread" in answer.transport
    assert (
        answer.predicted_us > 0 and answer.chunks >= 1 and isinstance(answer.direct_in_place, bool)
    )
    forced = ranks(4, algorithm="ring")[0].explain(Collective.ALL_REDUCE, 1000)
    assert forced.algorithm == "ring"


def test_settings_reach_the_library(ranks):
    with pytest.raises(ringcomm.RingTimeoutError, match=r"waited (2\d\d|[3-9]\d\d|\d{4}) ms"):
        ranks(2, timeout_ms=200, spins=10, debug=0, buff_size=1 << 20)[0].barrier()


def test_ends(ranks):
    def work(comm):
        comm.barrier()
        comm.finalize()
        comm.finalize()
        with pytest.raises(ringcomm.RingError):
            comm.barrier()
        comm.destroy()
        comm.destroy()
        comm.close()
        assert comm.handle is None
        for call in (comm.barrier, comm.dump, comm.error, comm.finalize, lambda: comm.split(0)):
            with pytest.raises(ringcomm.RingArgumentError, match="NULL"):
                call()

    on_threads(ranks(2), work)


def test_what_is_dropped_is_destroyed():
    def sockets_and_memory():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def make():
        for comm in ringcomm.Communicator.all(2):
            comm.barrier  # noqa: B018
            comm._own_stream()

    make()
    gc.collect()
    # A thread that has been joined is listed a moment longer.
    time.sleep(0.5)
    before = sockets_and_memory()
    for _ in range(5):
        make()
    gc.collect()
    end = time.monotonic() + 30
    while sockets_and_memory() != before and time.monotonic() < end:
        time.sleep(0.01)
    assert sockets_and_memory() == before


def test_the_end_of_the_program_says_goodbye(tmp_path):
    """A rank that never ends its communicator, and one that finds it gone in good order."""
    program = tmp_path / "program.py"
    program.write_text(
        "import ringcomm\n"
        "comm = ringcomm.init()\n"
        "comm.barrier()\n"
        "if comm.rank == 1:\n"
        "    try: comm.barrier()\n"
        "    except ringcomm.RingError as error: print(error)\n"
    )
    words = [sys.executable, "-m", "ringcomm.run", "-np", "2", sys.executable, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 0" in done.stdout and "died" not in done.stdout, done.stdout


def test_communicators_are_not_made_in_groups():
    with pytest.raises(ringcomm.RingUsageError, match="inside ringcomm.group"):
        with ringcomm.group():
            ringcomm.Communicator.init(1, 0, ringcomm.get_unique_id())
    for config in (None, ringcomm.Config(timeout_ms=1000)):
        with pytest.raises(ringcomm.RingUsageError, match="make them before it"):
            with ringcomm.group():
                ringcomm.Communicator.all(2, config=config)


def test_version():
    assert ".".join(map(str, ringcomm.version())) == ringcomm.__version__
