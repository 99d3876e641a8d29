"""NCCL's interface on device memory: the functions of `libnccl.so.2`, with ranks on devices."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import driver
import numpy as np
import pytest
from in_threads import on_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

import nccl_calls  # noqa: E402
from nccl_calls import AVG, FLOAT32, INT32, MAX, SUM, Nccl, NcclError  # noqa: E402

EACH = 999
#: Long enough for a machine that does ten other things.
PATIENCE_S = 60
#: `cuPointerGetAttribute`: the kind of memory that an address is in, and a device's.
MEMORY_TYPE, OF_A_DEVICE = 2, 2


@pytest.fixture(scope="session")
def nccl():
    return Nccl(os.environ["RINGCOMM_NCCL_LIBRARY"])


@pytest.fixture
def places(devices):
    """Two ranks, on different devices where there are."""
    return [0, devices - 1]


@pytest.fixture
def made(nccl):
    """What a test puts here is given up at its end."""
    comms = []
    yield comms
    for comm in comms:
        nccl.library.ncclCommAbort(comm)


@pytest.fixture
def comms(nccl, places, made):
    """The ranks of a communicator, all of this process."""
    made += nccl.init_all(places)
    return list(made)


@pytest.fixture
def streams(places):
    return [driver.Stream(place) for place in places]


def values(rank, count=EACH, kind=np.float32):
    """What a rank sends; every sum is exact."""
    return (np.arange(count) % 61 + 100 * rank).astype(kind)


def arrays(places, count=EACH, kind=np.float32):
    return [driver.Array(values(rank, count, kind), place) for rank, place in enumerate(places)]


def zeros(places, count=EACH, kind=np.float32):
    return [driver.Array(np.zeros(count, kind), place) for place in places]


def wait(streams):
    for stream in streams:
        stream.synchronize()


def test_all_ranks_of_a_process_are_where_they_are_told(nccl, comms, places):
    assert nccl.number("GetVersion") >= 23200
    for rank, (comm, place) in enumerate(zip(comms, places)):
        said = [nccl.number(name, comm) for name in ("CommCount", "CommUserRank", "CommCuDevice")]
        assert said == [2, rank, place]


def test_without_a_list_they_are_on_the_first_devices(nccl, made, devices):
    room = (ctypes.c_void_p * devices)()
    nccl.CommInitAll(room, devices, None)
    made += list(room)
    assert [nccl.number("CommCuDevice", comm) for comm in made] == list(range(devices))


def test_a_rank_is_on_the_device_that_is_current(nccl, made, places):
    unique_id = nccl.unique_id()

    def join(rank):
        with driver.current(places[rank]):
            return nccl.pointer("CommInitRank", 2, unique_id, rank)

    made += on_threads(range(2), join)
    assert [nccl.number("CommCuDevice", comm) for comm in made] == places


def test_one_thread_makes_all_ranks_each_on_the_device_that_is_current_then(nccl, made, places):
    unique_id, room = nccl.unique_id(), (ctypes.c_void_p * 2)()
    with nccl.group():
        for rank, place in enumerate(places):
            with driver.current(place):
                at = ctypes.cast(ctypes.byref(room, 8 * rank), ctypes.POINTER(ctypes.c_void_p))
                nccl.CommInitRank(at, 2, unique_id, rank)
    made += list(room)
    assert [nccl.number("CommCuDevice", comm) for comm in made] == places


def test_a_group_runs_on_its_streams_and_returns_before(nccl, comms, places, streams):
    sent, received = arrays(places), zeros(places)
    with streams[0].held():
        with nccl.group():
            for comm, stream, source, target in zip(comms, streams, sent, received):
                nccl.AllReduce(
                    source.address, target.address, EACH, FLOAT32, SUM, comm, stream.ptr
                )
        assert (received[0].get() == 0).all()
    wait(streams)
    for target in received:
        assert (target.get() == values(0) + values(1)).all()


def test_the_null_stream_is_cudas_default(nccl, comms, places):
    both = arrays(places)
    with nccl.group():
        for comm, one in zip(comms, both):
            nccl.AllReduce(one.address, one.address, EACH, FLOAT32, MAX, comm, None)
    for place, one in zip(places, both):
        driver.default_stream(place).synchronize()
        assert (one.get() == values(1)).all()


def each_rank(nccl, comms, streams, places, name, counts, *arguments):
    """What a collective leaves with every rank, by `counts` elements sent and received."""
    sent, received = arrays(places, counts[0], np.int32), zeros(places, counts[1], np.int32)
    with nccl.group():
        for at, comm in enumerate(comms):
            source, target, stream = sent[at].address, received[at].address, streams[at].ptr
            getattr(nccl, name)(source, target, EACH, INT32, *arguments, comm, stream)
    wait(streams)
    return [target.get() for target in received]


def test_every_collective(nccl, comms, streams, places):
    def of(name, counts, *arguments):
        return each_rank(nccl, comms, streams, places, name, counts, *arguments)

    one, two = (values(rank, kind=np.int32) for rank in range(2))
    wide = [values(rank, 2 * EACH, np.int32) for rank in range(2)]
    both, total = np.concatenate([one, two]), wide[0] + wide[1]
    halves = [np.split(each, 2) for each in wide]
    assert (of("AllReduce", (EACH, EACH), SUM)[1] == one + two).all()
    assert (of("Reduce", (EACH, EACH), SUM, 1)[1] == one + two).all()
    assert (of("Broadcast", (EACH, EACH), 1)[0] == two).all()
    assert (of("AllGather", (EACH, 2 * EACH))[0] == both).all()
    assert (of("Gather", (EACH, 2 * EACH), 1)[1] == both).all()
    assert (np.concatenate(of("ReduceScatter", (2 * EACH, EACH), SUM)) == total).all()
    assert (np.concatenate(of("Scatter", (2 * EACH, EACH), 0)) == wide[0]).all()
    for rank, come in enumerate(of("AlltoAll", (2 * EACH, 2 * EACH))):
        assert (come == np.concatenate([halves[0][rank], halves[1][rank]])).all()
    assert (of("AllReduce", (EACH, EACH), AVG)[0] == (one + two) // 2).all()


def test_messages_in_a_group(nccl, comms, streams, places):
    sent, received = arrays(places), zeros(places)
    with nccl.group():
        for rank, (comm, stream) in enumerate(zip(comms, streams)):
            nccl.Send(sent[rank].address, EACH, FLOAT32, 1 - rank, comm, stream.ptr)
            nccl.Recv(received[rank].address, EACH, FLOAT32, 1 - rank, comm, stream.ptr)
    wait(streams)
    for rank, target in enumerate(received):
        assert (target.get() == values(1 - rank)).all()


@pytest.mark.parametrize("on_device", [True, False], ids=["of a device", "of the host"])
def test_a_sum_with_factors(nccl, comms, streams, places, on_device):
    factors, both = [np.full(1, rank + 2, np.float32) for rank in range(2)], arrays(places)
    there = [driver.Array(factor, place) for factor, place in zip(factors, places)]
    with nccl.group():
        for at, comm in enumerate(comms):
            op = ctypes.c_int()
            residence = nccl_calls.ON_DEVICE if on_device else nccl_calls.IMMEDIATE
            scalar = there[at].address if on_device else factors[at].ctypes.data
            nccl.RedOpCreatePreMulSum(ctypes.byref(op), scalar, FLOAT32, residence, comm)
            place = both[at].address
            nccl.AllReduce(place, place, EACH, FLOAT32, op, comm, streams[at].ptr)
            # Before the group runs, as PyTorch does.
            nccl.RedOpDestroy(op, comm)
    wait(streams)
    for one in both:
        assert (one.get() == 2 * values(0) + 3 * values(1)).all()


def kind_of(place, address):
    """The driver's word for the memory at an address."""
    found = ctypes.c_uint()
    with driver.current(place):
        ask = driver._driver().cuPointerGetAttribute
        code = ask(ctypes.byref(found), MEMORY_TYPE, ctypes.c_uint64(address))
    return found.value if code == 0 else None


def test_memory_is_the_current_devices(nccl, comms, places, streams):
    size, allocated = EACH * 4, []
    for place in places:
        with driver.current(place):
            allocated.append(nccl.pointer("MemAlloc", size))
        assert kind_of(place, allocated[-1]) == OF_A_DEVICE
    both = arrays(places)
    with nccl.group():
        for comm, stream, source, target in zip(comms, streams, both, allocated):
            nccl.AllReduce(source.address, target, EACH, FLOAT32, SUM, comm, stream.ptr)
            nccl.AllReduce(target, target, EACH, FLOAT32, MAX, comm, stream.ptr)
            nccl.Broadcast(target, source.address, EACH, FLOAT32, 1, comm, stream.ptr)
    wait(streams)
    for one, address in zip(both, allocated):
        assert (one.get() == values(0) + values(1)).all()
        nccl.MemFree(address)


def test_without_a_device_it_is_the_hosts(nccl, places):
    address = nccl.pointer("MemAlloc", 4096)
    assert kind_of(places[0], address) != OF_A_DEVICE
    ctypes.memset(address, 1, 4096)
    nccl.MemFree(address)


def test_a_device_has_no_windows_and_registers_nothing(nccl, comms, places, streams):
    both = arrays(places)
    for comm, one in zip(comms, both):
        window, handle = ctypes.c_void_p(7), ctypes.c_void_p()
        flags = nccl_calls.COLLECTIVE_WINDOW
        nccl.CommWindowRegister(comm, one.address, 4 * EACH, ctypes.byref(window), flags)
        assert window.value is None
        nccl.CommWindowDeregister(comm, window)
        nccl.CommRegister(comm, one.address, 4 * EACH, ctypes.byref(handle))
        nccl.CommDeregister(comm, handle)
    # The calls go on as before.
    with nccl.group():
        for comm, one, stream in zip(comms, both, streams):
            nccl.AllReduce(one.address, one.address, EACH, FLOAT32, SUM, comm, stream.ptr)
    wait(streams)
    assert (both[0].get() == values(0) + values(1)).all()


def test_children_are_where_their_parents_are(nccl, comms, made, places, streams):
    turned = nccl.split(comms, [0, 0], [1, 0])
    alone = nccl.split(comms, [0, nccl_calls.NO_COLOR])
    smaller = nccl.shrink(comms[1], [0])
    made += [one for one in [*turned, *alone, smaller] if one]
    assert alone[1] is None
    for comm, rank, place in [
        (turned[0], 1, places[0]),
        (turned[1], 0, places[1]),
        (alone[0], 0, places[0]),
        (smaller, 0, places[1]),
    ]:
        assert nccl.number("CommUserRank", comm) == rank
        assert nccl.number("CommCuDevice", comm) == place
    # They go on without their parents.
    for comm in comms:
        nccl.CommDestroy(comm)
        made.remove(comm)
    both = arrays(places)
    with nccl.group():
        for comm, one, stream in zip(turned, both, streams):
            nccl.Bcast(one.address, EACH, FLOAT32, 0, comm, stream.ptr)
    wait(streams)
    assert (both[0].get() == values(1)).all()


def test_a_destroyed_communicator_is_refused(nccl, comms, made, places):
    [one, _] = arrays(places)
    for comm in comms:
        nccl.CommFinalize(comm)
        nccl.CommDestroy(comm)
        made.remove(comm)
    with pytest.raises(NcclError, match="no communicator") as told:
        nccl.AllReduce(one.address, one.address, EACH, FLOAT32, SUM, comms[0], None)
    assert told.value.code == nccl_calls.INVALID_ARGUMENT


def test_those_that_do_not_block(nccl, made, places, streams):
    unique_id, both = nccl.unique_id(), arrays(places)
    # Nothing waits: one thread begins both, without a group.
    for rank, place in enumerate(places):
        with driver.current(place):
            made.append(nccl.begin(2, unique_id, rank))
    assert [nccl.finish(comm) for comm in made] == [nccl_calls.SUCCESS] * 2
    assert [nccl.number("CommCuDevice", comm) for comm in made] == places
    for turn in range(3):
        with nccl.group():
            for comm, one, stream in zip(made, both, streams):
                nccl.AllReduce(one.address, one.address, EACH, FLOAT32, SUM, comm, stream.ptr)
    assert [nccl.finish(comm) for comm in made] == [nccl_calls.SUCCESS] * 2
    wait(streams)
    for one in both:
        assert (one.get() == 4 * (values(0) + values(1))).all()


def test_who_waits_for_a_rank_that_never_comes_gives_up(nccl, places):
    with driver.current(places[0]):
        comm = nccl.begin(2, nccl.unique_id(), 0)
    time.sleep(0.1)
    assert nccl.state(comm) == nccl_calls.IN_PROGRESS
    begun = time.monotonic()
    nccl.CommAbort(comm)
    assert time.monotonic() - begun < PATIENCE_S


def test_an_abort_ends_a_call_whose_peer_never_comes(nccl, comms, made, places, streams):
    [one, _] = arrays(places)
    failed = []

    def call():
        try:
            nccl.AllReduce(one.address, one.address, EACH, FLOAT32, SUM, comms[0], streams[0].ptr)
        except NcclError as error:
            failed.append(error)

    # Where ranks share a device the call itself waits for the other one.
    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.2)
    nccl.CommAbort(comms[0])
    made.remove(comms[0])
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    # Whatever it was given, the stream goes on.
    streams[0].synchronize()
    assert all(error.code == nccl_calls.INTERNAL_ERROR for error in failed)


def test_a_call_whose_peer_never_comes_ends_at_the_deadline(nccl, made, places, monkeypatch):
    monkeypatch.setenv("RINGCOMM_TIMEOUT_MS", "1000")
    unique_id = nccl.unique_id()

    def join(rank):
        with driver.current(places[rank]):
            return nccl.pointer("CommInitRank", 2, unique_id, rank)

    made += on_threads(range(2), join)
    one, stream = arrays(places)[0], driver.Stream(places[0])
    result = nccl_calls.SUCCESS
    try:
        nccl.AllReduce(one.address, one.address, EACH, FLOAT32, SUM, made[0], stream.ptr)
    except NcclError as error:
        result = error.code
    stream.synchronize()
    # What the stream has left behind is no result, and by then the communicator says so.
    assert nccl.state(made[0]) == nccl_calls.TIMEOUT
    assert result in (nccl_calls.SUCCESS, nccl_calls.TIMEOUT)


def sum_of(nccl, comm, array, stream):
    """What has become of a communicator once its sum has gone by."""
    try:
        nccl.AllReduce(array.address, array.address, EACH, FLOAT32, SUM, comm, stream.ptr)
    except NcclError as error:
        return error.code
    stream.synchronize()
    return nccl.state(comm)


def _rank(place, rank, pipe):
    nccl = Nccl(os.environ["RINGCOMM_NCCL_LIBRARY"])
    if rank == 0:
        pipe.send(bytes(nccl.unique_id()))
    unique_id = nccl_calls.UniqueId.from_buffer_copy(pipe.recv())
    with driver.current(place):
        comm = nccl.pointer("CommInitRank", 2, unique_id, rank)
    array, stream = driver.Array(values(rank), place), driver.Stream(place)
    found = [nccl.number("CommCuDevice", comm), sum_of(nccl, comm, array, stream), array.get()]
    pipe.send(found)
    if rank == 1:
        pipe.recv()
        os.kill(os.getpid(), signal.SIGKILL)
    found = [sum_of(nccl, comm, array, stream)]
    left = nccl.shrink(comm, [1], nccl_calls.SHRINK_ABORT)
    array = driver.Array(values(7), place)
    pipe.send([*found, sum_of(nccl, left, array, stream), array.get()])


def test_processes_of_which_one_dies(places):
    spawn = multiprocessing.get_context("spawn")
    ends = [spawn.Pipe() for _ in places]
    started = [
        spawn.Process(target=_rank, args=(place, rank, ends[rank][1]))
        for rank, place in enumerate(places)
    ]
    for process in started:
        process.start()
    try:
        unique_id = _told(ends[0])
        for ours, _ in ends:
            ours.send(unique_id)
        for end, place in zip(ends, places):
            device, state, summed = _told(end)
            assert (device, state) == (place, nccl_calls.SUCCESS)
            assert (summed == values(0) + values(1)).all()
        # The other one is in its call by then, or comes to it.
        time.sleep(0.2)
        ends[1][0].send("die")
        after, alone, kept = _told(ends[0])
        assert (after, alone) == (nccl_calls.REMOTE_ERROR, nccl_calls.SUCCESS)
        assert (kept == values(7)).all()
        started[0].join(PATIENCE_S)
        assert started[0].exitcode == 0
    finally:
        for process in started:
            process.kill()
            process.join()


def _told(end):
    """What a rank says, soon enough."""
    assert end[0].poll(PATIENCE_S), "a rank says nothing"
    return end[0].recv()
