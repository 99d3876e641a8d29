"""The group's timeout and messages: what it bounds, and what may take longer."""

import ctypes
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run

import ringcomm
from ringcomm.torch.sealing import seal

#: As long as ranks may take to meet and to open their channels beside other work.
DEADLINE_S = 5

#: prctl(2): whether other processes may read this one's memory.
PR_SET_DUMPABLE = 4


def short_deadline():
    """For messages only: the group is there, and its collectives have as long as they need."""
    dist.group.WORLD.set_timeout(timedelta(seconds=DEADLINE_S))


def silent_for_longer(rank):
    """Rank 2 has nothing to say for a while; ranks 0 and 1 go on, so nobody waits too long."""
    short_deadline()
    tensor, pause = torch.zeros(1), DEADLINE_S / 4
    beats = int(1.5 * DEADLINE_S / pause)
    if rank == 0:
        sources = [dist.recv(tensor) for _ in range(beats + 2)]
        assert sources.count(2) == 2
        dist.send(tensor, 2)
        dist.recv(tensor, 2)
    else:
        if rank == 2:
            dist.send(tensor, 0)
        for _ in range(beats):
            time.sleep(pause)
            if rank == 1:
                dist.send(tensor, 0)
        if rank == 2:
            dist.send(tensor, 0)
            dist.recv(tensor, 0)
            dist.send(tensor, 0)


def stops_in_the_middle(rank):
    """The header of a message is there, and the first part of its body."""
    short_deadline()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        # Rank 0 could read a message that is lent to it while this process is stopped.
        assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
        dist.send(torch.ones(1), 0)
        work = dist.isend(torch.ones(3_000_000), 0)
        # Until the header is on its way.
        time.sleep(2)
        store.set("pid", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(ringcomm.RingError):
            work.wait()
    elif rank == 0:
        dist.recv(torch.zeros(1), 1)
        pid = int(store.get("pid"))
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        try:
            with pytest.raises(
                ringcomm.RingTimeoutError,
                # As whoever fetches it says, this thread or the one that brings messages on.
                match="rest of a message that rank 1|waited for rank 1 in a message",
            ) as caught:
                dist.recv(torch.zeros(3_000_000), 1)
            assert caught.value.peer == 1
        finally:
            os.kill(pid, signal.SIGCONT)


def leaves_word_and_no_more(rank):
    """As a sender that dies when it has told the receiver where to meet."""
    short_deadline()
    if rank == 1:
        post = dist.group.WORLD._post()
        post.store.set("1>0", seal(post.key, "1>0", ringcomm.get_unique_id()))
    elif rank == 0:
        future = dist.irecv(torch.zeros(1), 1).get_future()
        with pytest.raises(ringcomm.RingTimeoutError, match="rank 1 to open the channel"):
            future.wait()
        # What waited for it there has ended, or is about to.
        opening = [other for other in threading.enumerate() if other.name == "ringcomm channel"]
        for thread in opening:
            thread.join(6 * DEADLINE_S)
            assert not thread.is_alive()
    dist.barrier()


def gives_up(rank):
    """What comes after a receive has waited long enough is for the next one."""
    short_deadline()
    if rank == 0:
        first, any_source, tensor = torch.zeros(1), torch.zeros(1), torch.zeros(1)
        for work in [dist.irecv(first, 1, tag=3), dist.irecv(any_source, None, tag=3)]:
            future = work.get_future()
            with pytest.raises(ringcomm.RingTimeoutError, match="in a message with tag 3"):
                work.wait(timedelta(milliseconds=50))
            assert work.is_completed() and not work.is_success()
            with pytest.raises(ringcomm.RingTimeoutError, match="in a message with tag 3"):
                future.wait()
    dist.barrier()
    if rank == 1:
        dist.send(torch.full((1,), 7.0), 0, tag=3)
    elif rank == 0:
        dist.recv(tensor, 1, tag=3)
        assert (first.item(), any_source.item(), tensor.item()) == (0, 0, 7)
    dist.barrier()


@pytest.mark.parametrize(
    "function",
    [silent_for_longer, stops_in_the_middle, leaves_word_and_no_more, gives_up],
    ids=lambda function: function.__name__,
)
def test_messages(function):
    run(3, function)
