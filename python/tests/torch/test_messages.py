"""Send and receive: tags in any order, from any source, both ways at once."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from ranks import PATIENCE_S, run

import ringcomm
from ringcomm.torch.comm_stream import CommStream

#: In which a thread comes to where it waits. One that takes longer has a test that finds less.
HEAD_START_S = 0.3


def tags(rank):
    if rank == 0:
        for tag in (5, 6, 7):
            dist.send(torch.full((tag,), float(tag)), 1, tag=tag)
    elif rank == 1:
        for tag in (7, 5, 6):
            tensor = torch.zeros(tag)
            assert dist.recv(tensor, 0, tag=tag) == 0
            assert torch.equal(tensor, torch.full((tag,), float(tag)))


def any_source(rank):
    if rank == 0:
        seen = set()
        for _ in range(4):
            tensor = torch.zeros(3)
            source = dist.recv(tensor)
            assert tensor[0] == source
            seen.add(source)
        assert seen == {1, 2}
        work = dist.irecv(tensor, None, tag=3)
        work.wait()
        assert work._source_rank() == 2
    else:
        for _ in range(2):
            dist.send(torch.full((3,), float(rank)), 0)
        if rank == 2:
            dist.send(torch.ones(3), 0, tag=3)


def both_ways(rank):
    """Every rank sends first, more than any buffer holds."""
    size = dist.get_world_size()
    big = torch.full((3_000_000,), float(rank))
    got = torch.zeros_like(big)
    works = [dist.isend(big, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
    for work in works:
        work.wait()
    assert got[-1] == (rank - 1) % size
    operations = [
        dist.P2POp(dist.isend, big, (rank - 1) % size),
        dist.P2POp(dist.irecv, got, (rank + 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert got[0] == (rank + 1) % size


def nobody_waits(rank):
    """A receive goes on by itself, so that the sender can, and a future completes."""
    if rank == 0:
        tensor = torch.zeros(2_000_000)
        work = dist.irecv(tensor, 1)
        future = work.get_future()
        dist.barrier()
        assert future.wait()[0][-1] == 5 and work.is_completed()
    else:
        if rank == 1:
            dist.send(torch.full((2_000_000,), 5.0), 0)
        dist.barrier()


def beside_collectives(rank):
    """A receive that waits keeps no collective waiting."""
    tensor = torch.zeros(2)
    work = dist.irecv(tensor, 1) if rank == 0 else None
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        time.sleep(0.05)
        dist.send(torch.ones(2), 0)
    if work is not None:
        work.wait()
        assert tensor[0] == 1


def other_shape(rank):
    if rank == 0:
        dist.send(torch.ones(3), 1)
        dist.barrier()
    else:
        if rank == 1:
            with pytest.raises(
                ringcomm.RingError, match="rank 0 sent 3 float32.*receives 4 torch.float64"
            ):
                dist.recv(torch.zeros(4, dtype=torch.float64), 0)
        dist.barrier()


def strided(rank):
    whole = torch.zeros(4, 4)
    if rank == 0:
        dist.send(torch.arange(16.0).view(4, 4).t(), 1)
    elif rank == 1:
        dist.recv(whole.t(), 0)
        assert torch.equal(whole, torch.arange(16.0).view(4, 4))


def callbacks(rank):
    """A callback of a message sends, receives, and asks for its own message's future."""
    if rank == 2:
        return dist.barrier()
    ended = threading.Event()
    tensor, second = torch.full((2,), 1.0 - rank), torch.full((2,), 2.0 - 2 * rank)
    begin = dist.isend if rank == 0 else dist.irecv

    def again(done):
        assert work.get_future().done()
        begin(second, 1 - rank).wait()
        ended.set()

    if rank == 0:
        dist.barrier()
    work = begin(tensor, 1 - rank)
    future = work.get_future()
    future.add_done_callback(again)
    if rank == 1:
        dist.barrier()
    work.wait()
    future.wait()
    assert ended.wait(PATIENCE_S / 2)
    assert tensor.tolist() == [1, 1] and second.tolist() == [2, 2]


def two_threads(rank):
    """Whichever of two threads looks into the channel, each goes on as soon as its message comes:
    the sender has the second only after an answer to the first."""
    if rank == 0:
        last, first = torch.zeros(1), torch.zeros(1)
        thread = threading.Thread(target=dist.recv, args=(last, 1), kwargs={"tag": 1})
        thread.start()
        time.sleep(HEAD_START_S)
        dist.recv(first, 1, tag=2)
        dist.send(first, 1)
        thread.join()
        assert (first.item(), last.item()) == (2, 1)
    elif rank == 1:
        time.sleep(2 * HEAD_START_S)
        dist.send(torch.full((1,), 2.0), 0, tag=2)
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.full((1,), 1.0), 0, tag=1)


def a_future_beside_a_receive(rank):
    """A future completes while the program waits for another message from the same rank, which
    comes after the callback's answer."""
    if rank == 0:
        future = dist.irecv(torch.zeros(1), 1, tag=1).get_future()
        future.add_done_callback(lambda done: dist.isend(torch.ones(1), 1))
        dist.recv(torch.zeros(1), 1, tag=2)
    elif rank == 1:
        time.sleep(HEAD_START_S)
        dist.send(torch.ones(1), 0, tag=1)
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.ones(1), 0, tag=2)


def more_than_the_slots_hold(rank):
    """Short and long ones in turns: some leave at once, some wait for those before them."""
    lengths = [(1, 300, 10_000, 200_000)[at % 4 if at % 50 > 40 else at % 3] for at in range(300)]
    if rank == 0:
        given = [torch.full((length,), float(at)) for at, length in enumerate(lengths)]
        for work in [dist.isend(tensor, 1) for tensor in given]:
            work.wait()
    elif rank == 1:
        time.sleep(HEAD_START_S)
        for at, length in enumerate(lengths):
            got = torch.zeros(length)
            dist.recv(got, 0)
            assert got.eq(at).all(), f"message {at}"


def polled_while_its_channel_opens(rank):
    """A message is over when all of it is, whatever part of it the opening thread has given."""
    if rank == 0:
        send = CommStream.send

        def slowly(comm_stream, *arguments):
            time.sleep(HEAD_START_S)
            return send(comm_stream, *arguments)

        CommStream.send = slowly
        tensor = torch.ones(3_000_000)
        work = dist.isend(tensor, 1)
        while not work.is_completed():
            time.sleep(0.001)
        tensor.fill_(2)
    elif rank == 1:
        got = torch.zeros(3_000_000)
        dist.recv(got, 0)
        assert got.eq(1).all()


@pytest.mark.parametrize(
    "function",
    [
        more_than_the_slots_hold,
        polled_while_its_channel_opens,
        two_threads,
        a_future_beside_a_receive,
        callbacks,
        tags,
        any_source,
        both_ways,
        nobody_waits,
        beside_collectives,
        other_shape,
        strided,
    ],
    ids=lambda function: function.__name__,
)
def test_messages(function):
    run(3, function)
