"""The comm stream of a CUDA device in a process group: where it is, and the marks behind its calls."""

import threading
import time
from datetime import timedelta

import driver
import pytest
import torch
from in_threads import on_threads
from tensors import Tensor, streams  # noqa: F401

import ringcomm
from ringcomm._native import DataType, ReduceOp, lib
from ringcomm.errors import RingAbortedError, RingRemoteError, RingTimeoutError
from ringcomm.torch.cuda import CudaCommStream
from ringcomm.torch.meet import join
from ringcomm.torch.work import Work

PATIENCE = timedelta(seconds=60)


@pytest.fixture
def comm_streams(streams):
    """`comm streams(devices)` makes a comm stream on each of these devices, for a rank each."""
    made = []

    def make(devices):
        store = torch.distributed.HashStore()

        def one(rank):
            place = f"cuda:{devices[rank]}"
            return CudaCommStream(store, "key", rank, len(devices), b"shared", PATIENCE, place)

        made.extend(on_threads(range(len(devices)), one))
        return made

    yield make
    for comm_stream in made:
        comm_stream.abort()


@pytest.fixture
def comm_stream(comm_streams):
    return comm_streams([0])[0]


def sum_of(tensor):
    place = tensor.data_ptr()
    return [(lib.ringAllReduce, (place, place, tensor.numel(), DataType.FLOAT32, ReduceOp.SUM))]


def test_comm_streams_are_where_their_tensors_are(comm_streams, streams, devices):
    # No device is current, and there may be others than the first.
    places = [0, devices - 1]
    made = comm_streams(places)
    assert [comm_stream.communicator.device for comm_stream in made] == places

    def work(comm_stream):
        tensor = Tensor([comm_stream.rank + 1.0] * 5, comm_stream.device.index)
        comm_stream.run(sum_of(tensor))
        streams[comm_stream.device].synchronize()
        return tensor.get().tolist()

    assert on_threads(made, work) == [[3.0] * 5] * 2


def test_the_comm_stream_of_the_cpu_stays_off_what_is_current():
    with driver.current(0), join(None, "key", 0, 1, b"", PATIENCE) as made:
        assert made.device == -1


def test_a_call_is_on_torchs_current_stream(comm_stream, streams):
    factor = comm_stream.communicator.pre_mul_sum(3.0)
    tensor = Tensor([1.0] * 5)
    place = tensor.data_ptr()
    with streams["cuda:0"].held():
        call = (lib.ringAllReduce, (place, place, 5, DataType.FLOAT32, factor))
        work = Work(comm_stream, comm_stream.give([call], None), [])
        assert not work.is_completed() and tensor.get().tolist() == [1.0] * 5
    streams["cuda:0"].synchronize()
    assert work.is_completed() and tensor.get().tolist() == [3.0] * 5


def test_a_work_is_not_done_because_it_is_old(comm_stream, streams):
    with streams["cuda:0"].held():
        works = [Work(comm_stream, comm_stream.give([], None), []) for _ in range(300)]
        assert not works[0].is_completed() and not works[-1].is_completed()
    streams["cuda:0"].synchronize()
    assert works[0].is_completed() and works[-1].is_completed()


def test_what_is_done_is_not_remembered(comm_stream, streams):
    for _ in range(100):
        comm_stream.give([], None)
        streams["cuda:0"].synchronize()
    assert len(comm_stream._running) < 50


def test_what_waits_for_a_work_makes_its_stream_wait(comm_stream, streams):
    tensor = Tensor([1.0] * 5)
    with streams["cuda:0"].held():
        work = Work(comm_stream, comm_stream.give(sum_of(tensor), None), [])
        # Another stream is current where it is waited for.
        other = streams.all[0] = type(streams)(1)["cuda:0"]
        assert work.wait()
        after = comm_stream.give([], None)
        assert not comm_stream.reached(after, 0)
    other.synchronize()
    assert comm_stream.reached(after, 0)


def test_a_wait_with_a_limit_waits_for_the_device(comm_stream, streams):
    queries, ends = [], []
    with streams["cuda:0"].held():
        mark = comm_stream.give([], None)
        query, work = mark.event.query, Work(comm_stream, mark, [])
        with pytest.raises(RingTimeoutError, match="waited 20 ms"):
            work.wait(timedelta(milliseconds=20))
        mark.event.query = lambda: (queries.append(1), query())[1]
        waiting = threading.Thread(target=lambda: ends.append(work.wait(PATIENCE)))
        waiting.start()
        while len(queries) < 2 and waiting.is_alive():
            time.sleep(1e-3)
    waiting.join()
    assert ends == [True]


def test_what_a_failure_cuts_off_has_failed(comm_streams, streams, devices):
    made = comm_streams([0, devices - 1])

    def start(comm_stream):
        return Work(comm_stream, comm_stream.give(sum_of(Tensor([1.0], comm_stream.device.index)), None), [])

    done = on_threads(made, start)[0]
    assert done.wait(PATIENCE)
    with streams[made[1].device].held():
        # Rank 0's kernel waits for rank 1's.
        work = on_threads(made, start)[0]
        aborting = threading.Thread(target=made[1].abort)
        aborting.start()
        with pytest.raises(RingRemoteError, match="rank 1"):
            work.wait(PATIENCE)
    aborting.join()
    assert done.wait() and made[0].error_of(done._mark) is None


def test_what_an_abort_cuts_off_has_failed(comm_stream, streams):
    done = Work(comm_stream, comm_stream.give([], None), [])
    streams["cuda:0"].synchronize()
    with streams["cuda:0"].held():
        pending = Work(comm_stream, comm_stream.give([], None), [])
        # The driver gives memory back when the device is through with what it has.
        aborting = threading.Thread(target=comm_stream.abort)
        aborting.start()
        while comm_stream.comm is not None:
            time.sleep(1e-3)
    aborting.join()
    with pytest.raises(RingAbortedError, match="rank 0 was aborted"):
        pending.wait()
    assert done.wait()


def test_a_device_that_is_not_there(devices):
    with pytest.raises(ringcomm.RingArgumentError, match=f"no CUDA device {devices}"):
        CudaCommStream(None, "key", 0, 1, b"", PATIENCE, f"cuda:{devices}")
