"""Every call on device memory does what it does on host memory, wherever the ranks are."""

import os
import subprocess
import sys
from pathlib import Path

import driver
import numpy as np
import pytest
from calls import everything
from in_threads import on_threads

import ringcomm


def on_device(comm):
    """Every call with buffers where the rank is, in the order of the device's default stream."""
    if comm.device < 0:
        return everything(comm, np.array, np.array)
    default = driver.default_stream(comm.device)

    def read(array):
        default.synchronize()
        return array.get()

    return everything(comm, lambda values: driver.Array(values, comm.device), read)


def on_host(comm):
    """The same with buffers of the host, on whatever rank."""
    return everything(comm, np.array, np.array)


@pytest.mark.parametrize("places", [(0, 0), (0, 0, 0), (0, 1), (0, -1, 1), (-1, 0)], ids=str)
def test_threads(ranks, devices, places):
    places = [min(place, devices - 1) for place in places]
    wanted = on_threads(ranks(len(places)), on_host)
    comms = ranks(len(places), places)
    assert [comm.device for comm in comms] == places
    assert on_threads(comms, on_device) == wanted
    # The ranks are on devices, and their buffers are not.
    assert on_threads(comms, on_host) == wanted
    # In one call, too: some ranks' buffers are and the others' are not.
    assert on_threads(comms, on_device if places[0] < 0 else _by_turns) == wanted


def _by_turns(comm):
    return (on_device if comm.rank % 2 else on_host)(comm)


@pytest.mark.parametrize("both", [True, False], ids=["on a device", "mixed"])
def test_processes(ranks, both):
    wanted = on_threads(ranks(2), on_host)
    assert ringcomm.spawn(_moves_to_a_device, 2, (both,)) == wanted


def _moves_to_a_device(comm, both):
    # The communicator of `spawn` is older than the first use of CUDA.
    assert comm.device == -1
    place = 0 if both or comm.rank == 1 else -1
    with comm.split(0, config=ringcomm.Config(device=place)) as moved:
        assert moved.device == place
        return on_device(moved)


ALONE = """
import numpy, driver, ringcomm

comms = ringcomm.Communicator.all(2, [0, 0])
arrays = [driver.Array(numpy.ones(10, numpy.float32)) for _ in comms]
for comm, array in zip(comms, arrays):
    comm.all_reduce(array)
"""


def test_the_loop_over_ranks_that_needs_a_group_is_told_at_its_first_call(devices):
    # Threads of other libraries might make the other rank's call, for all that is known.
    path = [str(Path(driver.__file__).parent), *sys.path]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    ended = subprocess.run(
        [sys.executable, "-c", ALONE], env=env, stderr=subprocess.PIPE, text=True, timeout=60
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == 1
    assert "no other thread that could call that" in last, ended.stderr
    assert "between ringGroupStart and ringGroupEnd" in last
