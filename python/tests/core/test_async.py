"""Handles, streams, groups, and the GIL."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import on_threads

import ringcomm
from ringcomm import groups, streams
from ringcomm._native import lib


def test_handles(ranks):
    def work(comm):
        arrays = [np.full(1000, float(comm.rank + index)) for index in range(20)]
        handles = [comm.all_reduce(array, async_op=True) for array in arrays]
        for index, (array, handle) in enumerate(zip(arrays, handles)):
            assert handle.wait()
            assert handle.done() and handle.test()
            assert (array == 3 + 3 * index).all()
            assert handle.wait()

    on_threads(ranks(3), work)


def test_every_call_has_a_handle(ranks):
    def work(comm):
        block, whole = np.ones(4), np.ones(8)
        counts = [4, 4]
        handles = [
            comm.all_reduce(block, async_op=True),
            comm.broadcast(block, async_op=True),
            comm.reduce(block, async_op=True),
            comm.all_gather(block, whole, async_op=True),
            comm.reduce_scatter(whole, block, async_op=True),
            comm.all_to_all(whole, async_op=True),
            comm.gather(block, whole, async_op=True),
            comm.scatter(whole, block, async_op=True),
            comm.barrier(async_op=True),
            comm.all_gather_v(block, whole, counts, async_op=True),
            comm.reduce_scatter_v(whole, block, counts, async_op=True),
            comm.all_to_all_v(whole, counts, whole.copy(), counts, async_op=True),
            comm.gather_v(block, whole, counts, async_op=True),
            comm.scatter_v(whole, block, counts, async_op=True),
            comm.recv(block, 1, async_op=True)
            if comm.rank == 0
            else comm.send(block, 0, async_op=True),
        ]
        for handle in handles:
            assert isinstance(handle, ringcomm.Handle)
            handle.wait()

    on_threads(ranks(2), work)


def test_a_time_that_is_over_already(ranks):
    """Without an end the wait would be one for what comes after it."""

    def work(comm):
        if comm.rank == 1:
            go.wait()
            comm.barrier()
            return
        with ringcomm.Stream() as stream:
            waited = []

            def wait():
                handle = comm.barrier(stream=stream, async_op=True)
                mark = stream.mark()
                for timeout in (-1, -0.0001, float(-(2**40))):
                    waited.append(handle.wait(timeout))
                    waited.append(stream.reached(mark, timeout))

            waiting = threading.Thread(target=wait)
            waiting.start()
            waiting.join(60)
            go.set()
            waiting.join()
            assert waited == 6 * [False]

    go = threading.Event()
    on_threads(ranks(2), work)


def test_a_handle_does_not_wait_for_later_calls(ranks):
    """Rank 1 makes its second call only after rank 0 has seen the end of the first."""
    seen = threading.Event()

    def work(comm):
        first, second = np.ones(3), np.ones(3)
        one = comm.all_reduce(first, async_op=True)
        if comm.rank == 1:
            one.wait()
            seen.wait()
        two = comm.all_reduce(second, async_op=True)
        if comm.rank == 0:
            assert one.wait()
            assert not two.wait(timeout=0.05) and not two.done()
            seen.set()
        assert two.wait()
        assert (first == 2).all() and (second == 2).all()

    on_threads(ranks(2), work)


def test_a_call_comes_after_the_ones_under_way(ranks):
    """All ranks make their calls in one order, whichever of them is the slower to start its own."""

    def work(comm):
        for size in (100_000, 10, 50_000, 1):
            queued, now = np.full(size, 1.0), np.full(7, 2.0)
            handle = comm.all_reduce(queued, async_op=True)
            comm.all_reduce(now)
            assert (now == 6).all() and handle.done() and (queued == 3).all()
            comm.all_reduce(queued, async_op=True)
            assert comm.split(0).nranks == 3

    on_threads(ranks(3), work)


@pytest.mark.parametrize("then", ["now", "own", "stream"])
def test_a_call_comes_after_those_on_a_stream(ranks, then):
    """Rank 0's stream waits for something else before it comes to its first call."""
    comms, others = ranks(2), ranks(2)

    def work(comm):
        first, second = np.full(5, 1.0), np.full(5, 10.0)
        if comm.rank == 0:
            stream, last = ringcomm.Stream(), ringcomm.Stream()
            others[0].barrier(stream=stream)
            comm.all_reduce(first, stream=stream)
            elsewhere = {"now": {}, "own": {"async_op": True}, "stream": {"stream": last}}
            comm.all_reduce(second, **elsewhere[then])
            comm.barrier()
        else:
            # Were it out of order, the second call would be made by now.
            time.sleep(0.2)
            others[1].barrier()
            comm.all_reduce(first)
            comm.all_reduce(second)
            comm.barrier()
        assert (first == 2).all() and (second == 20).all()

    on_threads(comms, work)


def test_buffers_of_calls_under_way_stay_alive(ranks):
    def work(comm):
        out = np.zeros(200_000)
        handle = comm.all_reduce(np.full(200_000, 1.0), out, async_op=True)
        # What numpy would hand out if the buffer above were free again.
        noise = [np.full(200_000, 9.0) for _ in range(3)]
        handle.wait()
        assert (out == 2).all() and len(noise) == 3

    on_threads(ranks(2), work)


@pytest.mark.parametrize("where", ["own", "stream", "group"])
def test_what_is_done_keeps_no_buffers(ranks, where):
    """A loop of waits holds one array at a time, not those of the last hundreds of calls."""

    def work(comm):
        stream = ringcomm.Stream() if where == "stream" else None
        for _ in range(3):
            array = np.ones(1000)
            kept = weakref.ref(array)
            if where == "group":
                with ringcomm.group():
                    handle = comm.all_reduce(array, async_op=True)
            else:
                handle = comm.all_reduce(array, stream=stream, async_op=True)
            handle.wait()
            del array
            gc.collect()
            assert kept() is None

    on_threads(ranks(2), work)


def test_calls_without_handles_keep_no_buffers(one):
    """Those that are done go when the stream is given another, and nobody has to ask for them."""
    with ringcomm.Stream() as stream:
        array = np.ones(1000)
        kept = weakref.ref(array)
        one.all_reduce(array, stream=stream)
        assert stream.reached(stream.mark())
        del array
        one.barrier(stream=stream)
        gc.collect()
        assert kept() is None


def test_an_interrupted_call_keeps_its_buffers(ranks):
    """Ctrl-C comes when the stream has the call and Python does not know it yet."""
    comms = ranks(2)
    array = np.ones(1000)
    kept = weakref.ref(array)

    def interrupted(*arguments):
        assert lib.ringAllReduce(*arguments) == 0
        raise KeyboardInterrupt

    address = array.ctypes.data
    arguments = (address, address, 1000, ringcomm.DataType.FLOAT64, ringcomm.SUM)
    try:
        comms[0]._run(interrupted, arguments, array, None, True)
    except KeyboardInterrupt:
        pass
    del array
    gc.collect()
    assert kept() is not None
    comms[1].all_reduce(np.ones(1000))
    comms[0]._own_stream().synchronize()
    gc.collect()
    assert kept() is None


def test_a_handle_tells_its_own_error(ranks):
    comms = ranks(2, timeout_ms=1500)
    handle = comms[0].barrier(async_op=True)
    with pytest.raises(ringcomm.RingTimeoutError) as caught:
        handle.wait()
    assert (caught.value.rank, caught.value.peer, caught.value.sequence) == (0, 1, 0)
    assert caught.value.operation == "Barrier()"
    assert handle.done()
    with pytest.raises(ringcomm.RingTimeoutError):
        handle.wait()


def test_a_stream_that_is_being_closed(ranks):
    """Its calls are not done because it takes no more of them."""
    comms = ranks(2)
    stream = ringcomm.Stream()
    handle = comms[0].barrier(stream=stream, async_op=True)
    mark = stream.mark()
    closer = threading.Thread(target=stream.close)
    closer.start()
    while stream.handle is not None:
        time.sleep(0.001)
    assert not handle.wait(timeout=0.05) and not handle.done()
    assert not stream.reached(mark, timeout=0.05)
    comms[1].barrier()
    assert handle.wait() and stream.reached(mark)
    closer.join()


def test_a_handle_of_a_communicator_that_ended(ranks):
    def work(comm):
        array = np.ones(10)
        handle = comm.all_reduce(array, async_op=True)
        comm.destroy()
        assert handle.wait() and (array == 2).all()

    on_threads(ranks(2), work)


def test_streams(ranks):
    def work(comm):
        with ringcomm.Stream() as stream:
            arrays = [np.full(100, 1.0) for _ in range(300)]
            for array in arrays:
                assert comm.all_reduce(array, stream=stream) is None
            mark = stream.mark()
            assert stream.reached(mark)
            stream.synchronize()
            assert stream.query()
            assert all((array == 2).all() for array in arrays)
            handle = comm.all_reduce(arrays[0], stream=stream, async_op=True)
            handle.wait()
            assert (arrays[0] == 4).all()
        assert stream.handle is None
        stream.close()

    on_threads(ranks(2), work)


@pytest.mark.parametrize("settings", [{}, {"async_op": True}], ids=["call", "handle"])
def test_the_number_of_a_stream(one, settings):
    """A call on it would run in memory that nobody keeps."""
    with ringcomm.Stream() as stream:
        with pytest.raises(ringcomm.RingArgumentError, match="give the ringcomm.Stream"):
            one.all_reduce(np.ones(4), stream=stream.handle, **settings)
        assert stream.query()


def test_what_is_no_stream(ranks):
    class Torch:
        cuda_stream = 7

    class Cupy:
        ptr = 8

    class Other:
        def __cuda_stream__(self):
            return (0, 9)

    assert [streams.handle_of(kind()) for kind in (Torch, Cupy, Other)] == [7, 8, 9]
    one = ranks(1)[0]
    for wrong in (Torch(), 12345, "text", object()):
        with pytest.raises(ringcomm.RingArgumentError, match="stream"):
            one.barrier(stream=wrong)
    closed = ringcomm.Stream()
    closed.close()
    with pytest.raises(ringcomm.RingArgumentError, match="this stream was closed"):
        one.barrier(stream=closed)
    one.barrier()


def test_a_stream_tells_the_first_error(ranks):
    comms = ranks(2, timeout_ms=1500)
    stream = ringcomm.Stream()
    comms[0].barrier(stream=stream)
    with pytest.raises(ringcomm.RingTimeoutError):
        stream.synchronize()
    stream.synchronize()
    stream.close()


def test_groups_of_handles(ranks):
    def work(comm):
        peer = 1 - comm.rank
        got = np.zeros(50)
        with ringcomm.group():
            handles = [
                comm.send(np.full(50, float(comm.rank)), peer, async_op=True),
                comm.recv(got, peer, async_op=True),
            ]
            with pytest.raises(ringcomm.RingUsageError, match="end of its group"):
                handles[0].wait()
            assert not handles[0].done()
        for handle in handles:
            handle.wait()
        assert (got == peer).all()

    on_threads(ranks(2), work)
    assert groups.open_groups == 0 and groups.here.depth == 0


def test_buffers_of_a_group_stay_alive(ranks, monkeypatch):
    """Those of calls on streams and of calls that run at its end."""
    comms, end, alive = ranks(2), lib.ringGroupEnd, []
    out = [np.zeros(1000), np.zeros(1000)]

    def looked_at():
        gc.collect()
        alive.extend(each() is not None for each in kept)
        return end()

    monkeypatch.setattr(lib, "ringGroupEnd", looked_at)
    with ringcomm.group():
        arrays = [np.ones(1000), np.ones(1000)]
        kept = [weakref.ref(array) for array in arrays]
        handle = comms[0].all_reduce(arrays[0], out[0], async_op=True)
        comms[1].all_reduce(arrays[1], out[1])
        del arrays
    handle.wait()
    gc.collect()
    assert alive == [True, True] and [each() for each in kept] == [None, None]
    assert (out[0] == 2).all() and (out[1] == 2).all()


def test_handles_of_groups_that_were_dropped(ranks):
    comms = ranks(2)
    with pytest.raises(KeyError):
        with ringcomm.group():
            handle = comms[0].barrier(async_op=True)
            raise KeyError("a defect")
    assert handle.done()
    with pytest.raises(ringcomm.RingUsageError, match="was dropped with a group .*by KeyError"):
        handle.wait()
    on_threads(comms, lambda comm: comm.barrier())


def test_handles_of_groups_that_were_refused(ranks):
    comms = ranks(2)
    array = np.ones(4)
    kept = weakref.ref(array)
    with ringcomm.Stream() as stream:
        ringcomm.group_start()
        handle = comms[0].all_reduce(array, async_op=True)
        with pytest.raises(ringcomm.RingUsageError, match="two streams"):
            comms[0].barrier(stream=stream)
        with pytest.raises(ringcomm.RingUsageError, match="two streams"):
            ringcomm.group_end()
    with pytest.raises(ringcomm.RingUsageError, match="two streams"):
        handle.wait()
    del array
    gc.collect()
    assert kept() is None


def test_nested_groups(ranks):
    comms = ranks(2)
    arrays = [np.ones(3), np.ones(3)]
    with ringcomm.group():
        with ringcomm.group():
            comms[0].all_reduce(arrays[0])
        assert (arrays[0] == 1).all()
        comms[1].all_reduce(arrays[1])
    assert (arrays[0] == 2).all() and (arrays[1] == 2).all()
    with pytest.raises(ringcomm.RingUsageError):
        ringcomm.group_end()
    assert groups.open_groups == 0 and groups.here.depth == 0


def test_a_call_that_waits_lets_other_threads_run(ranks):
    """If the GIL were held, rank 0 would wait until its deadline and nobody would send."""
    comms = ranks(2)
    inside, counted = threading.Event(), []
    got = np.zeros(1)

    def receive():
        inside.set()
        comms[0].recv(got, 1)

    thread = threading.Thread(target=receive)
    thread.start()
    inside.wait()
    for number in range(200_000):
        counted.append(number)
    comms[1].send(np.full(1, 5.0), 0)
    thread.join()
    assert got[0] == 5 and len(counted) == 200_000
