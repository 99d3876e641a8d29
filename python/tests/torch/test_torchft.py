"""torchft's Manager and groups on ringcomm. torchft's own tests are run by `torchft_suite.py`."""

import importlib
import importlib.util
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from in_threads import on_threads
from ranks import PATIENCE_S
from torch import nn
from torch.distributed import distributed_c10d

import ringcomm

#: Without torchft only its absence can be tested.
with_torchft = pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None, reason="needs torchft: pip install torchft"
)
KILLED_AT, REPLICAS, STEPS_TOGETHER = 5, 3, 4


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchft.process_group", None)
    monkeypatch.delitem(sys.modules, "ringcomm.torch.torchft", raising=False)
    with pytest.raises(ImportError, match="pip install 'torchft>=0.2'"):
        importlib.import_module("ringcomm.torch.torchft")


def groups(count, **more):
    from ringcomm.torch.torchft import ProcessGroupRingcomm

    return [ProcessGroupRingcomm(timedelta(seconds=PATIENCE_S), **more) for _ in range(count)]


def total(group, value):
    """The sum of what the ranks give."""
    tensor = torch.tensor([float(value)])
    work = group.allreduce([tensor], dist.ReduceOp.SUM)
    work.wait()
    assert torch.equal(work.get_future().wait()[0], tensor)
    return tensor.item()


@with_torchft
def test_a_group_is_configured_anew():
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    made = groups(3)

    def live(rank):
        group = made[rank]
        assert group.errored() is None
        group.configure(f"localhost:{store.port}/1", "0", rank, 3)
        assert total(group, rank + 1) == 6 and group.size() == 3 and group.errored() is None
        if rank == 1:
            group.shutdown()
            return
        work = group.allreduce([torch.ones(1)], dist.ReduceOp.SUM)
        assert not work.wait() and not work.is_success() and "rank 1" in str(work.exception())
        with pytest.raises(ringcomm.RingError, match="rank 1.* left"):
            work.get_future().wait()
        with pytest.raises(ringcomm.RingError, match="rank 1.* left"):
            group.barrier(distributed_c10d.BarrierOptions()).wait()
        assert "rank 1" in str(group.errored())
        group.set_timeout(timedelta(seconds=PATIENCE_S - 1))
        group.configure(f"localhost:{store.port}/2", "0", rank // 2, 2)
        assert group.errored() is None
        assert total(group, rank + 1) == 4 and group.size() == 2
        output = [torch.empty(2) for _ in range(2)]
        scattered = torch.empty(2)
        options = distributed_c10d.AllgatherOptions()
        group.allgather([output], [torch.full((2,), float(rank))], options).wait()
        assert [each[0].item() for each in output] == [0, 2]
        options = distributed_c10d.ReduceScatterOptions()
        group.reduce_scatter([scattered], [output], options).wait()
        assert scattered.tolist() == [4.0 * (rank // 2)] * 2
        group.abort()
        with pytest.raises(AssertionError, match="not initialized"):
            total(group, 0)

    on_threads(range(3), live)


@with_torchft
def test_names():
    from ringcomm.torch.torchft import ProcessGroupBabyRingcomm

    assert groups(1)[0].getBackendName() == "torchft-ringcomm"
    assert ProcessGroupBabyRingcomm().getBackendName() == "torchft-baby-ringcomm"


def lighthouse(pipe):
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="[::]:0", min_replicas=2, join_timeout_ms=200, heartbeat_timeout_ms=1000
    )
    pipe.send(server.address())
    pipe.recv()


def replica(number, address, role, pipe):
    """Tell the weights that this one ends with."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    try:
        pipe.send((True, trained(number, address, role)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    os._exit(0)


def trained(number, address, role):
    """Train until a new replica has taken part in some steps, in the place of the victim."""
    from torchft import Manager
    from torchft.ddp import DistributedDataParallel
    from torchft.optim import OptimizerWrapper

    torch.manual_seed(number)
    network = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    inner = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)

    def load(state):
        network.load_state_dict(state["network"])
        inner.load_state_dict(state["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=groups(1)[0],
        load_state_dict=load,
        state_dict=lambda: {"network": network.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=2,
        timeout=timedelta(seconds=PATIENCE_S / 2),
        quorum_timeout=timedelta(seconds=PATIENCE_S / 2),
        replica_id=f"replica_{number}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=address,
        hostname="localhost",
    )
    model = DistributedDataParallel(manager, network)
    optimizer = OptimizerWrapper(manager, inner)
    lost, last = role == "new", None
    while last is None or manager.current_step() < last:
        if role == "victim" and manager.current_step() == KILLED_AT:
            network[0].weight.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        present, step = manager.num_participants(), manager.current_step()
        lost = lost or (step >= KILLED_AT and present == REPLICAS - 1)
        if lost and last is None and present == REPLICAS:
            last = step + STEPS_TOGETHER
        optimizer.step()
    manager.shutdown()
    return last, {key: value.numpy() for key, value in network.state_dict().items()}


@with_torchft
def test_replicas_go_on_when_one_is_killed_and_another_comes():
    context = multiprocessing.get_context("fork")
    processes = []

    def start(function, *words):
        ours, theirs = context.Pipe()
        process = context.Process(target=function, args=(*words, theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        return process, ours

    try:
        _, light = start(lighthouse)
        address = light.recv()
        started = [
            start(replica, number, address, "victim" if number == 1 else "")
            for number in range(REPLICAS)
        ]
        started[1][0].join(PATIENCE_S)
        assert started[1][0].exitcode == -signal.SIGKILL
        started[1] = start(replica, REPLICAS, address, "new")
        told = []
        for _, pipe in started:
            assert pipe.poll(PATIENCE_S)
            passed, found = pipe.recv()
            assert passed, found
            told.append(found)
    finally:
        for process in processes:
            process.kill()
            process.join()
    (last, weights), *others = told
    assert last > KILLED_AT + STEPS_TOGETHER
    for step, found in others:
        assert step == last and all((found[key] == weights[key]).all() for key in weights)
