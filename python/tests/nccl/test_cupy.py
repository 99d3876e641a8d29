"""CuPy's interface to NCCL, which its wheel is compiled for: every call, with ranks as processes.

CuPy needs neither a driver nor CUDA's libraries for it, and takes addresses.
"""

import os
import time

import numpy as np
import processes
import pytest
from cupy.cuda import nccl
from values import OPERATIONS, check, contribution
from wrappers import TYPES

NUMBERS = {dtype: getattr(nccl, f"NCCL_{dtype.name.upper()}")
           for dtype in [*TYPES, np.dtype("uint32"), np.dtype("uint64")]}
NAMED = {name: getattr(nccl, f"NCCL_{name[:4] if name == 'PRODUCT' else name}") for name in OPERATIONS}
#: CUDA's default stream.
STREAM = 0


def join(place, *config):
    """A communicator of all ranks."""
    return nccl.NcclCommunicator(place.nranks, place.share(nccl.get_unique_id), place.rank, *config)


def at(array):
    """An array's address."""
    return array.ctypes.data


def _reductions(comm):
    nranks = comm.size()
    for dtype, number in NUMBERS.items():
        for name, operation in NAMED.items():
            sent, received = contribution(comm.rank_id(), 200, dtype), np.zeros(200, dtype)
            comm.allReduce(at(sent), at(received), 200, number, operation, STREAM)
            check(received, name, nranks, "by allReduce")
            comm.reduce(at(sent), at(received), 200, number, operation, nranks - 1, STREAM)
            check(received, name, nranks, "by reduce or before it")
            whole, part = contribution(comm.rank_id(), 11 * nranks, dtype), np.zeros(11, dtype)
            comm.reduceScatter(at(whole), at(part), 11, number, operation, STREAM)
            comm.allGather(at(part), at(whole), 11, number, STREAM)
            check(whole, name, nranks, "by reduceScatter and allGather")


def _moved(comm):
    rank, nranks = comm.rank_id(), comm.size()
    for dtype, number in NUMBERS.items():
        sent, received = contribution(rank, 30, dtype), np.zeros(30, dtype)
        for root in range(nranks):
            comm.broadcast(at(sent), at(received), 30, number, root, STREAM)
            assert (received == contribution(root, 30, dtype)).all()
            received = contribution(rank, 30, dtype)
            comm.bcast(at(received), 30, number, root, STREAM)
            assert (received == contribution(root, 30, dtype)).all()
        nccl.groupStart()
        comm.send(at(sent), 30, number, (rank + 1) % nranks, STREAM)
        comm.recv(at(received), 30, number, (rank - 1) % nranks, STREAM)
        nccl.groupEnd()
        assert (received == contribution((rank - 1) % nranks, 30, dtype)).all()


def _divided(comm, place):
    """What CuPy has from 14 on: a configuration, and communicators of some ranks."""
    rank, nranks = comm.rank_id(), comm.size()
    again = join(place, nccl.NcclConfig(split_share=1))
    half = again.commSplit(rank % 2, -rank, nccl.NcclConfig())
    assert half.size() == len(range(rank % 2, nranks, 2))
    values = np.array([rank], np.int32)
    half.allReduce(at(values), at(values), 1, nccl.NCCL_INT32, nccl.NCCL_SUM, STREAM)
    assert values == sum(range(rank % 2, nranks, 2))
    # All ranks ask, and some do not take part.
    some = again.commSplit(0 if rank == 0 else -1, 0)
    assert (some is not None) == (rank == 0)
    for one in (some, half, again):
        if one is not None:
            one.destroy()


def _every_call(place):
    comm = join(place)
    processes.assert_ours()
    assert nccl.available and nccl.get_version() >= nccl.get_build_version()
    assert (comm.rank_id(), comm.size(), comm.device_id()) == (place.rank, place.nranks, -1)
    _reductions(comm)
    _moved(comm)
    assert comm.check_async_error() is None
    with pytest.raises(nccl.NcclError, match="NCCL_ERROR_INVALID_ARGUMENT: invalid argument") as raised:
        comm.bcast(0, 1, nccl.NCCL_INT8, place.nranks, STREAM)
    assert raised.value.status == 4
    if hasattr(comm, "commSplit"):
        _divided(comm, place)
    comm.destroy()
    comm = join(place)
    place.meet()
    comm.abort()


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_every_call(nranks):
    processes.run(_every_call, nranks)


def _all_in_one(place, devices):
    comms = nccl.NcclCommunicator.initAll(devices)
    arrays = [contribution(comm.rank_id(), 100, np.float32) for comm in comms]
    nccl.groupStart()
    for comm, values in zip(comms, arrays):
        comm.allReduce(at(values), at(values), 100, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, STREAM)
    nccl.groupEnd()
    for values in arrays:
        check(values, "SUM", len(comms), "in a group")
    # Nobody destroys the rest: they go with their objects.
    comms[0].destroy()
    comms[1].abort()
    return len(comms)


@pytest.mark.parametrize("devices", [4, [0, 1, 5]], ids=str)
def test_all_ranks_in_one_process(devices):
    # Without a GPU every rank is on the host, whatever device it is told.
    wanted = devices if isinstance(devices, int) else len(devices)
    assert processes.run(_all_in_one, 1, devices) == [wanted]


def _until_a_rank_dies(place):
    comm = join(place)
    values = np.ones(1 << 20, np.float32)
    arguments = (at(values), at(values), len(values), nccl.NCCL_FLOAT32, nccl.NCCL_SUM, STREAM)
    comm.allReduce(*arguments)
    if place.rank == 1:
        place.die(1)
    with pytest.raises(nccl.NcclError, match="NCCL_ERROR_REMOTE_ERROR"):
        comm.allReduce(*arguments)
    with pytest.raises(nccl.NcclError, match="NCCL_ERROR_REMOTE_ERROR"):
        comm.check_async_error()
    begun = time.monotonic()
    comm.abort()
    return time.monotonic() - begun


def test_a_rank_that_dies_ends_the_calls_of_the_others(monkeypatch, tmp_path):
    # CuPy asks for no text: the log has it.
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_DEBUG_FILE", os.path.join(tmp_path, "%p"))
    first, died, last = processes.run(_until_a_rank_dies, 3, seconds=60)
    assert died is None and max(first, last) < 20
    logs = [file.read_text() for file in tmp_path.iterdir()]
    assert sum("NCCL WARN" in log and "rank 1" in log for log in logs) == 2, logs
