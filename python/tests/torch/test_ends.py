"""The end of a group while messages are under way: soon, with an error for what did not arrive.

Deadlines here are an hour: an end that waits for one fails its test.
"""

import os
import signal
import sys
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run
from test_launchers import launch, ringrun

import ringcomm
from ringcomm.torch import core
from ringcomm.torch.channel import Sender


def launched(nranks, function, *arguments, **more):
    run(nranks, function, *arguments, timeout=timedelta(hours=1), **more)


def abort():
    dist.group.WORLD.abort()


def destroy():
    dist.destroy_process_group()


def failed(work, text):
    """The work is over without anybody's help, with this error."""
    assert work.is_completed() and not work.is_success()
    with pytest.raises(ringcomm.RingError, match=text):
        work.wait()


def dies_before_its_first_message(rank, end, text):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.isend(torch.ones(1), 1)
    end()
    failed(work, text)


@pytest.mark.parametrize("end,text", [(abort, "was aborted"), (destroy, "rank 1 .*died")])
def test_a_send_to_a_rank_that_died(end, text):
    launched(2, dies_before_its_first_message, end, text, may_die=[1])


def never_receives(rank, end, text):
    """Rank 1 lives, and leaves when rank 0 has sent."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        work = dist.isend(torch.ones(1), 1)
        store.set("sent", b"")
        end()
        failed(work, text)
        store.set("over", b"")
    else:
        store.wait(["sent"])
        if end is destroy:
            dist.destroy_process_group()
        store.wait(["over"])


@pytest.mark.parametrize("end,text", [(abort, "was aborted"), (destroy, "rank 1 .*left the group")])
def test_a_send_that_nobody_receives(end, text):
    launched(2, never_receives, end, text)


def send_both_ways(rank, open_first):
    """More than a channel holds, and no rank receives it."""
    if open_first:
        one = torch.ones(1)
        works = [dist.isend(one, 1 - rank), dist.irecv(torch.zeros(1), 1 - rank)]
        for work in works:
            work.wait()
    work = dist.isend(torch.ones(3_000_000), 1 - rank)
    dist.barrier()
    dist.destroy_process_group()
    assert work.is_completed() and not work.is_success()


@pytest.mark.parametrize("open_first", [False, True], ids=["new channels", "open channels"])
def test_sends_that_wait_for_each_other(open_first):
    launched(2, send_both_ways, open_first)


def received_late(rank):
    """What was sent arrives all the same, however early its sender ends the group."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        works = [dist.isend(torch.full((size,), 7.0), 1) for size in (1, 3_000_000)]
        store.set("sent", b"")
        dist.destroy_process_group()
        assert all(work.is_success() for work in works)
    else:
        store.wait(["sent"])
        for size in (1, 3_000_000):
            tensor = torch.zeros(size)
            dist.recv(tensor, 0)
            assert tensor[-1] == 7


def test_an_end_waits_for_who_still_receives():
    launched(2, received_late)


def receives_from_nobody(rank, end, text):
    store, group = dist.distributed_c10d._get_default_store(), dist.group.WORLD
    if rank == 0:
        works = [dist.irecv(torch.zeros(1), 1), dist.irecv(torch.zeros(1))]
        futures = [work.get_future() for work in works]
        end()
        for work, future in zip(works, futures):
            failed(work, text)
            with pytest.raises(ringcomm.RingError, match=text):
                future.wait()
        with pytest.raises(ringcomm.RingUsageError, match="destroyed.*make another"):
            group.send([torch.ones(1)], 1)
        store.set("over", b"")
    else:
        store.wait(["over"])


@pytest.mark.parametrize("end,text", [(abort, "was aborted"), (destroy, "was destroyed")])
def test_receives_are_over_with_their_futures(end, text):
    launched(2, receives_from_nobody, end, text)


NEVER_DESTROYED = """
import atexit, os, sys, time
from datetime import timedelta
from pathlib import Path
ended = Path(sys.argv[1])
if os.environ["RANK"] == "0":
    atexit.register(ended.touch)  # before what ringcomm registers, and so called after it
import torch, torch.distributed as dist, ringcomm.torch
dist.init_process_group("ringcomm", timeout=timedelta(hours=1))
other = 1 - dist.get_rank()
for work in [dist.isend(torch.ones(1), other), dist.irecv(torch.zeros(1), other)]:
    work.wait()
kept = dist.irecv(torch.zeros(1), other)
time.sleep(0.5)  # in the background it is looked for
dist.barrier()
until = time.monotonic() + 60
while dist.get_rank() == 1 and not ended.exists():
    assert time.monotonic() < until, "rank 0 waits for this one"
    time.sleep(0.01)
"""


def test_a_program_that_just_ends(tmp_path):
    """Each rank has a receive on an open channel that nobody answers; the other lives on."""
    program = tmp_path / "program.py"
    program.write_text(NEVER_DESTROYED)
    launch([*ringrun(), "-np", "2", sys.executable, program, tmp_path / "ended"])


def opens_after_the_end(rank):
    """A channel that the other end opens when this one has given up is closed again."""
    if rank == 0:
        opened = []
        given_up = Sender._open

        def watched(sender):
            given_up(sender)
            opened.append(sender.comm_stream is None or sender.comm_stream.comm is None)

        Sender._open = watched
        work = dist.isend(torch.ones(1), 1)
        sender = work.channel
        dist.barrier()
        sender.abort(ringcomm.RingError("given up", ringcomm.Result.ABORTED))
        failed(work, "given up")
        dist.barrier()
        sender._opening.join()
        assert opened == [True]
    else:
        dist.barrier()
        dist.barrier()
        with pytest.raises(ringcomm.RingError):
            dist.recv(torch.zeros(1), 0)


def test_a_channel_that_opens_too_late():
    launched(2, opens_after_the_end)


def aborted_in_the_middle(rank):
    """More than a channel holds has its first part there when the group ends."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.send(torch.ones(1), 1)
        work = dist.isend(torch.ones(3_000_000), 1)
        abort()
        failed(work, "process group of rank 0 was aborted")
        store.set("over", b"")
    else:
        dist.recv(torch.zeros(1), 0)
        store.wait(["over"])


def test_an_aborted_send_says_why():
    launched(2, aborted_in_the_middle)


def aborted_while_it_receives(rank):
    """Another thread waits for a message in an open channel."""
    store, errors = dist.distributed_c10d._get_default_store(), []
    if rank == 0:
        for _ in range(2):
            dist.send(torch.ones(1), 1)
        store.wait(["over"])
        return
    dist.recv(torch.zeros(1), 0)

    def receive():
        for _ in range(2):
            try:
                dist.recv(torch.zeros(1), 0)
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    # It has had the second message, or is about to, and waits for a third.
    threading.Event().wait(0.5)
    abort()
    thread.join(60)
    assert [type(error) for error in errors] == [ringcomm.RingAbortedError], errors
    store.set("over", b"")


def test_an_aborted_receive_says_why():
    launched(2, aborted_while_it_receives)


def watch_joins():
    """Set when a comm stream of callbacks begins to wait for the other ranks."""
    joining, join = threading.Event(), core.join

    def watched(*where, **more):
        joining.set()
        return join(*where, **more)

    core.join = watched
    return joining


def sends_while_a_callback_waits(rank):
    """The callback of rank 1 comes after a message of rank 0's program, whose own waits for it."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1)
    if rank:
        store.wait(["asked"])
    work = dist.all_reduce(tensor, async_op=True)
    if rank:
        dist.recv(torch.zeros(1), 0)
    joining = watch_joins()
    future = work.get_future().then(lambda _: dist.all_reduce(tensor))
    if rank == 0:
        store.set("asked", b"")
        joining.wait()
        dist.send(torch.ones(1), 1)
    future.wait()
    assert tensor.item() == 4


def test_a_comm_stream_that_is_being_made_holds_nobody_up():
    launched(2, sends_while_a_callback_waits)


def aborts_while_a_comm_stream_is_made(rank):
    store, group = dist.distributed_c10d._get_default_store(), dist.group.WORLD
    if rank == 0:
        joining = watch_joins()
        threading.Thread(target=group._new_comm_stream, args=("cpu", 1), daemon=True).start()
        joining.wait()
        abort()
        with pytest.raises(ringcomm.RingUsageError, match="destroyed"):
            group._new_comm_stream("cpu", 2)
        store.set("over", b"")
    else:
        store.wait(["over"])


def test_an_abort_waits_for_no_stream():
    launched(2, aborts_while_a_comm_stream_is_made)


def ends_while_what_is_done_is_forgotten(rank):
    """As when a thread that completes futures looks at a call that an abort has just ended."""
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    comm_stream = dist.group.WORLD._cpu
    reached, looked = comm_stream.reached, []

    def ended_meanwhile(mark, timeout_ms):
        comm_stream.reached = reached
        comm_stream.abort()
        looked.append(mark)
        return reached(mark, timeout_ms)

    comm_stream._running.append((1, None))
    comm_stream.reached = ended_meanwhile
    comm_stream.forget()
    assert looked == [1] and not comm_stream._running


def test_an_end_takes_nothing_from_who_looks_at_it():
    launched(2, ends_while_what_is_done_is_forgotten)


def joins_too_late(rank):
    """A comm stream whose ranks meet when the group has ended on one of them ends there, too."""
    group = dist.group.WORLD
    join, joined = core.join, []

    def late(*where, **further):
        made = join(*where, **further)
        joined.append(made)
        group.abort()
        return made

    core.join = late
    with pytest.raises(ringcomm.RingUsageError, match="destroyed"):
        group._new_comm_stream("cpu", 1)
    assert [made.handle for made in joined] == [None]


def test_a_comm_stream_that_is_made_too_late():
    launched(2, joins_too_late)
