"""Operations of `ringcomm.horovod.torch` are known by name: ranks submit them in any order."""

import random
import threading
import time
from functools import partial

import pytest
import torch
from torch import nn

import ringcomm.horovod.torch as hvd
from ranks_in_processes import run
from test_horovod import RANKS, everyone, joined


def in_other_orders():
    """Same shapes, another order on each rank: each name has its own sum."""
    names = [f"it{number}" for number in range(7)]
    mine = names[hvd.rank() :] + names[: hvd.rank()]
    handles = {
        name: hvd.allreduce_async(torch.full((5,), float(name[2:])), name=name, op=hvd.Sum)
        for name in mine
    }
    for name in reversed(mine):
        assert hvd.synchronize(handles[name]).tolist() == [RANKS * float(name[2:])] * 5


def of_every_kind():
    """Operations of several kinds, in another order on each rank, none of which waits."""
    rank = hvd.rank()
    starts = [
        lambda: hvd.allreduce_async(torch.full((2,), 1.0 + rank), name="one", op=hvd.Sum),
        lambda: hvd.allgather_async(torch.full((rank, 1), rank), name="two"),
        lambda: hvd.broadcast_async(torch.tensor([rank]), 1, name="three"),
        lambda: hvd.alltoall_async(torch.arange(3) + 10 * rank, name="four"),
        lambda: hvd.reducescatter_async(torch.arange(3.0), name="five", op=hvd.Sum),
        lambda: hvd.sparse_allreduce_async(torch.eye(2)[rank % 2].to_sparse(), "six", hvd.Sum),
    ]
    order = list(range(len(starts)))
    random.Random(rank).shuffle(order)
    handles = {index: starts[index]() for index in order}
    got = [hvd.synchronize(handles[index]) for index in range(len(starts))]
    assert got[0].tolist() == [6, 6] and got[1].tolist() == [[1], [2], [2]]
    assert got[2].tolist() == [1] and got[3].tolist() == [rank, 10 + rank, 20 + rank]
    assert got[4].tolist() == [3.0 * rank] and got[5].to_dense().tolist() == [2, 1]


def nameless():
    """Without names, the first of a kind belongs to the first of that kind."""
    first = [hvd.allreduce_async, hvd.allgather_async]
    order = first if hvd.rank() else first[::-1]
    handles = {start: start(torch.tensor([1.0 + hvd.rank()])) for start in order}
    assert hvd.synchronize(handles[hvd.allreduce_async]).tolist() == [2]
    assert hvd.synchronize(handles[hvd.allgather_async]).tolist() == [1, 2, 3]


def from_threads():
    """Threads make calls that wait, each rank's in its own time."""
    answers = {}

    def calls(number):
        for turn in range(20):
            time.sleep(random.random() / 2000)
            name = f"thread{number}.{turn}"
            answers[name] = hvd.allreduce(torch.tensor([number + 0.5 * turn]), name=name).item()

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 60
    for name, answer in answers.items():
        number, turn = map(int, name[6:].split("."))
        assert answer == number + 0.5 * turn


def two_of_one_name():
    tensor = torch.ones(3)
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(tensor, name="twice")
        with pytest.raises(ValueError, match="'allreduce.twice' has been submitted already"):
            hvd.allreduce_async(tensor, name="twice")
    hvd.barrier()
    if hvd.rank():
        handle = hvd.allreduce_async(tensor, name="twice")
    assert hvd.synchronize(handle).tolist() == [1] * 3
    # Once it is done, the name is free.
    assert hvd.allreduce(tensor, name="twice").tolist() == [1] * 3


DIFFERING = {
    "shape": lambda rank: hvd.allreduce(torch.ones(2 + rank % 2), name="it"),
    "dimensions": lambda rank: hvd.allreduce(torch.ones(*[(4,), (2, 2), (4,)][rank]), name="it"),
    "type": lambda rank: hvd.allreduce(
        torch.ones(2, dtype=torch.int32 if rank else torch.int64), name="it"
    ),
    "op": lambda rank: hvd.allreduce(torch.ones(2), name="it", op=hvd.Min if rank else hvd.Max),
    "factor": lambda rank: hvd.allreduce(torch.ones(2), name="it", prescale_factor=1.0 + rank),
    "root": lambda rank: hvd.broadcast(torch.ones(2), rank, name="it"),
    "rows": lambda rank: hvd.reducescatter(torch.ones(3 + rank), name="it"),
    "count": lambda rank: hvd.grouped_allreduce([torch.ones(2)] * (1 + rank), name="it"),
}

SIDES = {
    "shape": ["ranks 0, 2: allreduce of float32 2 (op Average)", "rank 1: allreduce of float32 3"],
    "dimensions": ["ranks 0, 2: allreduce of float32 4", "rank 1: allreduce of float32 2x2"],
    "type": ["rank 0: allreduce of int64 2", "ranks 1, 2: allreduce of int32 2"],
    "op": ["rank 0: allreduce of float32 2 (op Max)", "ranks 1, 2: allreduce of float32 2 (op M"],
    "factor": ["rank 2: allreduce of float32 2 (op Average, prescale_factor 3.0)"],
    "root": ["rank 0: broadcast of float32 2 (root_rank 0)", "rank 2: broadcast of float32 2 (r"],
    "rows": ["rank 1: reducescatter of float32 4"],
    "count": ["rank 2: allreduce of float32 2, float32 2, float32 2 (op Average)"],
}


def differing(kind):
    with pytest.raises(hvd.HorovodInternalError) as told:
        DIFFERING[kind](hvd.rank())
    text = str(told.value)
    assert ".it' is not the same operation on all ranks" in text, text
    for side in SIDES[kind]:
        assert side in text, text
    # And the job goes on, also under that name.
    assert hvd.allreduce(torch.ones(1), name="it", op=hvd.Sum).item() == RANKS


@pytest.mark.parametrize("kind", DIFFERING)
def test_what_differs_is_told_on_all_ranks(kind):
    everyone(partial(differing, kind))


def many(count):
    """Threads submit in orders of their own, and wait in others, on every rank another."""
    rank, lock = hvd.rank(), threading.Lock()
    wrong = []

    def calls(number):
        try:
            submits(number)
        except BaseException as error:
            wrong.append(error)
            # Or the other ranks would wait for what does not come.
            hvd.shutdown()

    def submits(number):
        rng = random.Random(97 * rank + number)
        turns = [(number, turn) for turn in range(count // 3)]
        for at in range(0, len(turns), 40):
            part = turns[at : at + 40]
            rng.shuffle(part)
            handles = {}
            for one, turn in part:
                # Floats whose sums need all their bits, and sizes that are packed and that are not.
                base = torch.arange(1 + (7 * turn) % 50, dtype=torch.float64)
                if turn % 211 == 0:
                    base = torch.arange(20000, dtype=torch.float64)
                mine = (base + 1) / (3 + rank) + one
                handles[one, turn] = base, hvd.allreduce_async(
                    mine, name=f"{one}/{turn}", op=hvd.Sum
                )
                if rng.random() < 0.1:
                    hvd.poll(handles[one, turn][1])
            # To wait before all of a part is submitted would be a deadlock of the program's own.
            rng.shuffle(part)
            for one, turn in part:
                base, handle = handles[one, turn]
                expected = sum((base + 1) / (3 + other) + one for other in range(hvd.size()))
                if not torch.equal(hvd.synchronize(handle), expected):
                    with lock:
                        wrong.append((one, turn))

    # torch's own threads do not outlive a fork, and long tensors would be made by them.
    torch.set_num_threads(1)
    threads = [threading.Thread(target=calls, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ten_thousand_submissions_of_three_threads_on_four_ranks():
    run(4, joined, partial(many, 10_000))


def steady():
    """Where ranks submit in one order they compare numbers and no more, also after they have once
    differed; names come to be known, and small tensors travel together."""
    from ringcomm.horovod import fusion

    coordinator = hvd.global_process_set.coordinator
    differed, reduced = [], []
    slow, reduce = coordinator._differ, fusion.Fusion._all_reduce
    coordinator._differ = lambda *said: (differed.append(said), slow(*said))
    fusion.Fusion._all_reduce = lambda *said: (reduced.append(said), reduce(*said))
    try:
        in_other_orders()
        assert differed
        differed.clear()
        for turn in range(100):
            hvd.allreduce(torch.ones(3), name=f"turn {turn % 5}")
        # A rank's tick may come between.
        assert len(differed) < 50
        reduced.clear()
        hvd.barrier()
        names = [f"small {number}" for number in range(40)]
        for _ in range(2):
            handles = [hvd.allreduce_async(torch.ones(3), name=name) for name in names]
            for handle in handles:
                hvd.synchronize(handle)
        assert len(reduced) < 40
        assert "allreduce.turn 1" in [name for name, _ in coordinator._negotiation.known.values()]
    finally:
        fusion.Fusion._all_reduce = reduce
        del coordinator._differ


def objects():
    """What was made in a main program travels by what it is, and names belong together."""
    pytest.importorskip("cloudpickle")
    double = hvd.broadcast_object(lambda number: 2 * number, root_rank=1, name="double")
    assert double(21) == 42
    assert [one(1) for one in hvd.allgather_object(lambda number: number + 5)] == [6] * RANKS
    with pytest.raises(hvd.HorovodInternalError, match="root_rank 0.*root_rank 1"):
        hvd.broadcast_object("it", root_rank=int(hvd.rank() == 1), name="it")


def two_optimizers():
    """A backward pass that reaches two optimizers in another order on each rank."""
    parts = [nn.Linear(4, 4, bias=False) for _ in range(2)]
    for part in parts:
        nn.init.zeros_(part.weight)
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(part.parameters(), 1.0), part.named_parameters())
        for part in parts
    ]
    for turn in range(3):
        order = [0, 1] if (hvd.rank() + turn) % 2 else [1, 0]
        for index in order:
            optimizers[index].zero_grad()
        inputs = torch.ones(1, 4)
        for index in order:
            (parts[index](inputs) * (1 + 9 * index)).sum().backward()
        for index in order:
            optimizers[index].step()
    for index, part in enumerate(parts):
        assert (part.weight == -3 * (1 + 9 * index)).all()


@pytest.mark.parametrize(
    "body",
    [in_other_orders, of_every_kind, nameless, from_threads, two_of_one_name, steady,
     objects, two_optimizers],
    ids=lambda body: body.__name__,
)
def test_in_any_order(body):
    everyone(body)
