"""NVIDIA's own Python interface, nccl4py: its communicators and its bindings, with ranks as processes.

Its classes take arrays of NumPy, whose device is none. A communicator asks `cuda.core` for its own device
before each call, which needs a driver: here its class says that it is on none, either. The bindings below
the classes take addresses.
"""

import ctypes
import os
import time
from types import SimpleNamespace

import nccl.core as nccl
import numpy as np
import processes
import pytest
from nccl.bindings import nccl as bindings
from values import OPERATIONS, check, contribution
from wrappers import FP8, TYPES

#: The operations of the tests by NCCL's names.
NAMED = {"SUM": nccl.SUM, "PRODUCT": nccl.PROD, "MAX": nccl.MAX, "MIN": nccl.MIN, "AVG": nccl.AVG}
#: Those whose memory NumPy describes to others; it has no name for the types of ml_dtypes.
DESCRIBED = [dtype for dtype in TYPES if dtype.kind in "iuf"] + [np.dtype("uint32"), np.dtype("uint64")]


class OnHost(nccl.Communicator):
    """A communicator on no device, as its buffers are."""

    @property
    def device(self):
        """Where an array of NumPy says that it is."""
        return SimpleNamespace(device_id=-1)


def join(place, config=None, ids=1):
    """A communicator of all ranks, which meet by one id or by several."""
    data = place.share(lambda: [nccl.get_unique_id().as_bytes for _ in range(ids)])
    made = [nccl.UniqueId.from_bytes(one) for one in data]
    return OnHost.init(place.nranks, place.rank, made if ids > 1 else made[0], config)


def _collectives(comm):
    rank, nranks = comm.rank, comm.nranks
    for dtype in DESCRIBED:
        for name, operation in NAMED.items():
            sent, received = contribution(rank, 60, dtype), np.zeros(60, dtype)
            comm.allreduce(sent, received, operation)
            check(received, name, nranks, "by allreduce")
            comm.reduce(sent, received, operation, root=1)
            check(received, name, nranks, "by reduce or before it")
            whole, part = contribution(rank, 9 * nranks, dtype), np.zeros(9, dtype)
            comm.reduce_scatter(whole, part, operation)
            comm.allgather(part, whole)
            check(whole, name, nranks, "by reduce_scatter and allgather")
        _moved(comm, dtype)


def _moved(comm, dtype):
    """The calls that reduce nothing."""
    rank, nranks = comm.rank, comm.nranks
    everything = np.concatenate([contribution(one, 8, dtype) for one in range(nranks)])
    received = np.zeros_like(everything)
    comm.gather(contribution(rank, 8, dtype), received, root=0)
    assert rank > 0 or (received == everything).all()
    mine = np.zeros(8, dtype)
    comm.scatter(everything, mine, root=0)
    assert (mine == contribution(rank, 8, dtype)).all()
    copied = everything.copy() if rank == nranks - 1 else np.zeros_like(everything)
    comm.broadcast(copied, copied, root=nranks - 1)
    assert (copied == everything).all()
    comm.alltoall(np.tile(contribution(rank, 8, dtype), nranks), received)
    assert (received == everything).all()
    with nccl.group():
        comm.send(mine, (rank + 1) % nranks)
        comm.recv(copied[:8], (rank - 1) % nranks)
    assert (copied[:8] == contribution((rank - 1) % nranks, 8, dtype)).all()


def _numbers(comm):
    """What a communicator says of itself."""
    nranks, rank = comm.nranks, comm.rank
    said = comm.properties
    assert (said.rank, said.n_ranks, said.cuda_dev, said.nvml_dev) == (rank, nranks, -1, -1)
    assert (comm.device_api_support, comm.multimem_support, comm.host_rma_support) == (False, False, True)
    assert comm.team_world == nccl.NCCLTeam(nranks, rank, 1)
    assert comm.team_lsa == nccl.NCCLTeam(1, 0, 1)
    assert comm.team_rank_to_world(comm.team_world, nranks - 1) == nranks - 1
    assert comm.get_async_error() == bindings.Result.Success
    assert comm.get_mem_stat(nccl.NcclCommMemStat.GPU_MEM_TOTAL) > 0


def _own_operations(comm):
    """Sums of numbers that are multiplied first, and settings of one call."""
    for dtype, factor in (("float32", 0.5), ("int64", 3)):
        operation = comm.create_pre_mul_sum(np.array([factor], dtype))
        values = np.full(10, comm.rank + 1, dtype)
        comm.allreduce(values, values, operation)
        assert (values == factor * comm.nranks * (comm.nranks + 1) / 2).all()
        operation.close()
    option = nccl.VendorOption(vendor_id=77, option_id=1, str_value="for another library")
    for config in (nccl.NCCLCollConfig(min_ctas=1, max_ctas=4, user_profiler_tag=7),
                   nccl.NCCLCollConfig(alg_selection="ring", force_alg_selection=False),
                   nccl.NCCLCollConfig(vendor_options=(option,))):
        values = contribution(comm.rank, 100, np.float32)
        comm.allreduce(values, values, nccl.SUM, config=config)
        check(values, "SUM", comm.nranks, f"with {config}")


def _memory(comm):
    """Buffers that are registered, windows, and what ranks put into each other's."""
    values = contribution(comm.rank, 4096, np.float32)
    with_buffer = comm.register_buffer(values)
    comm.allreduce(values, values, nccl.SUM)
    check(values, "SUM", comm.nranks, "in a registered buffer")
    with_buffer.close()
    after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    # Which other ranks reach.
    memory = bindings.mem_alloc(8 * 512)
    received = np.ctypeslib.as_array((ctypes.c_double * 512).from_address(memory))
    window = comm.register_window(received, nccl.WindowFlag.COLL_SYMMETRIC)
    for turn in range(1, 4):
        comm.put_signal(np.full(10, turn * 100.0 + comm.rank), after, window, 10 * turn)
        comm.wait_signal([nccl.WaitSignalDesc(peer=before)])
        assert (received[10 * turn:10 * turn + 10] == turn * 100 + before).all()
    comm.signal(before)
    comm.wait_signal([nccl.WaitSignalDesc(peer=after, op_count=1)])
    # Nobody leaves before all of it is there.
    comm.allreduce(values, values, nccl.MAX)
    window.close()
    bindings.mem_free(memory)


def _families(comm, place):
    """Communicators made of others: split, shrunk, grown."""
    halves = comm.split(comm.rank % 2, key=-comm.rank)
    wanted = sorted((rank for rank in range(comm.nranks) if rank % 2 == comm.rank % 2), reverse=True)
    assert (halves.rank, halves.nranks) == (wanted.index(comm.rank), len(wanted))
    halves.destroy()
    last = comm.nranks - 1
    if comm.rank < last:
        smaller = comm.shrink([last], flag=nccl.CommShrinkFlag.DEFAULT)
        assert (smaller.rank, smaller.nranks) == (comm.rank, last)
        data = place.share(lambda: smaller.get_unique_id().as_bytes)
        unique_id = nccl.UniqueId.from_bytes(data) if comm.rank == 0 else None
        grown = smaller.grow(comm.nranks, unique_id)
    else:
        smaller = OnHost()
        unique_id = nccl.UniqueId.from_bytes(place.share(None))
        grown = smaller.grow(comm.nranks, unique_id, rank=last)
    assert (grown.rank, grown.nranks) == (comm.rank, comm.nranks)
    values = contribution(grown.rank, 10, np.int32)
    grown.allreduce(values, values, nccl.SUM)
    check(values, "SUM", grown.nranks, "on more ranks than before")
    grown.destroy()
    smaller.destroy()


def _states(comm, place):
    """Suspended, resumed, revoked, finalized."""
    values = np.ones(1, np.float32)
    comm.suspend()
    with pytest.raises(bindings.NCCLError, match="(?i)invalid_?usage"):
        comm.allreduce(values, values, nccl.SUM)
    assert "suspended" in comm.get_last_error()
    comm.resume()
    child = comm.split(0)
    place.meet()
    child.revoke()
    with pytest.raises(bindings.NCCLError):
        child.allreduce(values, values, nccl.SUM)
    child.abort()
    comm.finalize()
    comm.destroy()
    assert not comm.is_valid


def _classes(place):
    named = nccl.NCCLConfig(comm_name="of nccl4py", min_ctas=1, max_ctas=8, cta_policy=nccl.CTAPolicy.ZERO)
    comm = join(place, named)
    processes.assert_ours()
    for part in (_numbers, _collectives, _own_operations, _memory):
        part(comm)
    _families(comm, place)
    _states(comm, place)


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_classes(nranks):
    processes.run(_classes, nranks)


def _not_blocking(place):
    comm = join(place, nccl.NCCLConfig(blocking=False), ids=2)
    while comm.get_async_error() == bindings.Result.InProgress:
        time.sleep(0.001)
    values = contribution(place.rank, 1000, np.float32)
    comm.allreduce(values, values, nccl.SUM)
    while comm.get_async_error() == bindings.Result.InProgress:
        time.sleep(0.001)
    check(values, "SUM", place.nranks, "without waiting")
    comm.finalize()
    while comm.get_async_error() == bindings.Result.InProgress:
        time.sleep(0.001)
    comm.destroy()


def test_a_communicator_that_does_not_block():
    processes.run(_not_blocking, 3)


def _bindings(place):
    """The functions below the classes, with every type, on the addresses of arrays."""
    comm = join(place)._comm
    for dtype in [*TYPES, FP8]:
        number = int(nccl.NcclDataType.from_numpy_dtype(dtype))
        for name in OPERATIONS:
            values = contribution(place.rank, 500, dtype)
            at = values.ctypes.data
            bindings.all_reduce(at, at, 500, number, int(NAMED[name]), comm, 0)
            check(values, name, place.nranks, "by the bindings")
    assert bindings.comm_cu_device(comm) == -1
    memory = bindings.mem_alloc(4096)
    bindings.mem_free(memory)
    with pytest.raises(bindings.NCCLError, match="(?i)invalid_?argument"):
        bindings.bcast(0, 4, 7, place.nranks, comm, 0)
    assert f"root {place.nranks}" in bindings.get_last_error(comm)
    bindings.comm_destroy(comm)


def test_bindings():
    processes.run(_bindings, 3)


def _until_a_rank_dies(place):
    comm = join(place)
    values = np.ones(1 << 20, np.float32)
    comm.allreduce(values, values, nccl.SUM)
    if place.rank == 1:
        place.die(1)
    with pytest.raises(bindings.NCCLError, match="(?i)remote"):
        comm.allreduce(values, values, nccl.SUM)
    error = comm.get_last_error()
    left = comm.shrink([1], flag=nccl.CommShrinkFlag.ABORT)
    values = np.ones(10, np.float32)
    left.allreduce(values, values, nccl.SUM)
    left.destroy()
    comm.abort()
    return error, values[0]


def test_a_rank_that_dies_is_named_and_the_others_go_on():
    first, died, last = processes.run(_until_a_rank_dies, 3, seconds=60)
    assert died is None
    for error, total in (first, last):
        assert "rank 1" in error and total == 2


def _all_in_one(place):
    """Every rank in one process: calls of one thread, in a group."""
    comms = [OnHost(comm.ptr) for comm in nccl.Communicator.init_all(place.nranks + 2)]
    arrays = [contribution(comm.rank, 100, np.float32) for comm in comms]
    nccl.group_start()
    for comm, values in zip(comms, arrays):
        comm.allreduce(values, values, nccl.SUM)
    assert nccl.group_end(simulate=True).estimated_time > 0
    with nccl.group():
        for comm, values in zip(comms, arrays):
            comm.allreduce(values, values, nccl.SUM)
    for values in arrays:
        check(values, "SUM", len(comms), "in a group")
    for comm in comms:
        comm.destroy()


def test_all_ranks_in_one_process():
    processes.run(_all_in_one, 1)


def _asked(place):
    version = nccl.get_version()
    return str(version.libnccl.path), str(version.libnccl.version), dict(nccl.params), nccl.get_error_string(6)


def test_what_the_library_says_of_itself(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    (path, version, parameters, text), = processes.run(_asked, 1)
    assert os.path.realpath(path) == processes.library() and version.startswith("2.")
    assert parameters["NCCL_DEBUG"] == "WARN" and "remote" in text
