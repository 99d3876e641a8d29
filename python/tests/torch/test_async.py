"""Operations that nobody waits for yet: works, their futures, and what callbacks may do."""

import gc
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from ranks import PATIENCE_S, run

from ringcomm._native import lib
from ringcomm.torch.collectives import TELLS


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


def what_is_done_keeps_no_tensors(rank):
    for operation in (dist.all_reduce, lambda one, async_op: dist.broadcast(one, 1, async_op=True)):
        tensor = torch.ones(4)
        kept = weakref.ref(tensor)
        operation(tensor, async_op=True).wait()
        del tensor
        gc.collect()
        assert kept() is None
    big = torch.ones(4000)
    kept = weakref.ref(big)
    if rank == 0:
        dist.isend(big, 1).wait()
    else:
        dist.irecv(big, 0).wait()
    del big
    gc.collect()
    # A message that was sent goes when it has left.
    until(lambda: kept() is None)


def interrupted(rank):
    """Ctrl-C comes when the stream has a call and Python does not know it yet."""
    tensor = torch.ones(4)
    if rank == 1:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(tensor)
        dist.barrier()
        return
    kept, place = weakref.ref(tensor), tensor.data_ptr()

    def call(*arguments):
        assert lib.ringAllReduce(*arguments) == 0
        raise KeyboardInterrupt

    try:
        dist.group.WORLD._comm_stream(tensor.device).give([(call, (place, place, 4, 7, 0))], [tensor])
    except KeyboardInterrupt:
        pass
    del tensor
    gc.collect()
    assert kept() is not None
    dist.send(torch.ones(1), 1)
    dist.barrier()


def waits_after_backward(rank):
    """Rank 1's operation, started inside its backward pass, needs what it does after that."""
    weight = torch.nn.Parameter(torch.ones(3))
    x = torch.ones(3, requires_grad=True)
    works = []
    weight.register_post_accumulate_grad_hook(
        lambda one: works.append(dist.all_reduce(one.grad, async_op=True))
    )
    sent = torch.zeros(3)
    if rank == 0:
        dist.recv(sent, 1)
    (weight * x).sum().backward()
    if rank == 1:
        dist.send(x.grad, 0)
    works[0].wait()
    assert weight.grad.tolist() == [2.0] * 3
    assert rank or sent.tolist() == [1.0] * 3


def pass_forgets(rank):
    """What a backward pass has started is not kept until the next pass."""
    weight = torch.nn.Parameter(torch.ones(3))
    kept = []

    def hook(one):
        tensor = one.grad.clone()
        kept.append(weakref.ref(tensor))
        dist.all_reduce(tensor, async_op=True).get_future()

    weight.register_post_accumulate_grad_hook(hook)
    weight.sum().backward()
    dist.barrier()
    until(lambda: gc.collect() >= 0 and kept[0]() is None)


def profiled(rank):
    store = dist.distributed_c10d._get_default_store()
    ended = threading.Semaphore(0)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        dist.all_reduce(torch.ones(2))
        if rank:
            store.wait(["made"])
        pending = [
            dist.all_reduce(torch.ones(6), async_op=True),
            dist.broadcast(torch.ones(3), 0, async_op=True),
            dist.all_gather([torch.ones(7), torch.ones(7)], torch.ones(7), async_op=True),
            dist.isend(torch.ones(4, 5), 1 - rank),
            dist.irecv(torch.ones(4, 5), 1 - rank),
        ]
        for work in pending:
            # Called back when the event has its end, too; without one it would not be shown.
            work.get_future().add_done_callback(lambda done: ended.release())
        store.set("made", b"")
        assert all([ended.acquire(timeout=PATIENCE_S) for _ in pending])
    found = [event for event in profile.events() if event.name.startswith("ringcomm:")]
    assert sorted((event.name, event.input_shapes) for event in found) == [
        ("ringcomm:all_gather", [[7]]),
        ("ringcomm:all_reduce", [[2]]),
        ("ringcomm:all_reduce", [[6]]),
        ("ringcomm:broadcast", [[3]]),
        ("ringcomm:recv", [[4, 5]]),
        ("ringcomm:send", [[4, 5]]),
    ]
    first, second = [event.is_async for event in found if event.name == "ringcomm:all_reduce"]
    # Where torch does not say that the caller waits, the first is on the stream, too. On rank 1 an
    # operation may be done as soon as it is made.
    assert not (first and TELLS) and (second or rank)


@pytest.mark.parametrize(
    "function",
    [
        works,
        first_needs_not_the_second,
        callbacks,
        callback_fails,
        what_is_done_keeps_no_tensors,
        interrupted,
        waits_after_backward,
        pass_forgets,
        profiled,
    ],
    ids=lambda function: function.__name__,
)
def test_async(function):
    run(2, function)
