"""Each handle tells how its own call went, whatever else its stream was given."""

import os
import signal
import threading

import numpy as np
import pytest
from conftest import on_threads

import ringcomm
from ringcomm._native import lib


def refused(comm, count, stream=None):
    """A call that fails on its stream, says its length, and breaks nothing."""
    with ringcomm.group():
        comm.send(np.ones(count), comm.rank, stream=stream, async_op=True)
        handle = comm.recv(np.ones(1), comm.rank, stream=stream, async_op=True)
    return handle


def fails(handle, words="sends to itself"):
    with pytest.raises(ringcomm.RingArgumentError, match=words):
        handle.wait()


def counted(count):
    return f"sends itself {count} elements"


def test_a_handle_tells_no_other_calls_error(ranks, one):
    """Nor is its own lost with the stream's, which is told once."""
    comms, others = ranks(2, timeout_ms=1500), ranks(2)
    stream, array = ringcomm.Stream(), np.ones(4)
    # Nothing runs, nor any deadline, before all of them are given.
    others[0].barrier(stream=stream)
    failed = comms[0].barrier(stream=stream, async_op=True)
    fine = one.all_reduce(array, stream=stream, async_op=True)
    again = comms[0].barrier(stream=stream, async_op=True)
    others[1].barrier()
    assert fine.wait()
    for wait in (stream.synchronize, failed.wait, again.wait):
        with pytest.raises(ringcomm.RingTimeoutError):
            wait()
    stream.synchronize()
    stream.close()
    assert fine.wait()
    with pytest.raises(ringcomm.RingTimeoutError):
        failed.wait()


@pytest.mark.parametrize("last_first", [False, True])
def test_handles_of_calls_that_break_no_communicator(ranks, last_first):
    """The stream tells the first error; each handle its own call's, and none tells another's."""
    comms = [ranks(1)[0], ranks(1)[0]]
    with ringcomm.Stream() as stream:
        handles = []
        # Each communicator has calls that fail and calls that do not, with others before them.
        for count in range(2, 10):
            comm = comms[count % 4 > 1]
            if count % 2:
                handles.append((comm.barrier(stream=stream, async_op=True), None))
            else:
                handles.append((refused(comm, count, stream), counted(count)))
        with pytest.raises(ringcomm.RingArgumentError, match=counted(2)):
            stream.reached(stream.mark())
        for handle, words in handles[::-1] if last_first else handles:
            if words is None:
                assert handle.wait()
            else:
                fails(handle, words)
        with pytest.raises(ringcomm.RingArgumentError, match=counted(2)):
            stream.synchronize()
    assert [comm.error() for comm in comms] == [None, None]


def test_a_stream_that_told_its_error_keeps_those_of_its_calls(one):
    """Somebody asks the library while the package does not look."""
    with ringcomm.Stream() as stream:
        failed = one.send(np.ones(4), 0, stream=stream, async_op=True)
        fine = one.barrier(stream=stream, async_op=True)
        assert lib.ringStreamSynchronize(stream.handle) != 0
        assert lib.ringStreamSynchronize(stream.handle) == 0
        fails(failed)
        assert fine.wait()


def test_more_failures_than_a_queue_holds(one):
    """Nobody has asked for one of them before the last was made."""
    handles = [(count, refused(one, count)) for count in range(2, 900)]
    for count, handle in handles:
        fails(handle, counted(count))


def test_threads_that_share_a_stream(ranks):
    """The calls of one fail, those of the other do not."""
    comms = [ranks(1)[0], ranks(1)[0]]
    with ringcomm.Stream() as stream:

        def work(comm):
            for _ in range(300):
                if comm is comms[0]:
                    assert comm.barrier(stream=stream, async_op=True).wait()
                else:
                    fails(comm.send(np.ones(4), 0, stream=stream, async_op=True))

        on_threads(comms, work)
        with pytest.raises(ringcomm.RingArgumentError, match="sends to itself"):
            stream.synchronize()


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_that_was_forked_while_a_call_was_given(one):
    """It is told that the stream is not its own, as any other."""
    with ringcomm.Stream() as stream:
        inside, over = threading.Event(), threading.Event()

        def give():
            with stream._giving:
                inside.set()
                over.wait()

        thread = threading.Thread(target=give)
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            # One that hangs ends, too.
            signal.alarm(60)
            try:
                one.barrier(stream=stream, async_op=True)
            except ringcomm.RingUsageError:
                os._exit(0)
            finally:
                os._exit(1)
        over.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
