"""Process sets, `join`, Adasum, and the optimizer's settings of `ringcomm.horovod.torch`."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import ringcomm.horovod.torch as hvd
from ranks_in_processes import run
from ringcomm.horovod.adasum import combined
from test_horovod import RANKS, everyone, joined, loss_of, model_of


def sets_with():
    """Operations of a set are its ranks' alone, and go on beside those of the job."""
    rank = hvd.rank()
    both, last = hvd.add_process_set([0, 2]), hvd.add_process_set(hvd.ProcessSet([1]))
    assert (both.process_set_id, last.process_set_id) == (1, 2)
    assert (both.size(), both.included(), last.included()) == (2, rank != 1, rank == 1)
    whole = hvd.allreduce_async(torch.tensor([1.0 + rank]), name="it", op=hvd.Sum)
    if rank != 1:
        assert both.rank() == rank // 2
        mine = torch.full((2,), 1.0 + rank)
        named = {"name": "it", "process_set": both}
        assert hvd.allreduce(mine, op=hvd.Sum, **named).tolist() == [4, 4]
        assert hvd.allgather(mine, **named).tolist() == [1, 1, 3, 3]
        assert hvd.broadcast(mine, 2, **named).tolist() == [3, 3]
        assert hvd.alltoall(mine, **named).tolist() == [1, 3]
        assert hvd.reducescatter(mine, op=hvd.Sum, **named).tolist() == [4]
        assert hvd.allgather_object(rank, process_set=both) == [0, 2]
        assert hvd.broadcast_object(rank, 2, process_set=both) == 2
        hvd.barrier(both)
        with pytest.raises(ValueError, match=r"root_rank 1 is none of the ranks \[0, 2\]"):
            hvd.broadcast(mine, 1, process_set=both)
        with pytest.raises(hvd.HorovodInternalError, match=r"of the process set \[0, 2\]"):
            hvd.allreduce(torch.ones(1 + rank), process_set=both)
        weight = torch.ones(2, requires_grad=True)
        (hvd.allgather(weight, process_set=both) * (1.0 + rank)).sum().backward()
        assert weight.grad.tolist() == [2, 2]
    else:
        with pytest.raises(ValueError, match="rank 1 is not in ProcessSet"):
            hvd.allreduce(torch.ones(1), process_set=both)
    assert hvd.synchronize(whole).tolist() == [6]
    with pytest.raises(ValueError, match="of these ranks already"):
        hvd.add_process_set([2, 0])
    with pytest.raises(ValueError, match="made of ranks 0 to 2"):
        hvd.add_process_set([0, 3])
    assert hvd.remove_process_set(both) and not hvd.remove_process_set(both)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="is not registered"):
        hvd.allreduce(torch.ones(1), process_set=both)
    # The number is not used again, the ranks may be.
    assert hvd.add_process_set([0, 2]).process_set_id == 3


def static_sets():
    pairs = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])]
    hvd.init(process_sets=pairs)
    try:
        got = [
            hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum, process_set=one).item()
            for one in pairs
            if one.included()
        ]
    finally:
        hvd.shutdown()
    assert not hvd.is_initialized() and pairs[0].process_set_id is None
    return got


def test_sets_that_init_makes():
    assert run(RANKS, static_sets) == [[3], [3, 5], [5]]


def of_some_ranks():
    """An optimizer of two ranks: the third steps by itself."""
    some = hvd.add_process_set([0, 1])
    weight = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), process_set=some)
    (weight * (1 + hvd.rank())).sum().backward()
    optimizer.step()
    assert weight.tolist() == ([-3, -3] if hvd.rank() == 2 else [-1.5, -1.5])


def uneven():
    """A rank with less data joins; the others train on, with its zeros."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
    for _ in range(1 + hvd.rank()):
        optimizer.zero_grad()
        (weight * 3).sum().backward()
        optimizer.step()
    assert hvd.join() == 2
    expected = [-3, -3 - 2, -3 - 2 - 1][hvd.rank()]
    assert weight.tolist() == [expected] * 2
    # And the job goes on; names given by count belong together again.
    hvd.broadcast_parameters([weight], root_rank=2)
    assert weight.tolist() == [-6, -6] and hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3


def joined_early():
    """Of a rank that has joined only reductions can do without."""
    if hvd.rank() == 1:
        assert hvd.join() in (0, 2)
        return
    for call in (hvd.allgather, partial(hvd.broadcast, root_rank=0), hvd.alltoall):
        with pytest.raises(hvd.HorovodInternalError, match="ranks 1 have joined"):
            call(torch.ones(3))
    low = torch.full((3,), 2.0, dtype=torch.bfloat16)
    assert hvd.allreduce(low, op=hvd.Sum).tolist() == [4] * 3
    assert hvd.grouped_allreduce([torch.ones(2), torch.ones(40000)], op=hvd.Sum)[1][7] == 2
    assert hvd.allreduce(torch.full((2,), 5.0), op=hvd.Min).tolist() == [0, 0]
    assert hvd.join() in (0, 2)


def divided_before():
    """Gradients that are divided before they are added do not overflow."""
    for settings, average in (({}, math.inf), ({"gradient_predivide_factor": 4.0}, 2.0**127)):
        for compression in (hvd.Compression.none, hvd.Compression.bf16):
            weight = nn.Parameter(torch.zeros(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([weight], 1.0), compression=compression, **settings
            )
            (weight * 2.0**127).sum().backward()
            optimizer.step()
            rounded = compression is hvd.Compression.bf16
            assert weight.tolist() == [-(2.0**127) if rounded else -average] * 2


def unusual_gradients():
    """Gradients that programs replace, whose numbers lie in another order, or that are missing."""
    rank = hvd.rank()
    # No rank's own is the mean, which is 3.
    weight = [1, 2, 6][rank]
    replaced, strided, missing = (nn.Parameter(torch.zeros(2, 3, 2, 2)) for _ in range(3))
    parameters = [replaced, strided, missing]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0), num_groups=3)
    numbers = torch.arange(24.0).view(2, 3, 2, 2)
    for step in range(2):
        optimizer.zero_grad()
        strided.grad = torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        (replaced.sum() * weight + (strided * numbers * weight).sum()).backward()
        if rank == 1:
            (missing * 3).sum().backward()
        replaced.grad = replaced.grad * 1.0
        assert not strided.grad.is_contiguous()
        optimizer.step()
        for one, mean in ((replaced, 3), (strided, 3 * numbers), (missing, 1)):
            torch.testing.assert_close(one.detach(), torch.zeros(2, 3, 2, 2) - mean * (step + 1))


def own_groups():
    """Parameters in groups of the program's, or so many of them, train as without."""
    weights, sizes = [], []
    for settings in ({}, {"num_groups": 2}, {"groups": "own"}, {"gradient_predivide_factor": 4.0}):
        model = model_of()
        if settings.get("groups"):
            settings = {"groups": [[model[2].bias, model[0].weight]]}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), **settings)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            optimizer.step()
        weights.append([one.detach() for one in model.parameters()])
        units = optimizer._exchange._units
        sizes.append([len(unit.parameters) for unit in units])
    assert sizes == [[4], [2, 2], [2, 1, 1], [4]]
    for found in weights[1:]:
        for one, other in zip(found, weights[0]):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    parameters = list(model.parameters())
    step = torch.optim.SGD(parameters, 0.1)
    for groups, said in (
        ([parameters[:1] * 2], "more than once"),
        ([["weight"]], "no tensor"),
        (-1, "not negative"),
        ("all", "a number, or a list"),
    ):
        with pytest.raises(ValueError, match=said):
            hvd.DistributedOptimizer(step, groups=groups)
    with pytest.raises(ValueError, match="for op=Average"):
        hvd.DistributedOptimizer(step, op=hvd.Sum, gradient_predivide_factor=2.0)


class Signs:
    """A compression as programs write it: the signs, and the greatest magnitude."""

    @staticmethod
    def compress(tensor):
        return tensor.sign(), tensor.abs().max()

    @staticmethod
    def decompress(tensor, ctx):
        return tensor * ctx


def own_compression():
    weight, other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, other], 1.0), compression=Signs)
    slope = torch.tensor([1.0, -2.0, 4.0]) * (1 if hvd.rank() else -1)
    (weight * slope).sum().backward()
    optimizer.step()
    # The average of the signs, times this rank's greatest.
    torch.testing.assert_close(weight.detach(), -4 * torch.tensor([1.0, -1.0, 1.0]) / 3)
    assert other.tolist() == [0]
    tensor = torch.tensor([2.0, -0.5])
    assert hvd.allreduce(tensor, compression=Signs).tolist() == [2, -2]


def names():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    step = torch.optim.SGD([*one.parameters(), *two.parameters()], 0.1)
    with pytest.raises(ValueError, match="more than once: weight, bias"):
        hvd.DistributedOptimizer(step, [*one.named_parameters(), *two.named_parameters()])
    with pytest.raises(ValueError, match=r"leaves out .*: 0.2, 0.3"):
        hvd.DistributedOptimizer(step, one.named_parameters())
    with pytest.raises(ValueError, match="pairs of a name"):
        hvd.DistributedOptimizer(step, one.parameters())


def twice():
    weight = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
    weight.sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="without optimizer.skip_synchronize"):
        optimizer.step()


def really_sparse():
    """Sparse gradients travel as such: rows of all ranks, also rows that several have."""
    layer = nn.Embedding(5, 2, sparse=True)
    dense = nn.Linear(2, 1)
    nn.init.zeros_(layer.weight)
    parameters = [*layer.parameters(), *dense.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0), op=hvd.Sum)
    for _ in range(2):
        optimizer.zero_grad()
        (2 * layer(torch.tensor([hvd.rank(), 4]))).sum().backward()
        optimizer.step()
        assert layer.weight.grad.is_sparse and dense.weight.grad is not None
    assert layer.weight[:, 0].tolist() == [-4, -4, -4, 0, -12]


def sparse_on_some():
    """A rank that does not use a sparse parameter in a step has no rows for it."""
    layer = nn.Embedding(4, 1, sparse=True)
    nn.init.zeros_(layer.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), 1.0), op=hvd.Sum)
    for step in range(3):
        optimizer.zero_grad(set_to_none=step != 2)
        if step == 0 or hvd.rank() == 0:
            (2 * layer(torch.tensor([hvd.rank()]))).sum().backward()
        optimizer.step()
    assert layer.weight.flatten().tolist() == [-6, -2, -2, 0]


def refused_once():
    """After a step that was refused the next one goes on."""
    weight = nn.Parameter(torch.zeros(2 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
    for _ in range(2):
        weight.sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match="not the same operation"):
            optimizer.step()
        optimizer.zero_grad()


def further_streams():
    """What tensors on devices need: comm streams beside the first, made in the coordinator's turn,
    and those of layers in any thread."""
    from ringcomm.horovod.requests import Request, Signature
    from ringcomm.horovod.torch.group import group_of, layer_ranks

    coordinator = hvd.global_process_set.coordinator
    made = []
    request = Request(
        "made", Signature.of("made"), lambda: None,
        lambda: made.append(group_of(coordinator)._new_comm_stream("cpu", 1)),
    )  # fmt: skip
    coordinator.submit(request, soon=True).wait()
    assert made[0].communicator.nranks == RANKS
    for depth in (1, 2):
        layer_ranks()._group._new_comm_stream("cpu", depth)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == RANKS


def scaled_once():
    """A name that is under way is refused before its tensor is touched."""
    tensor = torch.ones(3)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async_(tensor, name="it", op=hvd.Sum)
        with pytest.raises(ValueError, match="submitted already"):
            hvd.allreduce_async_(tensor, name="it", op=hvd.Sum, prescale_factor=10.0)
    hvd.barrier()
    if hvd.rank():
        handle = hvd.allreduce_async_(tensor, name="it", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [3] * 3


@pytest.mark.parametrize(
    "body",
    [sets_with, of_some_ranks, uneven, joined_early, divided_before, unusual_gradients, own_groups,
     own_compression, names, twice, really_sparse, sparse_on_some, refused_once, scaled_once,
     further_streams],
    ids=lambda body: body.__name__,
)  # fmt: skip
def test_with_three_ranks(body):
    everyone(body)


def adaptive():
    rank = hvd.rank()
    mine = torch.arange(1.0, 5) * (rank + 1)
    got = hvd.allreduce(mine, op=hvd.Adasum)
    # Tensors that point the same way are averaged, pair by pair: 1.5, 3.5, then 2.5.
    torch.testing.assert_close(got, 2.5 * torch.arange(1.0, 5))
    apart = torch.zeros(4)
    apart[rank] = 3
    assert hvd.allreduce(apart, op=hvd.Adasum).tolist() == [3] * 4, "right angles are added"
    assert hvd.allreduce(torch.zeros(2), op=hvd.Adasum).tolist() == [0, 0]
    weight = nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 0.5), op=hvd.Adasum)
    (weight * mine).sum().backward()
    optimizer.step()
    torch.testing.assert_close(weight.detach(), -0.5 * 2.5 * torch.arange(1.0, 5))


def test_adasum_of_four_ranks():
    run(4, joined, adaptive)


def test_adasum_of_any_two_is_as_the_paper_says():
    one, other = torch.tensor([3.0, 1.0]).double(), torch.tensor([1.0, 2.0]).double()
    along = 5.0
    expected = (1 - along / 20) * one + (1 - along / 10) * other
    torch.testing.assert_close(combined([one, other]), expected)
