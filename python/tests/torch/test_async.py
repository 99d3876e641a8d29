"""Operations that nobody waits for yet: works, their futures, and what callbacks may do."""

import time

import pytest
import torch
import torch.distributed as dist
from ranks import PATIENCE_S, run


def until(question):
    end = time.monotonic() + PATIENCE_S
    while not question():
        assert time.monotonic() < end
        time.sleep(0.001)


def works(rank):
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert tensor[0] == 2
    # Nobody waits: asking is enough, and a future needs not even that.
    work = dist.all_reduce(tensor, async_op=True)
    until(work.is_completed)
    assert tensor[0] == 4
    future = dist.all_reduce(tensor, async_op=True).get_future()
    until(future.done)
    assert future.value()[0].data_ptr() == tensor.data_ptr() and tensor[0] == 8
    many = [torch.full((1000,), float(rank)) for _ in range(600)]
    pending = [dist.all_reduce(each, async_op=True) for each in many]
    dist.barrier()
    # A call that is waited for comes after all that were made before it.
    assert all(each[0] == 1 for each in many)
    assert all(work.is_completed() for work in pending)


def first_needs_not_the_second(rank):
    """A work is done when its own call is, whatever waits behind it on the stream."""
    first = dist.all_reduce(torch.ones(2), async_op=True)
    if rank == 0:
        second = dist.all_reduce(torch.ones(2), async_op=True)
        first.wait()
        assert not second.is_completed()
        dist.send(torch.ones(1), 1)
        second.wait()
    else:
        first.wait()
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(2))


def callbacks(rank):
    """Callbacks start operations and wait for them, in an order of their own on every rank."""
    results = []
    for round_ in range(20):
        if (round_ + rank) % 3 == 0:
            time.sleep(
                0.002
            )  # so that futures complete before `then` on one rank, after it on another

        def again(done, size=round_ + 1):
            inner = dist.all_reduce(done.value()[0][:size].clone(), async_op=True)
            return inner.get_future().wait()[0]

        def once_more(done):
            assert done.value().dim() == 1
            other = torch.ones(3)
            dist.all_reduce(other)
            return done.value() * other[0]

        tensor = torch.full((40,), float(round_))
        future = dist.all_reduce(tensor, async_op=True).get_future().then(again).then(once_more)
        results.append(future)
        dist.all_reduce(torch.ones(round_ + 1))
    for round_, future in enumerate(results):
        assert torch.equal(future.wait(), torch.full((round_ + 1,), 8.0 * round_))


def callback_fails(rank):
    def fail(done):
        raise KeyError("a defect")

    future = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(fail)
    with pytest.raises(KeyError, match="a defect"):
        future.wait()


def profiled(rank):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(2), 0, async_op=True).get_future().wait()
        time.sleep(0.2)
    names = {event.name for event in profile.events()}
    assert {"ringcomm:all_reduce", "ringcomm:broadcast"} <= names, names


@pytest.mark.parametrize(
    "function",
    [works, first_needs_not_the_second, callbacks, callback_fails, profiled],
    ids=lambda function: function.__name__,
)
def test_async(function):
    run(2, function)
