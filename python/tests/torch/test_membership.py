"""Groups whose ranks change: shrunk, aborted, reconfigured."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ports import with_free_port
from ranks import PATIENCE_S, run
from torch import nn
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from ringcomm.torch import advice, dead_ranks
from ringcomm.torch.group import Group, Inner

pytestmark = pytest.mark.skipif(
    not advice.SHRINKS, reason=f"torch {torch.__version__} shrinks no group of a backend in Python"
)
CPU = torch.device("cpu")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def check_group(group=None):
    """Everything that a group is for works on this one."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    total = sum(range(1, size + 1))
    tensor = torch.full((5,), rank + 1.0)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [total] * 5
    works = [dist.all_reduce(torch.full((3,), rank + 1.0), group=group, async_op=True)]
    chained = works[0].get_future().then(lambda future: future.value()[0] * 2)
    assert chained.wait().tolist() == [2 * total] * 3
    assert works[0].wait()
    found = [None] * size
    dist.all_gather_object(found, rank, group=group)
    assert found == list(range(size))
    tensor.fill_(rank)
    if size > 1 and rank < 2:
        other = torch.empty(5)
        works = [dist.isend(tensor, group_dst=1 - rank, group=group)]
        dist.recv(other, group_src=1 - rank, group=group)
        works[0].wait()
        assert other.tolist() == [1 - rank] * 5
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(4, 2), process_group=group)
    model(torch.full((3, 4), rank + 1.0)).sum().backward()
    assert model.module.weight.grad[0, 0].item() == pytest.approx(3 * total / size)
    dist.barrier(group=group)


def leave_one_out(rank):
    if rank == 1:
        with pytest.raises(RuntimeError, match="rank 1 is in the exclusion list"):
            dist.shrink_group([1])
        dist.destroy_process_group()
        return None
    dist.new_group([0, 2])
    group = dist.shrink_group([1])
    assert isinstance(group, Group) and group is dist.group.WORLD
    assert (dist.get_rank(), dist.get_world_size()) == (rank // 2, 2)
    assert dist.get_process_group_ranks(group) == [0, 1]
    check_group()
    check_group(dist.new_group())
    return group.group_desc


def test_a_rank_that_lives_is_left_out():
    assert run(3, leave_one_out) == ["default:shrunken", None, "default:shrunken"]


def goes_on_after(rank, victims):
    """The victims die one after the other, each in a backward pass."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    name = rank
    for victim in victims:
        averaged = DistributedDataParallel(model, bucket_cap_mb=0.02)
        if name == victim:
            next(model.parameters()).register_hook(lambda gradient: die())
        begin = time.monotonic()
        with pytest.raises(ringcomm.RingError, match="died.*dist.shrink_group"):
            averaged(torch.ones(2, 64)).sum().backward()
        gone = dead_ranks()
        assert dead_ranks() == gone and len(gone) == 1
        dist.shrink_group(gone, shrink_flags=c10d.SHRINK_ABORT)
        assert time.monotonic() - begin < PATIENCE_S / 2
        check_group()
    return dist.get_rank(), dist.get_process_group_ranks(dist.group.WORLD)


@pytest.mark.parametrize("victims", [[0], [3], [1, 0]], ids=str)
def test_the_survivors_go_on(victims):
    left = [told for told in run(4, goes_on_after, victims, may_die=victims) if told]
    size = 4 - len(victims)
    assert left == [(rank, list(range(size))) for rank in range(size)]


def the_store_dies_too(rank):
    """Rank 0 holds it."""
    if rank == 0:
        die()
    with pytest.raises(ringcomm.RingError, match="died"):
        dist.all_reduce(torch.ones(4))
    dist.shrink_group(dead_ranks(), shrink_flags=c10d.SHRINK_ABORT)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    model = DistributedDataParallel(nn.Linear(4, 2))
    model(torch.full((1, 4), dist.get_rank() + 1.0)).sum().backward()
    assert tensor[0].item() == 2 and model.module.weight.grad[0, 0].item() == pytest.approx(1.5)
    with pytest.raises(ringcomm.RingRemoteError, match="torch's store"):
        dist.recv(tensor, 1 - dist.get_rank())
    dist.barrier()


def test_survivors_need_no_store():
    with_free_port(
        lambda port: run(3, the_store_dies_too, url=f"tcp://127.0.0.1:{port}", may_die=[0])
    )


def two_die_together(rank):
    if rank in (0, 2):
        die()
    with pytest.raises(ringcomm.RingError, match="died"):
        dist.all_reduce(torch.ones(4))
    gone = dead_ranks()
    dist.shrink_group(gone, shrink_flags=c10d.SHRINK_ABORT)
    check_group()
    return gone


def test_survivors_agree_on_all_who_are_dead():
    assert run(4, two_die_together, may_die=[0, 2]) == [None, [0, 2], None, [0, 2]]


def while_something_runs(rank):
    """Rank 2 never comes to what the others have begun."""
    store = c10d._get_default_store()
    if rank == 2:
        store.wait(["shrunk"])
        dist.group.WORLD.abort()
        return
    tensor, hooked = torch.ones(1000), []
    dist.group.WORLD.register_abort_hook(1, lambda: hooked.append(work.is_completed()))
    work = dist.all_reduce(tensor, async_op=True)
    dist.shrink_group([2], shrink_flags=c10d.SHRINK_ABORT)
    with pytest.raises(ringcomm.RingError):
        work.wait()
    check_group()
    store.set("shrunk", b"")
    return hooked


def test_what_runs_is_aborted():
    hooked = run(3, while_something_runs)[:2]
    # The abort of the rank that shrinks first may end the other's work before its own comes to it.
    assert all(len(seen) == 1 for seen in hooked) and [False] in hooked


def a_part_shrinks(rank):
    """The group's own numbers are not those of the job."""
    group = dist.new_group([1, 2, 3])
    if rank in (0, 1):
        dist.barrier()
        return None
    options = Backend.Options("ringcomm", timedelta(seconds=PATIENCE_S - 1))
    group = dist.shrink_group([0], group, pg_options=options)
    check_group(group)
    assert group._get_backend(CPU).options._timeout == timedelta(seconds=PATIENCE_S - 1)
    tensor = torch.full((1,), float(rank))
    dist.broadcast(tensor, 3, group=group)
    assert tensor.item() == 3
    dist.barrier()
    return dist.get_process_group_ranks(group), dist.get_world_size()


def test_a_part_of_the_job_shrinks():
    assert run(4, a_part_shrinks)[2:] == [([2, 3], 4)] * 2


def beside_another(rank):
    if rank == 0:
        dist.destroy_process_group()
        return
    group = dist.shrink_group([0])
    assert type(group._get_backend(CPU)) is Inner
    check_group()


def test_of_several_backends_torch_keeps_one():
    # That of the accelerator, which it then takes for the CPU's.
    run(3, beside_another, backend="cpu:gloo,cuda:ringcomm")


def mistakes(rank):
    backend = dist.group.WORLD._get_backend(CPU)
    with pytest.raises(ValueError, match=f"rank {rank} is to be left out.*destroy_process_group"):
        backend.shrink([rank])
    with pytest.raises(ValueError, match=r"ranks \[\] cannot.*name some of ranks 0 to 1"):
        backend.shrink([])
    with pytest.raises(ValueError, match=r"ranks \[7\] cannot.*dead_ranks"):
        backend.shrink([7])
    # torch's own.
    for wrong, error in (([], ValueError), ([5], ValueError), (["1"], TypeError), (1, TypeError)):
        with pytest.raises(error):
            dist.shrink_group(wrong)
    with pytest.raises(TypeError, match="not ringcomm's"):
        dead_ranks(dist.new_group(backend="gloo"))
    # Nothing has come of it.
    check_group()


def test_mistakes():
    run(2, mistakes)


def test_without_a_group():
    with pytest.raises(ValueError, match="init_process_group"):
        dead_ranks()


def a_late_rank_is_named(rank):
    """Rank 1 lives and does not come to the shrinking."""
    if rank < 2:
        options = Backend.Options("ringcomm", timedelta(milliseconds=300))
        if rank == 0:
            with pytest.raises(ringcomm.RingTimeoutError, match=r"missing: \[1\]"):
                dist.shrink_group([2], pg_options=options)
    # The group is as it was.
    check_group()


def test_a_rank_that_does_not_come_to_shrink():
    run(3, a_late_rank_is_named)


def hooks(rank):
    calls = []
    group = dist.group.WORLD
    assert group.supports_abort_hooks
    for number in (1, 2):
        group.register_abort_hook(number, lambda number=number: calls.append(number))
    group.unregister_abort_hook(2)
    with pytest.raises(ValueError, match="no abort hook has the number 2"):
        group.unregister_abort_hook(2)
    dist.barrier()
    if rank:
        with pytest.raises(ringcomm.RingError):
            dist.all_reduce(torch.ones(1))
    c10d._abort_process_group()
    group.abort()
    assert calls == [1] and not dist.is_initialized()
    with pytest.raises(ringcomm.RingUsageError, match="destroyed"):
        group.allreduce([torch.ones(1)])


def test_hooks_run_before_the_group_aborts():
    run(2, hooks)


def meet(rank, uuid, ranks, number=None, kind=list):
    """Reconfigure to these ranks of the job, in this order."""
    store = c10d._get_default_store()
    store.set(f"{uuid}/{rank}", c10d._get_reconfigure_handle())
    handles = [store.get(f"{uuid}/{each}").decode() for each in ranks]
    return c10d._reconfigure(uuid if number is None else number, kind(handles)).wait()


def changes_ranks(rank):
    assert c10d._supports_reconfigure()
    with pytest.raises(ringcomm.RingUsageError, match=r"no ranks yet.*reconfigure\(\)"):
        dist.all_reduce(torch.ones(1))
    with pytest.raises(ringcomm.RingUsageError, match="no ranks yet"):
        dist.group.WORLD.monitored_barrier()
    places = []
    for uuid, ranks in enumerate([[1, 0], [2, 1, 0], [2, 0], [0, 1, 2]]):
        if rank in ranks:
            meet(rank, uuid, ranks)
            check_group()
            places.append((dist.get_rank(), dist.get_world_size()))
    check_group(dist.new_group())
    # Handles without an order: those who are there keep theirs.
    meet(rank, 10, range(3), kind=set)
    assert dist.get_rank() == rank
    handle = c10d._get_reconfigure_handle()
    for handles, words in (
        ([handle, handle], "a handle twice"),
        ([], "no handle of this rank"),
        (["ringcomm:0:00000000:00"], "get_reconfigure_handle"),
    ):
        with pytest.raises(ValueError, match=words):
            c10d._reconfigure(20, handles)
    with pytest.raises(ValueError, match="uuid 10 was used before"):
        c10d._reconfigure(10, [handle])
    check_group()
    return places


def test_a_group_gets_other_ranks():
    assert run(3, changes_ranks, enable_reconfigure=True) == [
        [(1, 2), (2, 3), (1, 2), (0, 3)],
        [(0, 2), (1, 3), (1, 3)],
        [(0, 3), (0, 2), (2, 3)],
    ]


def survives_by_reconfiguring(rank):
    meet(rank, 0, range(3))
    model = DistributedDataParallel(nn.Linear(4, 2))
    if rank == 0:
        die()
    with pytest.raises(ringcomm.RingError, match="rank 0.*died"):
        dist.all_reduce(torch.ones(1))
    begin = time.monotonic()
    options = [c10d._get_reconfigure_handle(), "ringcomm:0:00000000:00"]
    with pytest.raises(ringcomm.RingTimeoutError):
        c10d._reconfigure(1, options, timeout=timedelta(milliseconds=300))
    assert time.monotonic() - begin < PATIENCE_S / 2
    meet(rank, 2, [1, 2])
    # The model has the group that it had.
    model(torch.full((1, 4), dist.get_rank() + 1.0)).sum().backward()
    assert model.module.weight.grad[0, 0].item() == pytest.approx(1.5)
    check_group()


def test_a_group_is_reconfigured_after_a_death():
    run(3, survives_by_reconfiguring, may_die=[0], enable_reconfigure=True)


def test_a_group_of_several_backends_keeps_its_ranks():
    with pytest.raises(RuntimeError, match="several backends.*ringcomm alone"):
        dist.init_process_group(
            "cpu:ringcomm,cuda:gloo",
            store=dist.HashStore(),
            rank=0,
            world_size=1,
            enable_reconfigure=True,
        )
