"""The marks of a lane of a CUDA device, with streams and events that the test moves on."""

import threading
from collections import deque
from types import SimpleNamespace

import pytest
import torch

from ringcomm.errors import RingAbortedError
from ringcomm.torch.cuda import CudaLane
from ringcomm.torch.work import Work


class Event:
    """An event of a stream that does nothing until it is told."""

    def __init__(self):
        self.passed = False

    def record(self, stream):
        pass

    def query(self):
        return self.passed


@pytest.fixture
def lane(monkeypatch):
    stream = SimpleNamespace(cuda_stream=1, wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    # No machine of the tests has a device on which to make a communicator.
    made = CudaLane.__new__(CudaLane)
    made.__dict__.update(
        device="cuda:0", comm=1, rank=0, lock=threading.Lock(), stream=None, _running=deque()
    )
    made.__dict__.update(error=None, _failed_mark=None, _ended=False, _number=0)
    made.communicator = SimpleNamespace(abort=lambda: None)
    return made


def test_a_work_is_not_done_because_it_is_old(lane):
    works = [Work(lane, lane.give([], None), []) for _ in range(3000)]
    assert not works[0].is_completed()
    lane._running[0][0].event.passed = True
    assert works[0].is_completed() and not works[1].is_completed()


def test_what_is_done_is_not_remembered(lane):
    for _ in range(100):
        lane.give([], None).event.passed = True
    assert len(lane._running) < 50


def test_what_an_abort_cuts_off_has_failed(lane):
    done, pending = (Work(lane, lane.give([], None), []) for _ in range(2))
    lane._running[0][0].event.passed = True
    lane.abort()
    with pytest.raises(RingAbortedError, match="rank 0 was aborted"):
        pending.wait()
    assert done.wait()
