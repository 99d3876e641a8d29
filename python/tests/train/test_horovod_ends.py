"""How operations of `ringcomm.horovod.torch` end when a rank is late, leaves or dies."""

import json
import logging
import os
import signal
import time


import pytest
import torch
from torch import nn

import launching
import ringcomm.horovod.torch as hvd
from ranks_in_processes import run
from ringcomm.horovod.settings import from_environment
from test_horovod import RANKS, everyone


def again():
    """A job after a job, with names and sets begun anew."""
    for _ in range(3):
        hvd.init()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == RANKS
        assert hvd.add_process_set([0, 1]).process_set_id == 1
        hvd.shutdown()
        assert not hvd.is_initialized()


def test_a_job_after_a_job():
    run(RANKS, again)


def left_alone():
    """A rank that leaves while others wait: they are told who, and can leave, too."""
    hvd.init()
    if hvd.rank() == 1:
        hvd.barrier()
        hvd.shutdown()
        return
    hvd.barrier()
    handle = hvd.allreduce_async(torch.ones(1), name="it")
    for _ in range(2):
        with pytest.raises(hvd.HorovodInternalError, match="shut down by rank 1"):
            hvd.synchronize(handle)
    with pytest.raises(hvd.HorovodInternalError, match="shut down by rank 1"):
        hvd.allreduce(torch.ones(1))
    hvd.shutdown()


def test_a_rank_that_leaves_is_told():
    run(RANKS, left_alone)


class _Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def stalled():
    heard = _Heard()
    logging.getLogger("ringcomm.horovod").addHandler(heard)
    os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = "0.2"
    hvd.init()
    late = torch.ones(2)
    if hvd.rank() != 1:
        handle = hvd.allreduce_async(late, name="awaited")
    deadline = time.monotonic() + 60
    # Every rank does as much in the meantime, until rank 0 has said it.
    while not hvd.broadcast_object(bool(heard.texts)):
        assert time.monotonic() < deadline
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(late, name="awaited")
    assert hvd.synchronize(handle).tolist() == [1, 1]
    hvd.shutdown()
    return heard.texts


def test_who_is_waited_for_is_said_by_rank_0():
    texts, *others = run(RANKS, stalled)
    assert "allreduce.awaited waits for rank 1" in texts[0] and not any(others)


def stalled_for_good():
    os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = "0.3"
    hvd.init()
    if hvd.rank() == 1:
        # Not in a call, but the coordinator's thread answers.
        while True:
            try:
                hvd.synchronize(hvd.broadcast_async(torch.ones(1), 1, name="never"))
            except hvd.HorovodInternalError as error:
                text = str(error)
                break
    else:
        with pytest.raises(hvd.HorovodInternalError) as told:
            hvd.allreduce(torch.ones(1), name="it")
        text = str(told.value)
    assert "shut down by rank 0" in text and "STALL_SHUTDOWN" in text
    hvd.shutdown()


def test_what_stalls_for_too_long_is_ended():
    run(RANKS, stalled_for_good)


#: What the ranks other than the last, which dies, are in.
IN = {
    "negotiation": lambda: hvd.allreduce(torch.ones(1), name="it"),
    "join": hvd.join,
    "fusion": lambda: [
        hvd.synchronize(handle)
        for handle in [hvd.allreduce_async(torch.ones(9), name=f"{n}") for n in range(5000)]
    ],
    "order": lambda: hvd.allreduce(torch.ones(1), name=f"of {hvd.rank()}"),
    "object": lambda: hvd.allgather_object("it"),
}


def dying(kind, folder):
    hvd.init()
    rank = hvd.rank()
    hvd.barrier()
    if rank == RANKS - 1:
        if kind == "fusion":
            for number in range(2500):
                hvd.allreduce_async(torch.ones(9), name=f"{number}")
        with open(f"{folder}/at", "w") as file:
            file.write(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hvd.HorovodInternalError) as told:
        IN[kind]()
    assert f"rank {RANKS - 1}" in str(told.value) and "died" in str(told.value), told.value
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(1), name="after")
    hvd.shutdown()
    with open(f"{folder}/{rank}", "w") as file:
        file.write(str(time.time()))


@pytest.mark.parametrize("kind", IN)
def test_a_rank_that_dies_is_named_and_nobody_waits_on(kind, tmp_path):
    # A pool would break with its worker, and tell nothing of the others.
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_horovod_ends import dying\n"
        "dying(sys.argv[2], sys.argv[3])\n"
    )
    words = [launching.sys.executable, "-c", program, os.path.dirname(__file__), kind, tmp_path]
    ranks = [
        launching.started(
            words, tmp_path, RINGCOMM_RANK=str(rank), RINGCOMM_NRANKS=str(RANKS),
            RINGCOMM_ADDRESS=f"file://{tmp_path}/meet",
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    for rank, process in enumerate(ranks):
        said, _ = process.communicate(timeout=launching.MOST_SECONDS)
        assert process.returncode == (-signal.SIGKILL if rank == RANKS - 1 else 0), said
    for rank in range(RANKS - 1):
        assert (tmp_path / str(rank)).exists()


def drawn(folder):
    hvd.init()
    path = f"{folder}/rank{hvd.rank()}.json"
    hvd.start_timeline(path, mark_cycles=True)
    hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="it"))
    hvd.allgather(torch.ones(2), name="rows")
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(2), name="later")
    hvd.shutdown()
    return os.path.exists(path)


def test_a_timeline(tmp_path):
    assert run(RANKS, drawn, tmp_path) == [True, False, False]
    events = json.loads((tmp_path / "rank0.json").read_text())
    rows = {event["args"]["name"]: event["pid"] for event in events if event["ph"] == "M"}
    assert {"allreduce.it", "allgather.rows"} < set(rows) and "allreduce.later" not in rows
    for row, kind in (("allreduce.it", "ALLREDUCE"), ("allgather.rows", "ALLGATHER")):
        mine = [event for event in events if event["pid"] == rows[row] and event["ph"] != "M"]
        assert [(event["ph"], event.get("name")) for event in mine] == [
            ("B", f"NEGOTIATE_{kind}"), ("E", None), ("B", kind), ("E", None),
        ]  # fmt: skip
        times = [event["ts"] for event in mine]
        assert times == sorted(times)
    assert any(event.get("name") == "CYCLE_START" for event in events)


def tuned():
    """Without fusion each tensor is a call of its own, and a small cache forgets; results stay."""
    from ringcomm.horovod import fusion

    os.environ.update(
        HOROVOD_FUSION_THRESHOLD="0", HOROVOD_CYCLE_TIME="5", HOROVOD_CACHE_CAPACITY="4"
    )
    calls, reduce = [], fusion.Fusion._all_reduce
    fusion.Fusion._all_reduce = lambda *said: (calls.append(said), reduce(*said))
    hvd.init()
    coordinator = hvd.global_process_set.coordinator
    assert coordinator._settings.cycle_s == 0.005
    for turn in range(4):
        tensors = [torch.arange(1.0, 2 + size) for size in range(40)]
        handles = [
            hvd.allreduce_async(one, name=f"{index}", op=hvd.Sum)
            for index, one in enumerate(tensors)
        ]
        for one, handle in zip(tensors, handles):
            assert torch.equal(hvd.synchronize(handle), RANKS * one)
        hvd.allreduce(torch.ones(2), name=f"new {turn}")
    assert len(calls) == 4 * 41 and len(coordinator._negotiation.known) <= 4 + 40
    hvd.shutdown()


def packed(hosts):
    """Between hosts longer tensors are packed, too."""
    from ringcomm.horovod import fusion

    if hosts > 1:
        os.environ["RINGCOMM_HOSTID"] = f"{int(os.environ['RINGCOMM_RANK']) % hosts}"
    calls, reduce = [], fusion.Fusion._all_reduce
    fusion.Fusion._all_reduce = lambda *said: (calls.append(said), reduce(*said))
    hvd.init()
    tensors = [torch.full((25_000,), float(size)) for size in range(5)]
    summed = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    assert all(torch.equal(one, RANKS * tensor) for one, tensor in zip(summed, tensors))
    assert len(calls) == (5 if hosts == 1 else 1)
    hvd.shutdown()


def test_settings():
    run(RANKS, tuned)


@pytest.mark.parametrize("hosts", [1, 2])
def test_what_is_packed_depends_on_the_hosts(hosts):
    run(RANKS, packed, hosts)


def test_settings_that_are_no_numbers(monkeypatch):
    for name in ("HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CACHE_CAPACITY"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "-1")
            with pytest.raises(ValueError, match=f"{name}=-1"):
                from_environment()
    monkeypatch.setenv("HOROVOD_STALL_CHECK_DISABLE", "1")
    monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    assert from_environment().stall_warning_s == 0 and from_environment().timeline is None


def forked():
    weight = nn.Parameter(torch.ones(1))
    hvd.allreduce(weight.detach())
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            hvd.allreduce(torch.ones(1))
        except RuntimeError as error:
            os.write(writes, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"fork of a rank" in os.read(reads, 1000)
    hvd.allreduce(weight.detach())


def test_a_forked_child_is_told():
    everyone(forked)


def returned(rank_times):
    hvd.init()
    try:
        return hvd.rank() * rank_times
    finally:
        hvd.shutdown()


def test_run_starts_a_function_as_ranks():
    import ringcomm.horovod

    assert ringcomm.horovod.run(returned, (10,), np=2) == [0, 10]
    with pytest.raises(ValueError, match="ringrun -H"):
        ringcomm.horovod.run(returned, np=2, hosts="elsewhere:2")


