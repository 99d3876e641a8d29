"""CUDA streams: a call is ordered by its stream, and returns before it has run."""

import driver
import numpy as np
import pytest
from in_threads import on_threads

import ringcomm


class Torch:
    """A stream as PyTorch spells it."""

    def __init__(self, stream):
        self.cuda_stream = stream.ptr


class Protocol:
    """A stream as `__cuda_stream__` says it."""

    def __init__(self, stream):
        self._ptr = stream.ptr

    def __cuda_stream__(self):
        return (0, self._ptr)


SPELLINGS = {
    "CuPy": lambda stream: stream,
    "PyTorch": Torch,
    "protocol": Protocol,
    "number": lambda stream: stream.ptr,
}


@pytest.fixture
def one(ranks):
    """A rank alone on a device."""
    return ranks(1, [0])[0]


def ones(rank=0):
    return driver.Array(np.full(1000, rank + 1, np.float32))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_call_waits_for_its_stream_and_its_caller_does_not(one, spelling):
    stream, factor = driver.Stream(), one.pre_mul_sum(3)
    send, recv = ones(), driver.Array(np.zeros(1000, np.float32))
    with stream.held():
        assert one.all_reduce(send, recv, factor, stream=SPELLINGS[spelling](stream)) is None
        assert (recv.get() == 0).all()
    stream.synchronize()
    assert (recv.get() == 3).all()


def test_without_a_stream_it_is_the_default_stream(one):
    stream, factor = driver.default_stream(), one.pre_mul_sum(3)
    send, recv = ones(), driver.Array(np.zeros(1000, np.float32))
    with stream.held():
        assert one.all_reduce(send, recv, factor) is None
        assert (recv.get() == 0).all()
    stream.synchronize()
    assert (recv.get() == 3).all()


def test_a_call_on_host_memory_is_done_when_it_returns(one):
    stream, factor = driver.Stream(), one.pre_mul_sum(3)
    for where in (None, stream):
        host = np.ones(1000, np.float32)
        one.all_reduce(host, op=factor, stream=where)
        stream.synchronize()
        assert (host == 3).all()


def test_what_has_a_handle_is_done_when_it_is(ranks):
    def work(comm):
        array = ones(comm.rank)
        handle = comm.all_reduce(array, async_op=True)
        assert handle.wait(60)
        # Read by a stream that nothing orders behind the call.
        assert (array.get() == 3).all()
        with ringcomm.Stream() as stream:
            comm.all_reduce(array, stream=stream)
            stream.synchronize()
            assert (array.get() == 6).all()

    on_threads(ranks(2, [0, 0]), work)


def test_a_thread_makes_the_calls_of_two_ranks_in_a_group(ranks, devices):
    comms = ranks(2, [0, devices - 1])
    streams = [driver.Stream(comm.device) for comm in comms]
    arrays = [driver.Array(np.full(99, comm.rank + 1.0), comm.device) for comm in comms]
    with ringcomm.group():
        for comm, stream, array in zip(comms, streams, arrays):
            comm.all_reduce(array, stream=stream)
    for stream, array in zip(streams, arrays):
        stream.synchronize()
        assert (array.get() == 3).all()


def test_what_cannot_be(one):
    with pytest.raises(ringcomm.RingArgumentError, match="is no stream"):
        one.all_reduce(ones(), stream=2**64 - 8)
    with pytest.raises(ringcomm.RingArgumentError, match="the factor is one float32 on the CPU"):
        one.pre_mul_sum(driver.Array(np.ones(1, np.float32)))
    with pytest.raises(ringcomm.RingArgumentError, match="send is on CUDA device 0 and recv is on"):
        one.all_reduce(ones(), np.zeros(1000, np.float32))
    one.all_reduce(ones())
