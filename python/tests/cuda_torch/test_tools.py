"""The tools for training over a communicator: their calls are on torch's current stream."""

from types import SimpleNamespace

import driver
import pytest
import torch
from in_threads import on_threads
from tensors import Tensor, empty_like, streams  # noqa: F401

from ringcomm.torch import moves
from ringcomm.torch.metrics import all_gather_object, broadcast_object
from ringcomm.torch.ranks import ranks_of

CASES = {
    "all_reduce": lambda ranks, tensor: (ranks.all_reduce(tensor), tensor)[1],
    "all_reduce, async": lambda ranks, tensor: (
        ranks.all_reduce(tensor, async_op=True).wait(),
        tensor,
    )[1],
    "all_gather": lambda ranks, tensor: ranks.all_gather(tensor),
    "broadcast": lambda ranks, tensor: (ranks.broadcast(tensor, 1), tensor)[1],
}
WANTED = {
    "all_reduce": [3.0] * 4,
    "all_reduce, async": [3.0] * 4,
    "all_gather": [[1.0] * 4, [2.0] * 4],
    "broadcast": [2.0] * 4,
}


@pytest.mark.parametrize("name", CASES)
def test_ranks(ranks, streams, devices, name):
    places = [0, devices - 1]
    comms = ranks(2, places)
    held = streams[torch.device("cuda:0")]

    def work(comm):
        tensor = Tensor([comm.rank + 1.0] * 4, comm.device)
        return tensor, CASES[name](ranks_of(comm), tensor)

    with held.held():
        found = on_threads(comms, work)
        # On the stream of calls that name none rank 0's part would be done.
        driver.default_stream(0).synchronize()
        result = found[0][1].get().tolist()
        assert result != WANTED[name]
    for (_, result), place in zip(found, places):
        streams[torch.device("cuda", place)].synchronize()
        assert result.get().tolist() == WANTED[name]


def test_objects_beside_tensors(ranks):
    def work(comm):
        return all_gather_object(comm.rank, comm), broadcast_object(["it", comm.rank], 1, comm)

    assert on_threads(ranks(2, [0, 0]), work) == [([0, 1], ["it", 1])] * 2


def test_moves(ranks, streams, devices, monkeypatch):
    monkeypatch.setattr(torch, "empty_like", empty_like)
    comms = ranks(2, [0, devices - 1])
    places = [torch.device("cuda", comm.device) for comm in comms]
    source, target = Tensor([1.0, 2.0]), Tensor([0.0, 0.0], devices - 1)
    with streams[places[0]].held():
        [copies] = moves.copies_of([source], comms, places)
        driver.default_stream(devices - 1).synchronize()
        assert copies[0] is source and copies[1].get().tolist() == [0.0, 0.0]
    streams[places[1]].synchronize()
    assert copies[1].get().tolist() == [1.0, 2.0]
    moves._exchange([(comms[0], comms[1], source, target)])
    streams[places[1]].synchronize()
    assert target.get().tolist() == [1.0, 2.0]


class Recorder:
    """A rank that writes down the streams of its calls."""

    def __init__(self):
        self.streams = {}

    rank = 0

    def send(self, tensor, peer, *, stream):
        self.streams["send"] = stream

    def recv(self, tensor, peer, *, stream):
        self.streams["recv"] = stream

    def reduce(self, tensor, into, *, root, stream):
        self.streams["reduce"] = stream


def test_moves_that_wait_for_the_host_are_on_their_tensors_streams(streams, devices, monkeypatch):
    monkeypatch.setattr(torch, "empty_like", empty_like)
    tensors = [Tensor([1.0], place) for place in (0, devices - 1)]
    wanted = [streams[tensor.device] for tensor in tensors]
    sender, receiver = Recorder(), Recorder()
    moves._exchange([(sender, receiver, *tensors)])
    assert [sender.streams["send"], receiver.streams["recv"]] == wanted
    places = [tensor.device for tensor in tensors]
    moves.Reduce.forward(SimpleNamespace(), [sender, receiver], places, *tensors)
    assert [one.streams["reduce"] for one in (sender, receiver)] == wanted
