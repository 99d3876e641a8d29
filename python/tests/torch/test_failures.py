"""What goes wrong is said in one line, by name, on every rank, soon."""

import gc
import itertools
import os
import random
import signal
import threading
import time
import weakref
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from in_threads import on_threads
from ports import with_free_port
from ranks import PATIENCE_S, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from ringcomm._native import lib
from ringcomm.torch import advice, core, meet
from ringcomm.torch.barrier import MonitoredBarriers

PATIENCE = timedelta(seconds=PATIENCE_S)
#: What can be done about a rank that is gone.
SHRINK = "; go on without it by dist.shrink_group, or " if advice.SHRINKS else "; "
RESTART = f"{SHRINK}restart the job from a checkpoint, as torchrun and ringrun do with --max-restarts"


def dies_in_training(rank, hook):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(128, 128) for _ in range(6)]), bucket_cap_mb=0.1
    )
    if hook:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    data = torch.randn(4, 128)
    for step in range(6):
        if step == 5 and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            model(data).sum().backward()
        except ringcomm.RingError as error:
            return str(error), error.peer, time.monotonic() - begin
    return None


@pytest.mark.parametrize("hook", [False, True], ids=["plain", "fp16 hook"])
def test_a_dead_rank_is_named_by_backward(hook):
    told = run(3, dies_in_training, hook, may_die=[2])
    for text, peer, seconds in told[:2]:
        assert "rank 2" in text and "died" in text and peer == 2
        assert text.endswith(RESTART)
        # Not at the deadline: a death is seen.
        assert seconds < PATIENCE_S / 2


#: What a step of training is made of.
PHASES = ["forward", "backward", "step"]


def dies_at_a_moment(rank, victim, phase, share):
    """A timer kills the victim when this share of a phase is over, as long as that took before."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.BatchNorm1d(256))]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    data = torch.randn(64, 256)
    seconds = dict.fromkeys(PHASES, 0.0)

    def run(which, function):
        if step == 5 and rank == victim and which == phase:
            # The kernel ends it wherever it is, whoever has the GIL.
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, share * seconds[which]))
        begin = time.monotonic()
        result = function()
        seconds[which] = time.monotonic() - begin
        return result

    try:
        for step in itertools.count():
            loss = run("forward", lambda: model(data).square().sum())
            run("backward", loss.backward)
            run("step", optimizer.step)
            optimizer.zero_grad()
    except ringcomm.RingError as error:
        return step, str(error), error.peer


@pytest.mark.parametrize("seed", range(8))
def test_a_rank_that_dies_at_any_moment_of_training_is_named(seed):
    chance = random.Random(seed)
    victim, phase, share = chance.randrange(3), PHASES[seed % 3], chance.random()
    told = run(3, dies_at_a_moment, victim, phase, share, may_die=[victim])
    assert told.pop(victim) is None
    for step, text, peer in told:
        assert f"rank {victim} " in text and "died" in text and peer == victim, text
        # Its death, and nothing before it.
        assert step >= 5


def dies_in_a_collective(rank):
    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ringcomm.RingError, match="rank 0.*died"):
        dist.all_reduce(torch.ones(4))
    work_error = None
    try:
        dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()
    except ringcomm.RingError as error:
        work_error = error
    assert work_error is not None


def test_a_dead_rank_is_named_by_a_collective():
    run(3, dies_in_a_collective, may_die=[0])


def dies_in_the_making_of_a_group(rank):
    """When all have met, and before they have agreed on the word of their keys."""
    if rank == 0:
        core.secrets = SimpleNamespace(token_bytes=lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(ringcomm.RingError, match=f"rank 0.*died.*{RESTART}"):
        dist.new_group()


def test_a_dead_rank_is_named_by_a_group_that_is_made():
    run(2, dies_in_the_making_of_a_group, may_die=[0])


def dies_before_its_first_message(rank, wait):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ringcomm.RingError, match=f"rank 1.*died.*{RESTART}"):
        wait(torch.ones(1))


def dies_after_a_message(rank, wait):
    tensor = torch.zeros(1)
    if rank == 1:
        dist.send(tensor, 0)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(tensor, 1)
    dist.barrier()
    with pytest.raises(ringcomm.RingError, match="rank 1.*died"):
        wait(tensor)
    # Again: nobody is left, and that is known.
    with pytest.raises(ringcomm.RingError, match="rank 1.*died"):
        wait(tensor)


def from_1(tensor):
    dist.recv(tensor, 1)


def from_anyone(tensor):
    dist.recv(tensor)


def to_1(tensor):
    dist.isend(tensor, 1).wait()


@pytest.mark.parametrize("wait", [from_1, from_anyone, to_1], ids=lambda wait: wait.__name__)
def test_a_message_of_a_rank_that_died_before(wait):
    run(2, dies_before_its_first_message, wait, may_die=[1])


@pytest.mark.parametrize("wait", [from_1, from_anyone], ids=lambda wait: wait.__name__)
def test_a_message_of_a_rank_that_died(wait):
    run(2, dies_after_a_message, wait, may_die=[1])


def a_live_rank_is_left(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    store = dist.distributed_c10d._get_default_store()
    if rank == 2:
        store.wait(["missed"])
        dist.send(torch.full((1,), 2.0), 0)
        store.wait(["over"])
        return
    tensor = torch.zeros(1)
    work = dist.irecv(tensor)
    with pytest.raises(ringcomm.RingError, match="rank 1.*died"):
        dist.recv(torch.zeros(1), 1)
    store.set("missed", b"")
    work.wait()
    assert tensor.item() == 2
    store.set("over", b"")


def test_a_receive_from_anyone_waits_for_who_is_left():
    run(3, a_live_rank_is_left, may_die=[1])


def dies_second(rank, wait):
    """The group has failed by rank 2's death, and notices no other any more."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ringcomm.RingError, match="rank 2.*died"):
        dist.all_reduce(torch.ones(1))
    if rank == 1:
        store.wait(["noticed"])
        os.kill(os.getpid(), signal.SIGKILL)
    store.set("noticed", b"")
    with pytest.raises(ringcomm.RingRemoteError, match=f"rank 1.*died.*{RESTART}") as caught:
        wait(torch.zeros(1))
    assert caught.value.peer == 1


@pytest.mark.parametrize("wait", [from_1, to_1], ids=lambda wait: wait.__name__)
def test_a_message_of_the_second_rank_that_dies(wait):
    run(3, dies_second, wait, may_die=[1, 2])


def the_store_dies(rank):
    """With rank 0, which holds it; ranks 1 and 2 have no channel yet."""
    completed = threading.Event()
    if rank:
        future = dist.irecv(torch.zeros(1), 3 - rank).get_future()
        future.add_done_callback(lambda done: completed.set())
    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    assert completed.wait(PATIENCE_S / 2)
    for wait in (future.wait, lambda: dist.recv(torch.zeros(1), 3 - rank)):
        # The other may have found it out first, and gone.
        words = f"with rank {3 - rank}.*torch's store|rank {3 - rank} .*left the group"
        with pytest.raises(ringcomm.RingRemoteError, match=words):
            wait()


def test_a_store_that_is_gone():
    with_free_port(
        lambda port: run(3, the_store_dies, url=f"tcp://127.0.0.1:{port}", may_die=[0])
    )


class Unplugged:
    """A store of the caller's, with errors of its own."""

    def __getattr__(self, name):
        raise ConnectionResetError("the store was unplugged")


class Half(Unplugged):
    """One that still says that a channel's key is there."""

    def check(self, keys):
        return all(">" in key for key in keys)


def another_store_fails(rank, store):
    dist.barrier()
    post = dist.group.WORLD._post()
    post.store = store()
    # Nobody waits for the first ones, so that threads of the group's own see the store fail.
    tensor = torch.zeros(1)
    futures = [dist.irecv(tensor, 1 - rank).get_future(), dist.isend(tensor, 1 - rank).get_future()]
    words = f"with rank {1 - rank}.*torch's store has failed .the store was unplugged"
    for future in futures:
        with pytest.raises(ringcomm.RingRemoteError, match=words):
            future.wait()
    with pytest.raises(ringcomm.RingRemoteError, match=words):
        dist.recv(tensor, 1 - rank)
    dist.barrier()


@pytest.mark.parametrize("store", [Unplugged, Half], ids=lambda store: store.__name__)
def test_a_store_with_errors_of_its_own(store):
    run(2, another_store_fails, store)


def aborted_with_work_pending(rank):
    store = dist.distributed_c10d._get_default_store()
    if rank:
        store.wait(["aborted"])
        return
    tensors = [torch.ones(4), torch.ones(4, 4).t()[:2]]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    future = works[0].get_future()
    dist.group.WORLD.abort()
    store.set("aborted", b"")
    for work in works:
        with pytest.raises(ringcomm.RingError):
            work.wait()
        assert work.is_completed() and not work.is_success()
    with pytest.raises(ringcomm.RingError):
        future.wait()


def test_an_aborted_work_has_failed():
    run(2, aborted_with_work_pending)


def fails_after_one_that_was_right(rank):
    """The first of two works went well on every rank; rank 0 looks at it when the second failed."""
    first = dist.all_reduce(torch.ones(2), async_op=True)
    second = dist.all_reduce(torch.ones(4 + rank), async_op=True)
    until = time.monotonic() + PATIENCE_S / 2
    while not second.is_completed():
        assert time.monotonic() < until
    with pytest.raises(ringcomm.RingError, match="ranks disagree"):
        second.wait()
    assert first.wait() and first.is_success() and first.result()[0].tolist() == [2, 2]


def fails_in_a_batch(rank):
    group = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    group.allreduce([torch.ones(2)])
    group.allreduce([torch.ones(4 + rank)])
    both = group._end_coalescing(torch.device("cpu"))
    until = time.monotonic() + PATIENCE_S / 2
    while not both.is_completed():
        assert time.monotonic() < until
    assert not both.is_success() and "ranks disagree" in str(both.exception())
    with pytest.raises(ringcomm.RingError, match="ranks disagree"):
        both.wait()


@pytest.mark.parametrize(
    "function",
    [fails_after_one_that_was_right, fails_in_a_batch],
    ids=lambda function: function.__name__,
)
def test_whose_error_it_is(function):
    run(2, function)


def refused_in_the_middle(rank):
    """The first of two calls is on its way when the second is refused: its tensor stays."""
    tensor = torch.ones(4)
    if rank == 0:
        kept = weakref.ref(tensor)
        comm_stream, place = dist.group.WORLD._comm_stream(tensor.device), tensor.data_ptr()
        right, wrong = (place, place, 4, 7, 0), (place, place, 4, 99, 0)
        with pytest.raises(ringcomm.RingError):
            comm_stream.give([(lib.ringAllReduce, right), (lib.ringAllReduce, wrong)], [tensor])
        del tensor
        gc.collect()
        assert kept() is not None
        dist.send(torch.ones(1), 1)
        dist.barrier()
        assert kept() is None or kept()[0] == 2
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(tensor)
        dist.barrier()


def test_what_a_refused_call_leaves_running():
    run(2, refused_in_the_middle)


def destroyed_while_the_other_dies(rank):
    dist.barrier()
    if rank:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    dist.destroy_process_group()
    with pytest.raises(ringcomm.RingError):
        work.wait()


def test_a_work_that_the_end_of_the_group_failed():
    run(2, destroyed_while_the_other_dies, may_die=[1])


def disagree(rank):
    with pytest.raises(ringcomm.RingError, match="ranks disagree"):
        dist.all_reduce(torch.ones(4 + rank))


def late(rank):
    # Only what runs in the group has so little time; making it may take as long as it needs.
    init = meet._init
    meet._init = lambda *meeting: init(*meeting[:3], timedelta(seconds=4), *meeting[4:])
    group = dist.new_group()
    meet._init = init
    dist.barrier()
    if rank == 0:
        with pytest.raises(
            ringcomm.RingTimeoutError, match=r"waited \d+ ms for rank 1.*longer timeout"
        ):
            dist.all_reduce(torch.ones(1), group=group)
    dist.group.WORLD.monitored_barrier()
    work = dist.irecv(torch.ones(1), 1 - rank)
    with pytest.raises(ringcomm.RingTimeoutError, match=f"waited for rank {1 - rank}.*tag 0"):
        work.wait(timedelta(milliseconds=50))


def monitored(rank):
    dist.group.WORLD.monitored_barrier()
    # As torch's own tests expect it of gloo.
    told = {
        0: "Rank 1 failed to pass monitoredBarrier",
        2: "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0",
    }
    if rank in told:
        with pytest.raises(ringcomm.RingTimeoutError, match=told[rank]):
            dist.group.WORLD.monitored_barrier(timeout=timedelta(milliseconds=300))
    dist.barrier()


def wrong_tensors(rank):
    with pytest.raises(ValueError, match="on meta.*no data; give one that has"):
        dist.broadcast(torch.ones(2, device="meta"), 0)
    with pytest.raises(ValueError, match="do not fill"):
        dist.all_gather_into_tensor(torch.ones(5), torch.ones(2))
    with pytest.raises(ringcomm.RingError, match="root"):
        dist.group.WORLD.broadcast(torch.ones(2), 7)
    dist.barrier()


@pytest.mark.parametrize(
    "function", [disagree, late, wrong_tensors], ids=lambda function: function.__name__
)
def test_mistakes(function):
    run(2, function)


def test_everybody_in_a_monitored_barrier_learns_that_one_is_missing():
    run(3, monitored)


def test_a_rank_that_does_not_come_is_missed(tmp_path):
    """Rank 1 of 2 is alone: it says that it found no word of rank 0."""
    store = dist.FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(ringcomm.RingTimeoutError, match="rank 1 found no word of rank 0"):
        ringcomm.torch.Group(store, 1, 2, timedelta(milliseconds=200))


def test_barriers_leave_one_key():
    store, nranks = dist.HashStore(), 3

    def pass_some(rank):
        barriers = MonitoredBarriers(store, "barrier", rank, nranks)
        barriers.meet(PATIENCE, False)
        if rank == 2:
            store.wait(["barrier/2/over"])
        with pytest.raises(ringcomm.RingTimeoutError):
            barriers.meet(timedelta(milliseconds=50) if rank == 0 else PATIENCE, False)
        for _ in range(3):
            barriers.meet(PATIENCE, False)

    on_threads(range(nranks), pass_some)
    assert store.num_keys() == 1 and store.check(["barrier/5/over"])


def test_a_barrier_whose_rank_0_still_waits():
    """Rank 1 has given up before rank 0 has, which waits for a rank that does not come."""
    store = dist.HashStore()

    def outcome(rank):
        patience = timedelta(milliseconds=1500 if rank == 0 else 50)
        with pytest.raises(ringcomm.RingTimeoutError) as caught:
            MonitoredBarriers(store, "barrier", rank, 3).meet(patience, False)
        return str(caught.value)

    texts = on_threads(range(2), outcome)
    assert texts[0].startswith("Rank 2 failed to pass")
    assert "rank 0 has not said that all came" in texts[1]
