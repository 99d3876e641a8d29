"""Groups: how they are made, of which ranks, in which store, and their end."""

import os
import signal
import socket
import threading
import time
import warnings
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ports import with_free_port
from ranks import PATIENCE_S, run

import ringcomm
from ringcomm.torch import meet
from ringcomm.torch.core import Core
from ringcomm.torch.futures import level
from ringcomm.torch.group import HAS_INNER, create
from ringcomm.torch.meet import another


def subgroups(rank):
    pair = dist.new_group([0, 2])
    tensor = torch.ones(2)
    if rank in (0, 2):
        dist.all_reduce(tensor, group=pair)
        assert tensor[0] == 2 and dist.get_rank(pair) == rank // 2
        dist.broadcast(tensor, 2, group=pair)
    else:
        assert pair == dist.GroupMember.NON_GROUP_MEMBER
    alone = [dist.new_group([each]) for each in range(3)][rank]
    dist.all_reduce(tensor, group=alone)
    everyone = dist.new_group(timeout=timedelta(seconds=60))
    work = dist.barrier(everyone, async_op=True)
    work.wait()
    if rank in (0, 2):
        dist.destroy_process_group(pair)
    assert dist.get_backend(everyone) == "ringcomm"


def without_network(rank):
    """Ranks of one machine that know it meet without the network."""

    def refused():
        raise AssertionError("an id that leads through the network")

    meet.get_unique_id = refused
    everyone = dist.new_group()
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=everyone)
    work = dist.isend(tensor, (rank + 1) % 3, everyone)
    dist.recv(tensor, (rank + 2) % 3, everyone)
    work.wait()
    assert tensor[0] == 3
    pair = dist.new_group([0, 2])
    if rank != 1:
        dist.all_reduce(tensor, group=pair)
        assert tensor[0] == 6


def split_without_network(rank):
    meet.get_unique_id = None
    part = dist.split_group(split_ranks=[[0, 2], [1]])
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=part)
    assert tensor[0] == (1 if rank == 1 else 2)


def after_the_group_of_all(rank):
    """What a group is made of may have ended."""
    parent = meet.Parent(dist.group.WORLD._cpu.communicator, [0, 1])
    dist.destroy_process_group()
    assert len(parent.unique_id()) == 128


def split(rank):
    parts = [[0, 2], [1]]
    group = dist.split_group(split_ranks=parts)
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor, group=group)
    assert tensor[0] == (1 if rank == 1 else 2)
    turned = dist.split_group(split_ranks=[[2, 1]])
    if rank:
        assert dist.get_rank(turned) == 2 - rank
    else:
        assert turned == dist.GroupMember.NON_GROUP_MEMBER


def again(rank):
    """The same store serves the next group of the same name, and nothing of the last is seen."""
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    for turn, late in enumerate((0, 2, 0)):
        dist.init_process_group("ringcomm", store=store, rank=rank, world_size=3)
        if rank == late:
            time.sleep(0.2)
            store.set(f"came/{turn}", b"")
        dist.group.WORLD.monitored_barrier()
        assert store.check([f"came/{turn}"])
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 3
        for tag in range(2):
            target, source = (rank + 1) % 3, (rank - 1) % 3
            work = dist.isend(torch.full((1,), float(turn)), target, tag=tag)
            dist.recv(tensor, source, tag=tag)
            work.wait()
            assert tensor.item() == turn
        dist.destroy_process_group()


def to_the_store(port):
    """Connections of this process to whoever listens on this port of the machine."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{entry}"))
        except OSError:
            pass  # what lists them
    lines = [line for kind in ("tcp", "tcp6") for line in open(f"/proc/self/net/{kind}")]
    rows = [line.split() for line in lines if not line.lstrip().startswith("sl")]
    ends = [row[2] for row in rows if f"socket:[{row[9]}]" in found]
    return sum(int(end.rsplit(":", 1)[1], 16) == port for end in ends)


def connecting(rank, port):
    """Groups of a process have one further connection to the store, however many they are."""
    before = to_the_store(port)
    for _ in range(2):
        groups = [dist.new_group() for _ in range(3)]
        tensor = torch.ones(1)
        for group in groups:
            work = dist.isend(tensor, 1 - rank, group)
            dist.recv(torch.empty(1), 1 - rank, group)
            work.wait()
            future = dist.all_reduce(tensor, group=group, async_op=True).get_future()
            future.then(lambda _, group=group: dist.all_reduce(torch.ones(1), group=group)).wait()
        assert before == 1 and to_the_store(port) == 2
        for group in groups:
            dist.destroy_process_group(group)


def test_connections_to_the_store():
    def attempt(port):
        run(2, connecting, port, url=f"tcp://127.0.0.1:{port}")

    with_free_port(attempt)


def test_who_waits_keeps_no_connection():
    """One thread waits for what another says over the same connection."""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    connection = another(dist.PrefixStore("a", store))
    assert another(dist.PrefixStore("b", dist.PrefixStore("a", store))) is connection
    came = []

    def wait():
        connection.wait(["key"], timedelta(seconds=PATIENCE_S))
        came.append(connection.get("key"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    connection.set("key", b"word")
    waiting.join(timeout=PATIENCE_S)
    assert came == [b"word"] and store.get("key") == b"word"
    connection.delete_key("key")
    with pytest.raises(RuntimeError, match="timeout.*key"):
        connection.wait(["key"], timedelta(milliseconds=20))


class Slow:
    """A store that takes its time to delete."""

    def __init__(self, store):
        self.set, self.get, self.wait, self.check = store.set, store.get, store.wait, store.check
        self._store = store

    def delete_key(self, key):
        time.sleep(0.2)
        self._store.delete_key(key)


def meeting(rank):
    """Who has joined a group finds no word of its meeting in the store."""
    store = Slow(dist.distributed_c10d._get_default_store())
    core = Core()
    core._set_up(store, rank, 3, timedelta(seconds=60))
    assert not store.check(["ringcomm/cpu/0/0"])
    core.shutdown()


def test_a_meeting_that_fails_leaves_no_word(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    words = "only 1 of 2 ranks.*word of rank 1.*give the group a longer timeout in init_process_group"
    with pytest.raises(ringcomm.RingTimeoutError, match=words):
        ringcomm.torch.Group(store, 0, 2, timedelta(milliseconds=200))
    assert not store.check(["ringcomm/cpu/0/0/answer/1"])
    words = "rank 1 found no word of rank 0.*give the group a longer timeout in init_process_group"
    with pytest.raises(ringcomm.RingTimeoutError, match=words):
        ringcomm.torch.Group(store, 1, 2, timedelta(milliseconds=200))
    assert not store.check(["ringcomm/cpu/0/0/ask/1"])


def ended(rank):
    group = dist.group.WORLD
    dist.barrier()
    dist.destroy_process_group()
    with pytest.raises(ringcomm.RingError, match="destroyed"):
        group.allreduce([torch.ones(1)]).wait()


#: What torch itself leaves to backends that it has made.
needs_inner = pytest.mark.skipif(not HAS_INNER, reason="needs torch 2.14")


@pytest.mark.parametrize(
    "function",
    [
        subgroups,
        pytest.param(split, marks=needs_inner),
        without_network,
        pytest.param(split_without_network, marks=needs_inner),
        after_the_group_of_all,
        again,
        meeting,
        ended,
    ],
    ids=lambda function: function.__name__,
)
def test_groups(function):
    run(3, function)


def beside_gloo(rank):
    """A group of several backends gets one for its device only; its works are torch's own."""
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0] == 2
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert tensor[0] == 4
    rows = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(rows, torch.full((2,), float(rank)))
    assert rows[1].tolist() == [1, 1]
    dist.barrier()
    group = dist.group.WORLD
    assert group._get_backend(torch.device("cpu")).name() == "ringcomm"


@needs_inner
def test_several_backends():
    run(2, beside_gloo, backend="cpu:ringcomm,cuda:gloo")


def told_by_torch(rank):
    """torch's own function says which backends a group has; another caller does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        dist.barrier(dist.new_group())
    place = dist.PrefixStore("by hand", dist.distributed_c10d._get_default_store())
    options = SimpleNamespace(
        store=place, group_rank=rank, group_size=2, timeout=timedelta(seconds=60)
    )
    with pytest.warns(RuntimeWarning, match="whether its group has other backends.*make a group"):
        group = create(options)
    assert isinstance(group, ringcomm.torch.Group)
    group.barrier().wait()
    group.shutdown()


def test_a_group_whose_backends_are_not_told():
    run(2, told_by_torch)


def total(rank):
    tensor = torch.full((2,), rank + 1.0)
    dist.all_reduce(tensor)
    return tensor[0].item()


def test_over_tcp():
    assert with_free_port(lambda port: run(2, total, url=f"tcp://127.0.0.1:{port}")) == [3, 3]


def test_a_port_that_is_taken_meanwhile():
    """The tests that need a port try again, and only then."""
    tried = []

    def taken_twice(port):
        tried.append(port)
        if len(tried) < 3:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
                listener.listen()
                run(1, total, url=f"tcp://127.0.0.1:{port}")
        return len(tried)

    assert with_free_port(taken_twice) == 3


def test_one_rank_alone():
    assert run(1, total) == [1]


def in_a_callback(peer):
    """What a callback calls has a comm stream of its own, which is made when it is needed."""
    level.depth = 1
    dist.all_reduce(torch.ones(1))


def leaving(peer):
    """It leaves nothing, and so tells no rank that its parent does."""
    group = dist.group.WORLD
    group.shutdown()
    group.allreduce([torch.ones(1)]).wait()


#: What a forked child does: each is told that it is one, and the other rank notices nothing.
IN_A_FORK = {
    "all_reduce": lambda peer: dist.all_reduce(torch.ones(1)),
    "an asynchronous all_reduce": lambda peer: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    "all_reduce in a callback": in_a_callback,
    "send": lambda peer: dist.send(torch.zeros(1), peer),
    "recv": lambda peer: dist.recv(torch.zeros(1), peer),
    "recv from any": lambda peer: dist.recv(torch.zeros(1)),
    "isend": lambda peer: dist.isend(torch.zeros(1), peer).wait(),
    "monitored_barrier": lambda peer: dist.group.WORLD.monitored_barrier(),
    "shutdown": leaving,
}


def told_in_a_fork(call, peer):
    """Make a call in a forked child, which has to be told what it is, in torch's words."""
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            # Far less than the patience of a group: nothing is waited for.
            signal.alarm(PATIENCE_S // 3)
            call(peer)
        except ringcomm.RingUsageError as error:
            words = "this process is a fork of the one that made the process group; use "
            status = 7 if str(error).startswith(words) else 8
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def goes_on(rank):
    """The ranks themselves, after that, in the order in which they would without it."""
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2
    if rank == 0:
        dist.send(torch.full((1,), 5.0), 1)
    else:
        dist.recv(tensor, 0)
        assert tensor.item() == 5
    dist.group.WORLD.monitored_barrier()


def in_a_fork(rank, name):
    told_in_a_fork(IN_A_FORK[name], 1 - rank)
    goes_on(rank)


def in_a_fork_of_one_that_has_called(rank, name):
    """As before, when the rank has a stream, channels to and from the other, and works."""
    work = dist.all_reduce(torch.ones(1), async_op=True)
    sent, tensor = dist.isend(torch.ones(1), 1 - rank), torch.zeros(1)
    dist.recv(tensor, 1 - rank)
    for one in (sent, work):
        one.wait()
    in_a_fork(rank, name)


@pytest.mark.parametrize(
    "function", [in_a_fork, in_a_fork_of_one_that_has_called], ids=["first", "later"]
)
@pytest.mark.parametrize("name", IN_A_FORK)
def test_a_forked_child_is_told(name, function):
    run(2, function, name)


def while_the_other_receives(rank, name):
    """The first message of its rank: what the child sends is not taken for it."""
    tensor = torch.zeros(1)
    if rank == 1:
        work = dist.irecv(tensor, 0)
        dist.barrier()
        work.wait()
        assert tensor.item() == 3
        return
    dist.barrier()
    told_in_a_fork(IN_A_FORK[name], 1)
    dist.send(torch.full((1,), 3.0), 1)


@pytest.mark.parametrize("name", ["send", "isend"])
def test_a_forked_child_is_not_taken_for_its_parent(name):
    run(2, while_the_other_receives, name)


def waits_in_a_fork(rank):
    """For what its parent has begun, and the other rank has not."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["told"])
    tensor = torch.zeros(1)
    works = [
        dist.all_reduce(torch.ones(1), async_op=True),
        dist.irecv(tensor, 1 - rank),
        dist.isend(torch.full((1,), rank + 1.0), 1 - rank),
    ]
    if rank == 0:
        for work in works:
            told_in_a_fork(lambda peer: work.wait(), 1)
        store.set("told", b"")
    for work in works:
        work.wait()
    assert tensor.item() == 2 - rank
    goes_on(rank)


def beside_a_call(rank):
    """Another thread of the parent is in a call, and has its lock."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["told"])
        dist.all_reduce(torch.ones(1))
    else:
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
        thread.start()
        while not dist.group.WORLD._cpu.lock.locked():
            time.sleep(0.01)
        told_in_a_fork(IN_A_FORK["all_reduce"], 1)
        store.set("told", b"")
        thread.join()
    goes_on(rank)


@pytest.mark.parametrize(
    "function", [waits_in_a_fork, beside_a_call], ids=lambda function: function.__name__
)
def test_a_fork_of_a_rank_in_the_middle(function):
    run(2, function)
